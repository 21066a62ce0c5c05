"""How is a pickled CIFAR-10 batch read without running it? Only arrays are allowed, and even those are stand-ins.

A pickle is a program. Its instructions are listed first, without being run: only those that build plain values are let
through, each checked against the bytes that are there. Then it runs with stand-ins in place of numpy's functions, which
note their arguments and do nothing, and the array is made from what was noted.
"""

import io
import pickle
import pickletools
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.data.files import broken, refusing

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
