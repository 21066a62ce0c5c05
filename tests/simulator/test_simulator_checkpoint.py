"""A run that was stopped anywhere continues to the same numbers; every other file is refused."""

import json
import random
import resource
import shutil
import struct
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from small_worlds import CLIENTS, SETTINGS, finished, make_rule, mlp, same_records, vectors

from kasync import Custom, Gradient, Local, LocalSGD, rules, simulate, timelines
from kasync.data.federated import FederatedData
from kasync.errors import UserError

TIMELINE = timelines.uniform(CLIENTS, 3, 30, seed=4)
EVERY = {"evaluate_every": 5, "checkpoint_every": 0.0}


def run(place=None, rule=None, **changed):
    """A simulation that saves after every piece of five steps."""
    given = {"model": mlp(), "data": vectors(), "timeline": TIMELINE, "work": Gradient(4)} | EVERY | changed
    return simulate(rule=rule or rules.kasync_sgd(0.05), checkpoint=place, **given)


def stopped_after(step, place, **changed):
    """Begin, and give up after this step."""
    for record in run(place, **changed):
        if record.step == step:
            return


@pytest.fixture
def half(tmp_path):
    """The checkpoint of a run that got to step 15."""
    stopped_after(15, tmp_path / "run.ckpt")
    return tmp_path / "run.ckpt"


def one_sentence(problem) -> bool:
    text = str(problem.value)
    return "\n" not in text and text.endswith(".")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_resumed_run_of_every_rule_equals_the_uninterrupted_one(name, tmp_path):
    place = tmp_path / "run.ckpt"
    expected = run(rule=make_rule(name, mlp(), vectors()))
    records = list(expected)
    stopped_after(16, place, rule=make_rule(name, mlp(), vectors()))
    resumed = run(place, rule=make_rule(name, mlp(), vectors()))
    assert same_records(list(resumed), records)
    assert torch.equal(resumed.params, expected.params)


def test_a_memory_in_half_precision_is_resumed_too(tmp_path):
    rule = rules.recall(0.05, CLIENTS, memory_precision="half")
    expected = run(rule=rule)
    records = list(expected)
    stopped_after(16, tmp_path / "run.ckpt", rule=rule)
    resumed = run(tmp_path / "run.ckpt", rule=rule)
    assert same_records(list(resumed), records)
    assert torch.equal(resumed.params, expected.params)


@pytest.mark.parametrize(
    "changed", [{"hold": "versions"}, {"work": LocalSGD(2, 0.05, 4)}, {"staleness": "published-code"}]
)
def test_a_run_stopped_at_every_boundary_equals_the_uninterrupted_one(changed, tmp_path):
    rule = make_rule("wkafl", mlp(), vectors())
    expected = run(rule=rule, **changed)
    records = list(expected)
    for step in range(1, TIMELINE.steps + 1, 5):
        stopped_after(step, tmp_path / "run.ckpt", rule=rule, **changed)
    resumed = run(tmp_path / "run.ckpt", rule=rule, **changed)
    assert same_records(list(resumed), records)
    assert torch.equal(resumed.params, expected.params)
    assert [path.name for path in tmp_path.iterdir()] == ["run.ckpt"]


def test_a_finished_run_is_told_again_without_work(tmp_path):
    first = list(run(tmp_path / "run.ckpt"))
    before = (tmp_path / "run.ckpt").stat().st_mtime_ns
    assert same_records(list(run(tmp_path / "run.ckpt")), first)
    assert (tmp_path / "run.ckpt").stat().st_mtime_ns == before


def test_a_checkpoint_between_saves_loses_only_what_came_after_it(tmp_path):
    stopped_after(9, tmp_path / "run.ckpt", checkpoint_every=3600.0)
    assert list(tmp_path.iterdir()) == []
    assert same_records(list(run(tmp_path / "run.ckpt")), list(run()))


def other_data() -> FederatedData:
    return vectors(seed=8)


