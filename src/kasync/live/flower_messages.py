"""Flower's messages: fetching replies without blocking, and reading their arrays as rows of parameters.

Flower's pull blocks while a reply is half uploaded, for minutes if its sender was killed. So pulling has a thread of
its own, and when a pull takes longer than `patience`, everything it asked for is followed one by one.

Nothing of a reply is decoded before its names, types, shapes and sizes are known. Arrays are in numpy's own format,
read where they lie and without pickles. The floating-point arrays that are trained are one vector of parameters [D];
buffers, which are whole numbers and the arrays whose names say so, are one vector [B] and are never differenced.
"""

from __future__ import annotations

import contextlib
import io
import logging
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from math import prod

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from kasync.errors import UserError
from kasync.live.deliveries import VARIANCES, Delivery, Failure, Garbage

log = logging.getLogger("kasync.live")
THREADS = 64  # that follow single replies
LOSSES = ("train_loss", "train-loss", "loss", "avg_trainloss", "train_loss_avg")
CLIENT_KEY = "client-key"
HEADER = 4096  # bytes that numpy's format may add to an array
WIDEST = 8  # bytes of a number
TRAINED = ("float16", "bfloat16", "float32", "float64")
COUNTED = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BUFFER_NAMES = ("*running_mean", "*running_var", "*num_batches_tracked", "*moving_mean", "*moving_variance")

