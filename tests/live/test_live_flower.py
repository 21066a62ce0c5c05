"""The Flower strategy on a grid in memory: what the rule says, whatever comes back."""

import logging
import time
from collections import Counter

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, crashed
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from rule_cases import CASES, make
from scripted import Script

from kasync import rules, timelines
from kasync.live.flower import KAsync
from kasync.live.flower_messages import decoded, encoded
from kasync.live.loop import composed

MATRIX = (4, 6)  # of a model that is one layer


def reply(message: Message, arrays: dict, **metrics) -> Message:
    content = RecordDict(
        {"arrays": ArrayRecord({n: Array(a) for n, a in arrays.items()}), "metrics": MetricRecord(metrics)}
    )
    return Message(content, reply_to=message)


def start_of(message: Message) -> np.ndarray:
    return message.content["arrays"]["w"].numpy()


def towards(goal: float, message: Message) -> list[Message]:
    """A client that moves halfway to its goal."""
    w = start_of(message)
    return [reply(message, {"w": (w + goal) / 2}, **{"num-examples": 4, "train_loss": float(np.square(w).mean())})]


def model(size: int = 3) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(size, np.float32))})


def scripted_grid(script: Script, brings: str) -> FakeGrid:
    visits = Counter()

    def answer(message: Message) -> list[Message]:
        client = message.metadata.dst_node_id - 1000
        visit, visits[client] = visits[client], visits[client] + 1
        row = script.rows[client, visit].reshape(start_of(message).shape)
        values = start_of(message) - row if brings == "models" else row
        told = {
            "num-examples": int(script.sizes[client]),
            "train_loss": float(script.losses[client, visit]),
            "due": script.due(client, visit),
        }
        return [reply(message, {"w": values}, **told)]

    grid = FakeGrid(range(1000, 1012), answer)
    grid.due = lambda found: grid.newest >= found.content["metrics"]["due"]
    return grid


@pytest.mark.parametrize("brings", ["models", "gradients"])
@pytest.mark.parametrize("case", CASES)
def test_scripted_deliveries_give_the_parameters_that_the_simulator_gives(case, brings):
    script = Script.drawn()
    strategy = KAsync(make(case), k=4, brings=brings, min_available_nodes=12, poll=0.002)
    start = ArrayRecord({"w": Array(script.start.reshape(MATRIX).numpy())})
    result = strategy.start(scripted_grid(script, brings), start, num_rounds=script.timeline.steps)
    wanted = script.simulated(composed(make(case).shaped([MATRIX]), strategy.terms, None)).params
    torch.testing.assert_close(torch.from_numpy(result.arrays["w"].numpy()).flatten(), wanted, rtol=1e-6, atol=1e-6)


def test_the_run_writes_the_timeline_it_had(tmp_path):
    script = Script.drawn()
    strategy = KAsync(rules.kasync_sgd(0.1), 4, min_available_nodes=12, poll=0.002, timeline=tmp_path / "live.npz")
    start = ArrayRecord({"w": Array(script.start.numpy())})
    strategy.start(scripted_grid(script, "models"), start, num_rounds=25)
    had = timelines.load(tmp_path / "live.npz")
    assert had.population == 12
    for ours, wanted in zip(had.clients, script.timeline.clients, strict=True):
        assert set(ours) == set(wanted)
    assert np.array_equal(np.sort(had.staleness), np.sort(script.timeline.staleness))


def test_training_evaluates_where_it_is_asked_to_and_averages_what_clients_report():
    grid = FakeGrid(range(5), lambda message: towards(1.0, message))
    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, evaluate_every=4)
    seen = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(number)
        return MetricRecord({"distance": float(abs(arrays["w"].numpy() - 1).max())})

    result = strategy.start(grid, model(), 10, train_config=ConfigRecord({"lr": 0.5}), evaluate_fn=evaluate)
    assert seen == [0, 4, 8, 10]
    assert result.evaluate_metrics_serverapp[10]["distance"] < 0.1 < result.evaluate_metrics_serverapp[0]["distance"]
    assert sorted(result.train_metrics_clientapp) == list(range(1, 11))
    assert result.train_metrics_clientapp[1]["train_loss"] == 0.0
    assert all(message.content["config"]["lr"] == 0.5 for message in grid.sent)
    assert grid.sent[0].content["config"]["server-round"] == 1