OTHERS = {
    "model": {"model": mlp(seed=2)},
    "data": {"data": other_data()},
    "rule": {"rule": rules.kasync_sgd(0.06)},
    "timeline": {"timeline": timelines.uniform(CLIENTS, 3, 30, seed=5)},
    "staleness": {"staleness": "none"},
    "work": {"work": Gradient(5)},
    "seed": {"seed": 1},
    "hold": {"hold": "versions"},
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_another_run_is_refused_naming_what_differs(what, half):
    with pytest.raises(UserError, match=f"belongs to another run: its {what} is") as problem:
        list(run(half, **OTHERS[what]))
    assert one_sentence(problem)


def test_a_checkpoint_of_other_samples_is_refused_wherever_they_differ(half):
    data = vectors()
    inputs = data.train.inputs.copy()
    inputs[-1] += 1
    with pytest.raises(UserError, match="its data is"):
        list(run(half, data=replace(data, train=replace(data.train, inputs=inputs))))


def test_a_checkpoint_of_another_loss_is_refused(half):
    with pytest.raises(UserError, match="its loss is"):
        list(run(half, loss=lambda outputs, labels: outputs.square().sum(1)))


def refused(place):
    with pytest.raises(UserError, match=r"^checkpoint .*run\.ckpt") as problem:
        list(run(place))
    assert one_sentence(problem)


def test_a_truncated_checkpoint_is_refused_in_one_sentence(half):
    whole = half.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        half.write_bytes(whole[:length])
        refused(half)


def test_no_flipped_bit_changes_the_numbers_unnoticed(half):
    whole = half.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    expected = list(run())
    draw = random.Random(0)
    bits = [draw.randrange(8 * header) for _ in range(80)] + [
        draw.randrange(8 * header, 8 * len(whole)) for _ in range(40)
    ]
    told = []
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        half.write_bytes(damaged)
        try:
            assert same_records(list(run(half)), expected), f"bit {bit} of a header of {8 * header}"
        except UserError as problem:
            told.append(str(problem))
    assert len(told) > 100
    assert not any("\n" in text for text in told)


def test_a_damaged_step_is_noticed(half):
    whole = half.read_bytes()
    assert whole.count(b'\\"step\\": 15') == 1
    half.write_bytes(whole.replace(b'\\"step\\": 15', b'\\"step\\": 10'))
    refused(half)


@pytest.mark.parametrize(
    "about", ["[]", "{}", "3", '"x"', "{", json.dumps({"step": 1, "identity": "x", "checksum": ""})]
)
def test_a_foreign_file_is_refused_in_one_sentence(about, tmp_path):
    save_file({"x": torch.zeros(3)}, tmp_path / "run.ckpt", metadata={"kasync": about})
    refused(tmp_path / "run.ckpt")


def test_files_of_other_kinds_are_refused_in_one_sentence(tmp_path):
    place = tmp_path / "run.ckpt"
    for content in (b"", b"hello", b"\x80\x04\x95" * 100, b"\0" * 64, b"PK\x03\x04" + bytes(100)):
        place.write_bytes(content)
        refused(place)
    save_file({"x": torch.zeros(3)}, place)
    refused(place)
    torch.save({"x": 1}, place)
    refused(place)


def test_a_folder_is_refused_and_nobody_is_told_to_delete_it(tmp_path):
    (tmp_path / "run.ckpt").mkdir()
    with pytest.raises(UserError) as problem:
        list(run(tmp_path / "run.ckpt"))
    assert one_sentence(problem)
    assert "delete" not in str(problem.value)


def test_a_place_below_a_file_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="choose another place") as problem:
        list(run(tmp_path / "file" / "run.ckpt"))
    assert one_sentence(problem)


def test_a_full_disk_is_one_sentence_and_leaves_the_old_checkpoint_alone(half):
    before = half.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(UserError, match="cannot be written") as problem:
            list(run(half))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert one_sentence(problem)
    assert half.read_bytes() == before
    assert [path.name for path in half.parent.iterdir()] == ["run.ckpt"]


def test_what_a_killed_run_left_half_written_is_cleared_away(half):
    half.with_name("run.ckpt.99999999.tmp").write_bytes(b"half")  # as a save by this process number would leave it
    list(run(half))
    assert [path.name for path in half.parent.iterdir()] == ["run.ckpt"]


def test_a_checkpoint_that_cannot_be_used_is_refused_on_the_call(half):
    with pytest.raises(UserError):
        run(half, seed=1)
    half.write_bytes(b"damaged")
    with pytest.raises(UserError):
        run(half)


def test_a_place_that_cannot_be_written_is_refused_on_the_call(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError):
        run(tmp_path / "file" / "run.ckpt")


def test_a_run_with_hold_auto_goes_on_as_it_began_though_memory_has_become_free(tmp_path):
    expected = list(run(hold="versions"))
    place = tmp_path / "run.ckpt"
    begun = iter(run(place, hold="versions"))
    for _ in range(15):
        next(begun)
    again = run(place)
    assert again.memory.hold == "versions"
    assert run().memory.hold == "gradients"
    assert same_records(list(again), expected)


def test_a_copied_checkpoint_continues_elsewhere(half, tmp_path):
    shutil.copy(half, tmp_path / "copy.ckpt")
    assert same_records(
        list(run(tmp_path / "copy.ckpt")), finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, **EVERY)[0]
    )


def test_a_loop_or_a_schedule_of_ones_own_is_the_same_run_in_the_next_process(tmp_path):
    """The same function lies elsewhere in memory then."""

    def loop():
        def train(model, batches, client):
            client.loss(model, batches[0]).backward()
            torch.optim.SGD(model.parameters(), 0.1).step()

        return train

    for number, made in enumerate(
        (
            lambda train: Custom(train, batch_size=4, steps=1),
            lambda train: Local(4, steps=2, lr=0.1, schedule=lambda done: 1 / (1 + done)),
            lambda train: Local(4, steps=2, optimizer=lambda params, lr=0.1: torch.optim.SGD(params, lr)),
        )
    ):
        place, one, other = tmp_path / f"{number}.ckpt", made(loop()), made(loop())
        stopped_after(15, place, work=one)
        again = run(place, work=other)
        assert again.done == 15
        assert again.fingerprint == run(work=one).fingerprint
        assert " at 0x" not in again.identify()["work"]
