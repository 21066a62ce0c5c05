"""A checkpoint that no save of this run could have written is refused, though its checksum is right."""

import json

import pytest
import torch
from safetensors.torch import save_file
from small_worlds import CLIENTS, mlp, same_records, vectors

from kasync import Gradient, rules, simulate, timelines
from kasync.checkpoint import Checkpoint, checksum
from kasync.errors import UserError
from kasync.live.deliveries import Delivery
from kasync.live.journal import Journal
from kasync.live.loop import Federation
from kasync.live.terms import Terms

TIMELINE = timelines.uniform(CLIENTS, 3, 12, seed=4)


def run(place):
    options = {"evaluate_every": 4, "checkpoint": place, "checkpoint_every": 0.0}
    return simulate(mlp(), vectors(), rules.wkafl(0.05), TIMELINE, Gradient(2), **options)


@pytest.fixture
def forge(tmp_path):
    """A function that changes the tensors, and what is said of them, and signs the result as a save would."""
    place = tmp_path / "run.ckpt"
    for record in run(place):
        if record.step == 8:
            break
    identity = run(place).checkpoint.identity
    step, held = Checkpoint(place, identity).load()
    tensors = {name: value.clone() for name, value in held.items()}

    def forged(change, **about):
        change(tensors)
        told = {"version": 1, "step": step, "identity": dict(identity)} | about
        told["checksum"] = checksum(told, tensors)
        save_file(tensors, place, metadata={"kasync": json.dumps(told)})
        return place

    return forged


CHANGES = {
    "a tensor is missing": lambda tensors: tensors.pop("losses"),
    "a tensor is unknown": lambda tensors: tensors.update(more=torch.zeros(3)),
    "the model has another shape": lambda tensors: tensors.update({"server.params": tensors["server.params"][None]}),
    "the model has another type": lambda tensors: tensors.update({"server.params": tensors["server.params"].half()}),
    "the history is too short": lambda tensors: tensors.update({"history.loss": tensors["history.loss"][:3].clone()}),
    "the history has no column": lambda tensors: tensors.pop("history.lr"),
    "the history is of whole numbers": lambda tensors: tensors.update(
        {"history.loss": tensors["history.loss"].to(torch.int64)}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_save_could_not_have_written_is_refused(change, forge):
    with pytest.raises(UserError, match=r"run\.ckpt cannot be of this run"):
        run(forge(CHANGES[change]))


@pytest.mark.parametrize("step", [-1, 5, 12, 13, 10**6])
def test_a_step_that_the_rest_does_not_fit_is_refused(step, forge):
    with pytest.raises(UserError, match=r"run\.ckpt cannot be of this run"):
        run(forge(lambda tensors: None, step=step))


def test_numbers_of_a_type_that_is_never_saved_are_refused(forge):
    place = forge(lambda tensors: None)
    about = json.dumps({"version": 1, "step": 1, "identity": {}, "checksum": ""})
    save_file({"x": torch.zeros(2).bfloat16()}, place, metadata={"kasync": about})
    with pytest.raises(UserError, match="is damaged"):
        run(place)


def test_metadata_nested_too_deeply_is_refused(forge):
    place = forge(lambda tensors: None)
    save_file({"x": torch.zeros(2)}, place, metadata={"kasync": "[" * 100_000})
    with pytest.raises(UserError, match="cannot be read"):
        run(place)


def test_left_as_it_was_it_goes_on(forge):
    assert len(list(run(forge(lambda tensors: None)))) == 12


def test_a_resumed_run_does_not_hang_on_its_file(tmp_path):
    place = tmp_path / "run.ckpt"
    expected = list(run(None))
    for record in run(place):
        if record.step == 8:
            break
    resumed = run(place)
    place.write_bytes(b"")  # somebody copies another file over it: the old one's bytes are gone
    assert same_records(list(resumed), expected)


def test_a_resumed_federation_does_not_hang_on_its_files(tmp_path):
    def founded():
        terms = Terms(k=2, brings="gradients")
        return Federation(rules.fedasync(0.5), torch.zeros(3), terms, Journal(tmp_path / "state", {}))

    first = founded()
    first.present([1, 2, 3], 0.0)
    for order in first.dispatch(0.0):
        first.collect(order.ticket, order.node, Delivery(torch.ones(3)), 0.0)
    first.step(0.0)
    again = founded()
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    assert torch.equal(again.server.params, first.server.params)
    assert torch.equal(again.waiting[0].row, torch.ones(3))
