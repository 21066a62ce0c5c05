"""What does a Flower reply hold? Nothing of it is decoded before its names, types, shapes and sizes are known good.

The arrays are numpy's own format and are read without pickles; what claims another format is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, RecordDict

from kasync.live.deliveries import Delivery, Failure, Garbage
from kasync.live.layout import Layout

LOSSES = ("train_loss", "train-loss", "loss", "avg_trainloss", "train_loss_avg")
HEADER = 4096  # bytes that numpy's format may add to an array


@dataclass(frozen=True)
class Reader:
    """Turns replies into deliveries."""

    layout: Layout
    examples_key: str
    loss_keys: Sequence[str] = LOSSES
    gradients: bool = False  # a gradient need not name the arrays that are not trained

    def read(self, message: Message) -> Delivery | Garbage | Failure:
        """What this reply brings."""
        if message.has_error():
            return Failure(f"error {message.error.code}: {plain(message.error.reason)}")
        try:
            return self._read(message.content)
        except Exception as problem:  # whatever a stranger's bytes make a decoder do, it costs one delivery
            return Garbage(f"it cannot be read ({type(problem).__name__}: {plain(problem)})")

    def _read(self, content: RecordDict) -> Delivery | Garbage:
        records = list(content.array_records.values())
        if len(records) != 1 or len(content.metric_records) > 1:
            return Garbage(f"it has {len(records)} array records and {len(content.metric_records)} metric records")
        wrong = self._wrong(records[0])
        if wrong:
            return Garbage(wrong)
        arrays = {}
        for name in self.layout.trained:
            array = records[0][name].numpy()
            wrong = self.layout.wrong(name, array.shape, str(array.dtype))  # what was announced may not be what came
            if wrong:
                return Garbage(wrong)
            arrays[name] = array
        metrics = dict(next(iter(content.metric_records.values()), {}))
        examples = metrics.get(self.examples_key, 1.0)
        loss = next((metrics[key] for key in self.loss_keys if key in metrics), None)
        if isinstance(examples, list) or isinstance(loss, list):
            return Garbage("it reports a list where one number is expected")
        return Delivery(self.layout.vector(arrays), None if loss is None else float(loss), float(examples), metrics)

    def _wrong(self, record: ArrayRecord) -> str:
        """What is wrong with the arrays, judged by what they announce and by how many bytes they are."""
        needed = self.layout.trained if self.gradients else self.layout.shapes
        missing = [name for name in needed if name not in record]
        if missing:
            return f"it has no array {missing[0]!r}"
        for name, array in record.items():
            wrong = self.layout.wrong(name, array.shape, array.dtype)
            if wrong:
                return wrong
            if array.stype != "numpy.ndarray":
                return f"its {name!r} is serialised as {array.stype[:40]!r}, not as numpy.ndarray"
            limit = self.layout.bytes_of(name) + HEADER
            if len(array.data) > limit:
                return f"its {name!r} takes {len(array.data)} bytes, more than {limit}"
        return ""


def plain(words: object) -> str:
    """What a stranger wrote, fit for one line of a log: nothing in it moves the cursor or begins a line."""
    return "".join(letter if letter.isprintable() else " " for letter in str(words)[:200])
