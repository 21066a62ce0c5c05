"""Every row of docs/flower.md's table of what a ClientApp may return, on real Flower messages."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid, crashed
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from kasync import rules
from kasync.live.flower import KAsync

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
START = {
    "w": np.zeros((2, 3), np.float32),
    "running_mean": np.zeros(3, np.float32),
    "running_var": np.ones(3, np.float32),
    "num_batches_tracked": np.array(4, np.int64),
}
GOOD = {
    "w": np.ones((2, 3), np.float32),
    "running_mean": np.full(3, 2.0, np.float32),
    "running_var": np.full(3, 0.5, np.float32),
    "num_batches_tracked": np.array(9, np.int64),
}
COUNT = {"num-examples": 4}


def reply(message: Message, arrays: dict, metrics: dict | None = COUNT, **records) -> list[Message]:
    held = {name: array if isinstance(array, Array) else Array(np.asarray(array)) for name, array in arrays.items()}
    content = RecordDict({"arrays": ArrayRecord(held), **records})
    if metrics is not None:
        content["metrics"] = MetricRecord(metrics)
    return [Message(content, reply_to=message)]


def stored(array: np.ndarray, dtype: str, shape: tuple[int, ...] | None = None, pickle: bool = False) -> Array:
    """An array that announces what it is told to."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickle)
    return Array(dtype, array.shape if shape is None else shape, "numpy.ndarray", file.getvalue())


def bfloat16(array: np.ndarray) -> Array:
    upper = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return stored(upper.view(np.dtype("V2")), "bfloat16")


OTHER_TYPES = itertools.cycle([GOOD["w"].astype(np.float64), GOOD["w"].astype(np.float16), bfloat16(GOOD["w"])])
Case = tuple[Callable[[Message], list[Message]], str, str]
CASES: dict[str, Case] = {  # a row of the table -> the reply, how it ends, what the log says
    "the trained `state_dict` and `num-examples`": (lambda m: reply(m, GOOD), "accepted", ""),
    "float64, float16 or bfloat16 for float32": (
        lambda m: reply(m, {**GOOD, "w": next(OTHER_TYPES)}),
        "accepted",
        "",
    ),
    "arrays in Fortran's order or the other byte order": (
        lambda m: reply(m, {**GOOD, "w": np.asfortranarray(GOOD["w"]).astype(">f4")}),
        "accepted",
        "",
    ),
    "counters as floats": (lambda m: reply(m, {**GOOD, "num_batches_tracked": np.array(9.0)}), "accepted", ""),
    "no loss": (lambda m: reply(m, GOOD), "accepted", ""),
    "more metrics, lists among them": (lambda m: reply(m, GOOD, {**COUNT, "per class": [1.0, 2.0]}), "accepted", ""),
    "a `ConfigRecord` beside": (lambda m: reply(m, GOOD, notes=ConfigRecord({"host": "a"})), "accepted", ""),
    "no `num-examples`": (lambda m: reply(m, GOOD, {"train_loss": 1.0}), "refused", "reports no 'num-examples'"),
    "no metrics at all": (lambda m: reply(m, GOOD, None), "refused", "reports no 'num-examples'"),
    "no examples, or fewer": (lambda m: reply(m, GOOD, {"num-examples": 0}), "refused", "reports 0.0 examples"),
    "a loss that is NaN": (
        lambda m: reply(m, GOOD, {**COUNT, "train_loss": float("nan")}),
        "refused",
        "reports a loss of nan",
    ),
    "NaN or infinity in an array": (
        lambda m: reply(m, {**GOOD, "w": GOOD["w"] * np.nan}),
        "refused",
        "a value that is not finite",
    ),
    "NaN in a running mean": (
        lambda m: reply(m, {**GOOD, "running_mean": GOOD["running_mean"] * np.inf}),
        "refused",
        "a buffer that is not finite",
    ),
    "a negative running variance": (
        lambda m: reply(m, {**GOOD, "running_var": -GOOD["running_var"]}),
        "refused",
        "has a negative variance",
    ),
    "an array of another shape": (lambda m: reply(m, {**GOOD, "w": np.ones((3, 2), np.float32)}), "refused", "shape"),
    "whole numbers for a parameter": (lambda m: reply(m, {**GOOD, "w": np.ones((2, 3), int)}), "refused", "'int64'"),
    "complex numbers": (lambda m: reply(m, {**GOOD, "w": GOOD["w"].astype(complex)}), "refused", "'complex128'"),
    "an array too few": (lambda m: reply(m, {"w": GOOD["w"]}), "refused", "it has no array 'running_mean'"),
    "an array too many": (lambda m: reply(m, {**GOOD, "v": np.ones(2)}), "refused", "array 'v' that the model has not"),
    "two `ArrayRecord`s": (
        lambda m: reply(m, GOOD, more=ArrayRecord({"w": Array(GOOD["w"])})),
        "refused",
        "it has 2 array records",
    ),
    "a step longer than `max_norm`": (lambda m: reply(m, {**GOOD, "w": GOOD["w"] * 1e6}), "refused", "max_norm"),
    "pickled objects": (
        lambda m: reply(m, {**GOOD, "w": stored(np.array([{}] * 6).reshape(2, 3), "float32", pickle=True)}),
        "refused",
        "it holds objects",
    ),
    "bytes that are no array, or too many": (
        lambda m: reply(m, {**GOOD, "w": Array("float32", (2, 3), "numpy.ndarray", b"\0" * 10_000)}),
        "refused",
        "takes 10000 bytes",
    ),
    "an exception": (crashed, "failed", "is asked again"),
    "the same reply twice": (lambda m: reply(m, GOOD) + reply(m, GOOD), "duplicate", "came twice"),
}