def test_a_client_that_is_silent_when_asked_to_evaluate_does_not_hold_the_end(caplog):
    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == "train":
            return towards(1.0, message)
        if message.metadata.dst_node_id == 0:
            return []
        content = RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 3})})
        return [Message(content, reply_to=message)]

    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, fraction_evaluate=1.0, evaluation_timeout=0.3)
    began = time.monotonic()
    result = strategy.start(FakeGrid(range(3), answer), model(), 4)
    assert time.monotonic() - began < 5.0  # the timeout of a piece of work is an hour
    assert result.evaluate_metrics_clientapp[4]["accuracy"] == 0.5  # of those who answered
    assert "2 clients did not answer an evaluation within 0 s of the end" in caplog.text  # the first time and the last


def test_a_run_whose_clients_were_all_set_aside_ends_and_says_why(caplog):
    def answer(message: Message) -> list[Message]:
        return [reply(message, {"w": np.full(3, np.nan, np.float32)}, **{"num-examples": 1})]

    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, offences=1, grace=0.1)
    strategy.start(FakeGrid(range(3), answer), model(), 4)
    assert "the run ends after 0 updates: every client that is there was set aside" in caplog.text


def test_clients_evaluate_while_others_train():
    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == "train":
            return towards(1.0, message)
        content = RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 3})})
        return [Message(content, reply_to=message)]

    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, evaluate_clients_every=3, fraction_evaluate=0.5)
    result = strategy.start(FakeGrid(range(4), answer), model(), 7)
    assert sorted(result.evaluate_metrics_clientapp) == [3, 6, 7]
    assert result.evaluate_metrics_clientapp[6]["accuracy"] == 0.5


def test_a_client_that_evaluates_slowly_is_asked_again_only_when_it_has_answered():
    asked = []

    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == "train":
            return towards(1.0, message)
        asked.append((message.content["config"]["server-round"], message.metadata.dst_node_id))
        return []

    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, fraction_evaluate=1.0, evaluation_timeout=0.0)
    strategy.start(FakeGrid(range(3), answer), model(), 9)
    assert sorted(asked) == [(1, 0), (1, 1), (1, 2), (9, 0), (9, 1), (9, 2)]


@pytest.mark.parametrize("odd", [[0.5], [0.5, 0.5], 0.5], ids=["a shorter list", "a longer list", "one number"])
def test_metrics_that_do_not_fit_together_are_left_out_and_the_run_goes_on(odd, caplog):
    def answer(message: Message) -> list[Message]:
        losses = odd if message.metadata.dst_node_id == 0 else [0.1, 0.2, 0.3]
        return [reply(message, {"w": start_of(message)}, **{"num-examples": 4, "losses": losses})]

    result = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002).start(FakeGrid(range(2), answer), model(), 3)
    assert "what clients report for update 1 is not averaged" in caplog.text
    assert set(result.train_metrics_clientapp[3]) == {"staleness-mean", "staleness-max", "deliveries"}


BAD = {
    "a NaN": {"w": np.array([0.0, np.nan, 1.0], np.float32)},
    "an infinity": {"w": np.array([0.0, np.inf, 1.0], np.float32)},
    "a wrong shape": {"w": np.zeros(4, np.float32)},
    "another rank": {"w": np.zeros((3, 1), np.float32)},
    "letters": {"w": np.array(["a", "b", "c"])},
    "whole numbers": {"w": np.zeros(3, np.int64)},
    "another name": {"v": np.zeros(3, np.float32)},
    "one too many": {"w": np.zeros(3, np.float32), "v": np.zeros(3, np.float32)},
    "nothing": {},
    "too long a step": {"w": np.full(3, 1e6, np.float32)},
}


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_client_costs_its_own_deliveries_and_is_set_aside(bad):
    def answer(message: Message) -> list[Message]:
        if message.metadata.dst_node_id == 0:
            return [reply(message, BAD[bad], **{"num-examples": 1})]
        return towards(1.0, message)

    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, max_norm=100.0, rest=0.0, offences=3)
    result = strategy.start(FakeGrid(range(4), answer), model(), 20)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1.0, atol=0.05)
    assert strategy.run.federation.tally["refused"] == 3
    assert [client.aside for client in strategy.run.federation.roster] == [True, False, False, False]


