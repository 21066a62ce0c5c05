"""Flower replies read as deliveries, without decoding anything before its names, types, shapes and sizes are known.

Arrays are numpy's own format, read where they lie and without pickles; what claims another format is refused.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import Tensor

from kasync.live.deliveries import Delivery, Failure, Garbage
from kasync.live.layout import Layout

LOSSES = ("train_loss", "train-loss", "loss", "avg_trainloss", "train_loss_avg")
CLIENT_KEY = "client-key"
HEADER = 4096  # bytes that numpy's format may add to an array
WIDEST = 8  # bytes of a number

with warnings.catch_warnings():  # torch says once that what lies in bytes must not be written to; nothing here does
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(bytes(4), np.uint8))


@dataclass(frozen=True)
class Reader:
    """Turns replies into deliveries."""

    layout: Layout
    examples_key: str | None  # None where every delivery counts the same
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
        arrays: dict[str, Tensor] = {}
        for name in records[0]:
            tensor = decoded(records[0][name])
            wrong = self.layout.wrong(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            if wrong:  # what was announced may not be what came
                return Garbage(wrong)
            arrays[name] = tensor
        for name in self.layout.variances:
            if name in arrays and bool((arrays[name] < 0.0).any()):  # a model that has one gives NaN
                return Garbage(f"its {name!r} has a negative variance")
        metrics = dict(next(iter(content.metric_records.values()), {}))
        examples = 1.0 if self.examples_key is None else metrics.get(self.examples_key)
        loss = next((metrics[key] for key in self.loss_keys if key in metrics), None)
        if examples is None:
            return Garbage(
                f"it reports no {self.examples_key!r}, by which deliveries are weighted; "
                f"report it, or pass weighted_by_key=None for equal weights"
            )
        if isinstance(examples, list) or isinstance(loss, list):
            return Garbage("it reports a list where one number is expected")
        whole = all(name in arrays for name in self.layout.buffers)
        return Delivery(
            [arrays[name] for name in self.layout.trained],
            None if loss is None else float(loss),
            float(examples),
            metrics,
            self.layout.buffer_vector(arrays) if whole else None,
            _key(content),
        )

    def _wrong(self, record: ArrayRecord) -> str:
        """What is wrong with the arrays, judged by what they announce and by how many bytes they are."""
        needed = self.layout.trained if self.gradients else self.layout.shapes
        missing = [name for name in needed if name not in record]
        if missing:
            return f"it has no array {missing[0]!r}"
        for name, array in record.items():
            wrong = self.layout.wrong(name, array.shape, announced(array.dtype))
            if wrong:
                return wrong
            if array.stype != "numpy.ndarray":
                return f"its {name!r} is serialised as {array.stype[:40]!r}, not as numpy.ndarray"
            limit = WIDEST * self.layout.numbers(name) + HEADER
            if len(array.data) > limit:
                return f"its {name!r} takes {len(array.data)} bytes, more than {limit}"
        return ""


def announced(dtype: str) -> str:
    """The name of a type, whatever its byte order."""
    if dtype[:1] in "<>|" and len(dtype) < 5:
        with contextlib.suppress(TypeError):
            return np.dtype(dtype).name
    return dtype


def decoded(array: Array) -> Tensor:
    """The numbers of an array, where they lie; the tensor must not be written to."""
    magic = array.data[:12]
    count = (
        int.from_bytes(magic[8:10], "little") + 10
        if magic[6:7] == b"\x01"
        else int.from_bytes(magic[8:], "little") + 12
    )
    if count > HEADER:  # so long only if somebody made it so
        raise ValueError(f"its header takes {count} bytes, more than {HEADER}")
    shape, fortran, dtype = header(array.data[:count])
    bits = array.dtype == "bfloat16"  # which numpy keeps as two bytes of no type
    found = np.frombuffer(array.data, np.uint16 if bits else dtype, offset=count)
    if bits and dtype.itemsize != 2:
        raise ValueError(f"{dtype} is no bfloat16")
    found = found.reshape(shape, order="F" if fortran else "C")
    tensor = torch.from_numpy(found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("=")))
    return tensor.view(torch.bfloat16) if bits else tensor


@lru_cache(maxsize=4096)
def header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type from the beginning of an array in numpy's format, the same bytes in every reply."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"numpy format {version} is not known")
    shape, fortran, dtype = read(file)
    if file.tell() != len(data):
        raise ValueError("its header has another length than it says")
    if dtype.hasobject:
        raise ValueError("it holds objects")
    return shape, fortran, dtype


def encoded(tensor: Tensor) -> Array:
    """A tensor as Flower sends it."""
    if tensor.dtype != torch.bfloat16:
        return Array(tensor.numpy())
    file = io.BytesIO()
    np.save(file, tensor.contiguous().view(torch.uint16).numpy().view(np.dtype("V2")), allow_pickle=False)
    return Array("bfloat16", tuple(tensor.shape), "numpy.ndarray", file.getvalue())


def _key(content: RecordDict) -> str | None:
    """Who sends this, by its own word, where it says so."""
    for record in content.config_records.values():
        if isinstance(record.get(CLIENT_KEY), str) and record[CLIENT_KEY]:
            return plain(record[CLIENT_KEY])
    return None


def plain(words: object) -> str:
    """What a stranger wrote, fit for one line of a log: nothing in it moves the cursor or begins a line."""
    return "".join(letter if letter.isprintable() else " " for letter in str(words)[:200])