def ran(answer: Callable[[Message], list[Message]], rounds: int = 6) -> tuple[KAsync, ArrayRecord]:
    """Nodes 0 and 1 answer so, two others as they should."""

    def reply_of(message: Message) -> list[Message]:
        return answer(message) if message.metadata.dst_node_id < 2 else reply(message, GOOD)

    strategy = KAsync(rules.fedasync(1.0), k=2, poll=0.002, max_norm=1000.0, offences=1, rest=0.0)
    start = ArrayRecord({name: Array(array) for name, array in START.items()})
    return strategy, strategy.start(FakeGrid(range(4), reply_of), start, rounds).arrays


@pytest.mark.parametrize("row", CASES)
def test_a_reply_ends_as_the_table_says_and_the_model_is_sound(row, caplog):
    answer, ends, says = CASES[row]
    strategy, arrays = ran(answer)
    tally = strategy.run.federation.tally
    assert tally.get(ends, 0) > 0, tally
    if ends == "accepted":
        assert {client.used > 0 for client in strategy.run.federation} == {True}
        assert not {"refused", "failed"} & set(tally)
    elif ends == "refused":
        assert [client.aside for client in strategy.run.federation] == [True, True, False, False]
    assert says in caplog.text
    np.testing.assert_allclose(arrays["w"].numpy(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(arrays["running_mean"].numpy(), 2.0, rtol=1e-6)
    np.testing.assert_allclose(arrays["running_var"].numpy(), 0.5, rtol=1e-6)
    assert arrays["num_batches_tracked"].numpy() == 9
    assert {name: arrays[name].dtype for name in START} == {n: str(array.dtype) for n, array in START.items()}


def test_every_row_of_the_page_is_tried_and_says_what_was_seen():
    table = PAGE.read_text().split("## What your")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", table, re.M))
    words = {"accepted": "used", "refused": "refused", "failed": "asked again", "duplicate": "used once"}
    for row, (_, ends, _) in CASES.items():
        assert words[ends] in rows[row], row
    listed = [row for row in rows if row not in ("your ClientApp returns", "---")]
    assert sorted(listed) == sorted([*CASES, *OTHER_MODELS])
    assert {rows[row] for row in OTHER_MODELS} == {"used"}


def test_arrays_of_several_types_each_keep_their_own():
    types = {"a": "float32", "b": "float16", "c": "float64", "running_mean": "float16", "seen": "int32", "on": "bool"}

    def answer(message: Message) -> list[Message]:
        got = {name: message.content["arrays"][name].numpy() for name in types}
        assert {name: str(array.dtype) for name, array in got.items()} == types
        return reply(message, {n: ~a if n == "on" else np.asarray(a + np.ones_like(a)) for n, a in got.items()})

    start = ArrayRecord({name: Array(np.zeros(2, dtype)) for name, dtype in types.items()})
    strategy = KAsync(rules.fedbuff(1.0), k=2, poll=0.002, shortage="wait")
    arrays = strategy.start(FakeGrid(range(2), answer), start, 5).arrays
    assert {name: array.dtype for name, array in arrays.items()} == types
    for name, array in arrays.items():
        np.testing.assert_array_equal(array.numpy(), 1 if name == "on" else 5, err_msg=name)


def test_scikit_learns_coefficients_travel_as_they_are():
    linear = pytest.importorskip("sklearn.linear_model")
    draw = np.random.default_rng(0)
    truth = draw.normal(size=8)

    def answer(message: Message) -> list[Message]:
        inputs = draw.normal(size=(200, 8))
        model = linear.SGDClassifier(loss="log_loss", random_state=0)
        labels = (inputs @ truth > 0).astype(int)
        coef, intercept = (message.content["arrays"][name].numpy().copy() for name in ("coef_", "intercept_"))
        model.fit(inputs, labels, coef_init=coef, intercept_init=intercept)
        arrays = {"coef_": Array(model.coef_), "intercept_": Array(model.intercept_)}
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 200})}
        return [Message(RecordDict(content), reply_to=message)]

    start = ArrayRecord({"coef_": Array(np.zeros((1, 8))), "intercept_": Array(np.zeros(1))})
    arrays = KAsync(rules.fedbuff(0.5), k=2, poll=0.002).start(FakeGrid(range(4), answer), start, 8).arrays
    found = arrays["coef_"].numpy()
    assert found.dtype == np.float64
    cosine = float(found[0] @ truth / np.linalg.norm(found) / np.linalg.norm(truth))
    assert cosine > 0.95


OTHER_MODELS = {  # a row of the table that needs another model -> its test
    "scikit-learn's `coef_` and `intercept_`": test_scikit_learns_coefficients_travel_as_they_are,
    "a model of several types": test_arrays_of_several_types_each_keep_their_own,
}