def disguised(message: Message, **changes) -> list[Message]:
    """A reply whose array is not what it says."""
    (found,) = towards(1.0, message)
    found.content["arrays"]["w"].__dict__.update(changes)
    return [found]


@pytest.mark.parametrize(
    "changes",
    [
        {"data": b"no numpy at all"},
        {"data": b""},
        {"stype": "pickle"},
        {"data": Array(np.zeros(5, np.float32)).data},
        {"data": Array(np.zeros(3, np.int64)).data},
        {"data": b"\x93NUMPY" + b"0" * 10_000_000},
    ],
    ids=["bytes", "empty", "another format", "other shape inside", "other type inside", "ten megabytes"],
)
def test_an_array_that_is_not_what_it_announces_is_refused(changes):
    def answer(message: Message) -> list[Message]:
        return disguised(message, **changes) if message.metadata.dst_node_id == 0 else towards(1.0, message)

    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, rest=0.0)
    strategy.start(FakeGrid(range(4), answer), model(), 12)
    assert strategy.run.federation.tally["refused"] == 3


def test_metrics_that_are_no_numbers_are_refused():
    told = [{"num-examples": 0}, {"num-examples": float("nan")}, {"num-examples": 1, "loss": float("inf")}]
    told += [{"num-examples": [1, 2]}, {"num-examples": 1, "train_loss": [0.1]}]

    def answer(message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        if node < len(told):
            return [reply(message, {"w": start_of(message)}, **told[node])]
        return towards(1.0, message)

    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, offences=1)
    strategy.start(FakeGrid(range(8), answer), model(), 5)
    assert strategy.run.federation.tally["refused"] == len(told)


def test_second_answers_foreign_answers_and_crashes_are_told_apart():
    def answer(message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        found = towards(1.0, message)
        if node == 0:
            return found + towards(5.0, message)
        if node == 1:
            return crashed(message)
        if node == 2:
            found[0].metadata.__dict__["_src_node_id"] = 3
        return found

    strategy = KAsync(rules.kasync_sgd(1.0), k=2, poll=0.002, rest=0.01)
    result = strategy.start(FakeGrid(range(5), answer), model(), 30)
    tally = strategy.run.federation.tally
    assert tally["duplicate"] > 3
    assert tally["failed"] > 1
    assert tally["unknown"] == 1
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1.0, atol=0.05)


def test_a_node_that_cannot_be_reached_does_not_stop_the_others():
    grid = FakeGrid(range(4), lambda message: towards(1.0, message))
    grid.unreachable = {2}
    strategy = KAsync(rules.kasync_sgd(1.0), k=3, poll=0.002, rest=0.01)
    strategy.start(grid, model(), 10)
    assert strategy.run.federation.tally["failed"] >= 1
    assert strategy.run.federation.tally["used"] == 30


def test_a_silent_node_is_given_up_and_its_late_answer_is_not_used():
    late = []

    def answer(message: Message) -> list[Message]:
        if message.metadata.dst_node_id == 0:
            late.extend(towards(9.0, message))
            return []
        return towards(1.0, message)

    grid = FakeGrid(range(3), answer)
    strategy = KAsync(rules.kasync_sgd(0.1), k=2, poll=0.02, rest=100.0, longest_rest=100.0)

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number == 5:
            time.sleep(3.5)  # longer than anybody is waited for; what came meanwhile still counts
        if number == 10:
            strategy.run.mailbox.replies.put(late[0])

    result = strategy.start(grid, model(), 15, timeout=3.0, evaluate_fn=evaluate)
    tally = strategy.run.federation.tally
    assert (tally["expired"], tally["late"], tally["used"]) == (1, 1, 30)
    assert result.arrays["w"].numpy().max() < 1.0


