"""CIFAR-10 from its official binary or python batches, in a folder or still inside their archive.

A pickle is a program, so it is not simply run. Its instructions are listed first: only those that build plain values
are let through, each checked against the bytes that are there. Then it runs with stand-ins in place of numpy's
functions, which note their arguments and do nothing, and the array is made from what was noted.
"""

import io
import pickle
import pickletools
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kasync.data.cache import cached
from kasync.data.dataset import Dataset, Samples
from kasync.data.files import broken, find, missing, open_plain, read_exactly, refusing

PLAIN = frozenset(
    {
        *("PROTO", "STOP", "FRAME", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
        *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
        *("PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "MEMOIZE"),
    }
)
FEW = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"})
AT_MOST = 64  # of the instructions in FEW: an honest batch has about a dozen, and deep nests of them are a weapon
PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


@dataclass
class Noted:
    """A stand-in for anything the pickle calls: what it was called with, and the state it was given."""

    arguments: tuple[Any, ...]
    state: Any = field(default=None)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Subtype:
    """Stands for numpy.ndarray, which is only ever an argument."""


def _note(*arguments: Any) -> Noted:
    return Noted(arguments)


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _note,
    ("numpy._core.multiarray", "_reconstruct"): _note,
    ("numpy", "dtype"): _note,
    ("numpy", "ndarray"): Subtype,
}


class ArraysOnly(pickle.Unpickler):
    """Knows the stand-ins and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays are allowed")
        return STAND_INS[module, name]


def read_pickle(content: bytes, path: Path | str) -> tuple[NDArray[np.uint8], list[Any]]:
    """The data uint8 [N, 3072] and the list of labels of one pickled batch."""
    expected = "a pickled CIFAR-10 batch"
    with refusing(
        path, expected, Exception
    ):  # a malformed pickle raises nearly anything; it is data, so all are refused
        _check_instructions(content)
        batch = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise broken(path, expected, "it holds no dictionary")
        data, labels = (batch.get(key.encode(), batch.get(key)) for key in ("data", "labels"))
        if not isinstance(labels, list):
            raise broken(path, expected, "its labels are no list")
        return _array(data), labels


def _check_instructions(content: bytes) -> None:
    """Every instruction is an allowed one and has its bytes; none is run."""
    seen: Counter[str] = Counter()
    for instruction, argument, _ in pickletools.genops(content):
        name = instruction.name
        if name not in PLAIN and name not in FEW:
            raise pickle.UnpicklingError(f"it uses the instruction {name}, which no batch needs")
        if name in PUTS and (
            argument is None or int(argument) > len(content)
        ):  # the unpickler would make room for as many
            raise pickle.UnpicklingError(f"it remembers a value at {argument}")
        seen[name] += 1
    if sum(seen[name] for name in FEW) > AT_MOST:
        raise pickle.UnpicklingError("it builds more objects than a batch has")


def _array(noted: Any) -> NDArray[np.uint8]:
    """The array that numpy would have made of this, for the one kind of array there may be."""
    _, shape, kind, by_columns, raw = noted.state
    if kind.arguments[0] not in ("u1", b"u1") or by_columns or len(shape) != 2 or shape[1] != 3072:
        raise pickle.UnpicklingError("its data is not uint8 [N, 3072] by rows")
    if not isinstance(raw, bytes) or len(raw) != shape[0] * shape[1]:
        raise pickle.UnpicklingError("its data has not the size it says")
    return np.frombuffer(raw, np.uint8).reshape(shape[0], shape[1])


BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
PICTURE = 3 * 32 * 32
LARGEST_BATCH = 64 << 20  # bytes; the official ones have 31 million
LARGEST_ARCHIVE = 256 << 20  # bytes unpacked; the official ones have 187 million
LAYOUTS = (("cifar-10-batches-bin", ".bin"), ("cifar-10-batches-py", ""))  # a folder, and how its batches' names end
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-binary.tar", "cifar-10-python.tar.gz", "cifar-10-python.tar")


def load(places: Sequence[Path]) -> Dataset:
    """The 50,000 training and 10,000 test pictures, uint8 [N, 3, 32, 32] in red, green, blue."""
    files = _find_batches(places)
    if files:
        return cached("cifar10", files, lambda: read_folder(files))
    archive = find(places, ("cifar10",), ARCHIVES)
    if archive is not None:
        return cached("cifar10", [archive], lambda: read_archive(archive))
    wanted = (
        "the folder cifar-10-batches-bin or cifar-10-batches-py, or cifar-10-binary.tar.gz or cifar-10-python.tar.gz"
    )
    raise missing("cifar10", places, wanted)


def read_folder(files: Iterable[Path]) -> Dataset:
    """One file per batch."""
    contents = {}
    for file in files:
        with file.open("rb") as stream:
            contents[str(file)] = bytes(_read_batch(stream, file.stat().st_size, file))
    return decode(contents)


def read_archive(archive: Path) -> Dataset:
    """The batches as members of a tar archive, read one after the other; nothing is unpacked to disk."""
    expected = "an archive of the six CIFAR-10 batches"
    contents = {}
    errors = (tarfile.TarError, ValueError, OverflowError, RecursionError)
    with refusing(archive, expected, *errors), open_plain(archive) as unpacked:
        bounded = Bounded(unpacked, LARGEST_ARCHIVE)
        with tarfile.open(fileobj=bounded, mode="r|") as members:  # type: ignore[call-overload]
            for member in members:
                stream = members.extractfile(member) if member.isreg() else None
                name = Path(member.name).name
                if stream is not None and name.removesuffix(".bin") in BATCHES:
                    contents[f"{archive}/{name}"] = bytes(_read_batch(stream, member.size, f"{archive}/{name}"))
    return decode(contents, archive)


class Bounded:
    """A stream that refuses to give more than a number of bytes, whatever was packed into it."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self.stream, self.left = stream, limit

    def read(self, count: int) -> bytes:
        content = self.stream.read(min(count, self.left + 1))
        self.left -= len(content)
        if self.left < 0:
            raise ValueError(f"it unpacks to more than {LARGEST_ARCHIVE >> 20} MB")
        return content


def decode(contents: dict[str, bytes], archive: Path | None = None) -> Dataset:
    """The dataset of six batches' bytes under the names of their files."""
    parts = {Path(path).name.removesuffix(".bin"): _records(content, path) for path, content in contents.items()}
    for batch in BATCHES:
        if batch not in parts:
            raise broken(archive or "cifar10", "an archive of the six CIFAR-10 batches", f"{batch} is not in it")
    count = len(parts[BATCHES[0]][1])
    for path in contents:
        found = len(parts[Path(path).name.removesuffix(".bin")][1])
        if found != count:  # a file cut between two pictures shows only here
            raise broken(path, f"a batch of {count} pictures like {BATCHES[0]}", f"it has {found}")
    train, test = (
        Samples(np.concatenate([parts[b][0] for b in names]), np.concatenate([parts[b][1] for b in names]))
        for names in (BATCHES[:5], BATCHES[5:])
    )
    form = "binary" if next(iter(contents)).endswith(".bin") else "python"
    return Dataset("cifar10", train, test, 10, f"CIFAR-10 ({form} batches)")


def _find_batches(places: Sequence[Path]) -> list[Path]:
    """The six files of the first folder that has the first of them; none if there is no such folder."""
    for folder, end in LAYOUTS:
        first = find(places, (f"cifar10/{folder}", folder, "cifar10"), [f"{BATCHES[0]}{end}"])
        if first is not None:
            files = [first.with_name(f"{batch}{end}") for batch in BATCHES]
            absent = [file for file in files if not file.is_file()]
            if absent:
                raise missing("cifar10", places, f"{absent[0].name} beside the other batches in {first.parent}")
            return files
    return []


def _read_batch(stream: IO[bytes], size: int, path: Path | str) -> bytearray:
    """The bytes of one batch, of a size a batch can have."""
    if size > LARGEST_BATCH:
        raise broken(path, "a CIFAR-10 batch", f"it has {size} bytes and a batch has 31 million")
    return read_exactly(stream, size)


def _records(content: bytes, path: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures uint8 [N, 3, 32, 32] and labels int64 [N] of one batch, binary (.bin) or pickled."""
    if path.endswith(".bin"):
        if not content or len(content) % (1 + PICTURE):
            raise broken(path, f"a CIFAR-10 batch of {1 + PICTURE}-byte records", f"it has {len(content)} bytes")
        table = np.frombuffer(content, np.uint8).reshape(-1, 1 + PICTURE)  # [N, 3073]
        pictures, labels = table[:, 1:], table[:, 0].astype(np.int64)
    else:
        pictures, values = read_pickle(content, path)
        if len(values) != len(pictures) or not all(type(value) is int and 0 <= value < 10 for value in values):
            raise broken(path, f"a CIFAR-10 batch with {len(pictures)} labels from 0 to 9", f"{len(values)} labels")
        labels = np.array(values, dtype=np.int64)
    if len(labels) == 0 or labels.max() > 9:
        raise broken(path, "a CIFAR-10 batch with labels from 0 to 9", f"labels up to {max(labels, default='none')}")
    return pictures.reshape(-1, 3, 32, 32), labels