with warnings.catch_warnings():  # torch says once that what lies in bytes must not be written to; nothing here does
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(bytes(4), np.uint8))


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of a model's arrays."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    kept: frozenset[str]  # the names of the buffers

    @classmethod
    def of(cls, arrays: Mapping[str, Tensor | NDArray], buffer_names: Sequence[str] = BUFFER_NAMES) -> Layout:
        """`buffer_names` are names of buffers, or patterns with * for any letters."""
        dtypes = {name: _type(array) for name, array in arrays.items()}
        odd = [name for name, dtype in dtypes.items() if dtype not in TRAINED + COUNTED]
        if odd:
            raise UserError(f"array {odd[0]!r} is {dtypes[odd[0]]}: a model's arrays are floats or whole numbers.")
        kept = frozenset(
            name
            for name, dtype in dtypes.items()
            if dtype in COUNTED or any(fnmatchcase(name, pattern) for pattern in buffer_names)
        )
        if len(kept) == len(arrays):
            raise UserError("initial_arrays has no floating-point array to train: pass the arrays of the model.")
        return cls({name: tuple(array.shape) for name, array in arrays.items()}, dtypes, kept)

    @property
    def trained(self) -> list[str]:
        return [name for name in self.shapes if name not in self.kept]

    @property
    def buffers(self) -> list[str]:
        return [name for name in self.shapes if name in self.kept]

    @property
    def variances(self) -> list[str]:
        return [name for name in self.buffers if name.endswith(VARIANCES)]

    @property
    def size(self) -> int:
        """D"""
        return sum(prod(self.shapes[name]) for name in self.trained)

    @property
    def dtype(self) -> torch.dtype:
        """float64 where a trained array is, so that nothing is lost; else float32."""
        return torch.float64 if "float64" in {self.dtypes[name] for name in self.trained} else torch.float32

    @property
    def rounded(self) -> bool:
        """Whether a trained array is sent in a narrower type than the server computes in."""
        return any(getattr(torch, self.dtypes[name]) != self.dtype for name in self.trained)

    def sent(self, vector: Tensor) -> Tensor:
        """[D] what clients get of these parameters [D], each array in its own type."""
        sizes = [self.numbers(name) for name in self.trained]
        parts = zip(self.trained, vector.split(sizes), strict=True)
        return torch.cat([part.to(getattr(torch, self.dtypes[name])).to(vector) for name, part in parts])

    def numbers(self, name: str) -> int:
        return prod(self.shapes[name])

    def wrong(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        """What is wrong with an array of this name, shape and type; an empty string for a sound one.

        Any floating-point type may stand for another, and any whole numbers for others; they are cast.
        """
        if name not in self.shapes:
            return f"it has an array {name[:80]!r} that the model has not"
        if tuple(shape) != self.shapes[name]:
            return f"its {name!r} has shape {list(shape)[:8]}, not {list(self.shapes[name])}"
        kinds = TRAINED + COUNTED if name in self.kept else TRAINED  # an average of counters is no whole number
        if dtype not in kinds:
            return f"its {name!r} is {dtype[:20]!r}, not {self.dtypes[name]}"
        return ""

    def vector(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """[D] the trained arrays, one after the other."""
        return torch.cat([arrays[name].reshape(-1).to(self.dtype) for name in self.trained])

    def buffer_vector(self, arrays: Mapping[str, Tensor]) -> Tensor | None:
        """[B] float64 the buffers, one after the other, where there are any."""
        if not self.kept:
            return None
        return torch.cat([arrays[name].reshape(-1).double() for name in self.buffers])

    def arrays(self, vector: Tensor, buffers: Tensor | None) -> dict[str, Tensor]:
        """The arrays whose trained ones are this vector [D], and whose others are these [B]."""
        places = {False: 0, True: 0}
        out: dict[str, Tensor] = {}
        for name, shape in self.shapes.items():
            kept = name in self.kept
            source = buffers if kept else vector
            assert source is not None
            end = places[kept] + prod(shape)
            part = source[places[kept] : end].detach().cpu().view(shape)
            places[kept] = end
            out[name] = _cast(part, self.dtypes[name])
        return out


def _type(array: Tensor | NDArray) -> str:
    return str(array.dtype).removeprefix("torch.")


def _cast(values: Tensor, dtype: str) -> Tensor:
    """In this type; whole numbers are rounded, not cut off."""
    wanted = getattr(torch, dtype)
    if dtype == "bool":
        return values >= 0.5
    return (values.round() if dtype in COUNTED else values).to(wanted)


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
    """A tensor as Flower sends it: the bytes that numpy.save would write, with one copy of the numbers."""
    bits = tensor.dtype == torch.bfloat16
    numbers = (
        tensor.contiguous().view(torch.uint16).numpy().view(np.dtype("V2")) if bits else tensor.contiguous().numpy()
    )
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(numbers))
    data = b"".join([file.getvalue(), numbers.reshape(-1).view(np.uint8).data])
    return Array("bfloat16" if bits else str(numbers.dtype), tuple(tensor.shape), "numpy.ndarray", data)


def _key(content: RecordDict) -> str | None:
    """Who sends this, by its own word, where it says so."""
    for record in content.config_records.values():
        if isinstance(record.get(CLIENT_KEY), str) and record[CLIENT_KEY]:
            return plain(record[CLIENT_KEY])
    return None


def plain(words: object) -> str:
    """What a stranger wrote, fit for one line of a log: nothing in it moves the cursor or begins a line."""
    return "".join(letter if letter.isprintable() else " " for letter in str(words)[:200])


class Mailbox:
    """Watches message ids and puts their replies into `replies`."""

    def __init__(self, grid: Grid, poll: float = 0.3, patience: float = 5.0) -> None:
        self.grid, self.poll, self.patience = grid, poll, patience
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.watched: set[str] = set()  # asked for in common
        self.followed: set[str] = set()  # asked for one by one
        self.fetched: deque[tuple[str, str]] = deque(maxlen=1000)  # the last ones
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="kasync-mailbox", daemon=True)

    def __enter__(self) -> Mailbox:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()

    def watch(self, message: str) -> None:
        with self.lock:
            self.watched.add(message)

    def forget(self, message: str) -> None:
        with self.lock:
            self.watched.discard(message)
            self.followed.discard(message)

    def take(self, timeout: float) -> list[Message]:
        """The replies that are here, waiting a while for the first."""
        taken = []
        try:
            taken.append(self.replies.get(timeout=timeout))
            while True:
                taken.append(self.replies.get_nowait())
        except queue.Empty:
            return taken

    def _watch(self) -> None:
        while not self.closed.wait(self.poll):
            with self.lock:
                asked = set(self.watched)
            if not asked:
                continue
            pull = threading.Thread(target=self._pull, args=(asked,), name="kasync-pull", daemon=True)
            pull.start()
            pull.join(self.patience)
            if pull.is_alive():
                self._follow(asked)

    def _follow(self, asked: set[str]) -> None:
        """Something among these is stuck: from now on, ask for each alone."""
        with self.lock:
            stuck = sorted(asked & self.watched)
            self.watched -= asked
            self.followed |= set(stuck)
        log.warning("a reply takes long to fetch; %d outstanding replies are fetched one by one", len(stuck))
        for first in range(min(THREADS, len(stuck))):
            threading.Thread(target=self._ask, args=(stuck[first::THREADS],), name="kasync-follow", daemon=True).start()

    def _ask(self, messages: list[str]) -> None:
        left = list(messages)
        while left and not self.closed.wait(self.poll):
            for message in left:
                self._pull({message})
            with self.lock:
                left = [message for message in left if message in self.followed]

    def _pull(self, asked: Iterable[str]) -> None:
        try:
            found = list(self.grid.pull_messages(list(asked)))
        except Exception as problem:  # the SuperLink may be away for a while
            log.warning("replies cannot be fetched (%s: %s); trying again", type(problem).__name__, problem)
            time.sleep(self.poll)
            return
        for message in found:
            about = message.metadata.reply_to_message_id
            name = (about, message.metadata.message_id)
            with self.lock:
                self.watched.discard(about)
                self.followed.discard(about)
                known = name in self.fetched
                self.fetched.append(name)
            if not known:  # else it was fetched twice, not sent twice
                self.replies.put(message)