def test_a_node_that_joins_late_takes_part_and_one_that_leaves_is_not_waited_for(caplog):
    grid = FakeGrid([1, 2], lambda message: towards(1.0, message))
    strategy = KAsync(rules.kasync_sgd(0.5), k=2, poll=0.002, min_k=1, grace=0.1)

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number == 5:
            grid.nodes = [1, 2, 3]
        if number == 15:
            grid.nodes = [3]

    with caplog.at_level(logging.WARNING, "kasync.live"):
        strategy.start(grid, model(), 25, evaluate_fn=evaluate)
    clients = strategy.run.federation.step_log.clients
    assert any(2 in step for step in clients[6:15])
    assert clients[20:] == [[2]] * 5
    assert "1 clients are able to work, k is 2: the run waits for 2" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("versions", ["memory", "files"])
def test_in_half_precision_what_a_client_did_is_told_from_how_its_model_was_rounded(dtype, versions, tmp_path):
    def answer(message: Message) -> list[Message]:
        got, node = decoded(message.content["arrays"]["w"]), message.metadata.dst_node_id
        made = ArrayRecord(
            {"w": encoded((got.float() + node / 512).to(dtype))}
        )  # which the types can hold, node 0 as it came
        return [Message(RecordDict({"arrays": made, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)]

    strategy = KAsync(rules.kasync_sgd(0.3), k=3, poll=0.002, versions="memory" if versions == "memory" else tmp_path)
    arrays = strategy.start(
        FakeGrid(range(3), answer), ArrayRecord({"w": encoded(torch.full((3,), 0.25, dtype=dtype))}), 8
    )
    wanted = 0.25 + 8 * 0.3 / 512  # in the server's own precision, whatever is lost on the way
    torch.testing.assert_close(strategy.run.federation.server.params, torch.full((3,), wanted), rtol=1e-6, atol=0)
    assert decoded(arrays.arrays["w"]).dtype == dtype


def test_arrays_of_whole_numbers_are_averaged_by_value():
    def answer(message: Message) -> list[Message]:
        got = message.content["arrays"]
        arrays = {
            "w": got["w"].numpy() + 1,
            "batches": np.asarray(got["batches"].numpy() + 7),
            "b": got["b"].numpy() - 1,
        }
        return [reply(message, arrays, **{"num-examples": 1})]

    start = ArrayRecord(
        {"w": Array(np.zeros((2, 2), np.float32)), "batches": Array(np.array(3)), "b": Array(np.zeros(2, np.float16))}
    )
    strategy = KAsync(rules.kasync_sgd(1.0), k=1, poll=0.002)
    arrays = strategy.start(FakeGrid([7], answer), start, 3).arrays
    assert arrays["batches"].numpy() == 3 + 3 * 7
    assert arrays["batches"].dtype == "int64"
    np.testing.assert_array_equal(arrays["w"].numpy(), np.full((2, 2), 3.0))
    np.testing.assert_array_equal(arrays["b"].numpy(), np.full(2, -3.0))
    assert arrays["b"].dtype == "float16"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(()),
        torch.zeros(0, 2),
        torch.arange(5),
        torch.tensor(True),
        torch.randn(2).half(),
        torch.randn(70_000),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
)
def test_what_is_sent_is_what_flower_makes_of_the_same_array(tensor):
    ours, theirs = encoded(tensor), Array(np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape))
    assert (ours.dtype, list(ours.shape), ours.stype) == (theirs.dtype, list(theirs.shape), theirs.stype)
    assert ours.data == theirs.data
    assert torch.equal(decoded(ours), tensor)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"k": 0}, "k = 0"),
        ({"k": 1, "shortage": "pray"}, "unknown setting of shortage 'pray'"),
        ({"k": 1, "max_nrom": 3.0}, "did you mean 'max_norm'"),
        ({"k": 1, "brings": "gifts"}, "unknown setting of brings"),
        ({"k": 1, "evaluate_every": 0}, "evaluate_every = 0"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        KAsync(rules.kasync_sgd(1.0), **settings)
