"""Calls of the compiled library, for rows that it takes.

The library is built from _kernel.c and _kernel_layers.c when the package is installed, where there is a compiler;
without it, and for what it does not take, kasync.span and kasync.work.layers compute the same with torch.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = 4  # of the functions in the library; one left over from another version is not called
MOST_ROWS = 256  # beyond it a matrix product, which packs its operands first, may be faster
LEVELS = ("any", "AVX2", "AVX-512")  # instructions the library was built for, in the order of _kernel.c
TYPES = (torch.float32, torch.float64)
CPU = torch.device("cpu")

_long, _pointer = ctypes.c_long, ctypes.c_void_p
_rows = (_pointer, _long, _long, ctypes.c_int, _long)  # rows, count, width, is_double, threads
ARGUMENTS = {
    "kasync_gram": (*_rows, _pointer),
    "kasync_combine": (*_rows, _pointer, _long, _pointer, ctypes.c_double, _long, _pointer),
    "kasync_add_rows": (_pointer, _long, _long, _pointer, _long, _pointer),
    "kasync_convolve": (_pointer, _pointer, _pointer, _long, _pointer, _pointer),
    "kasync_weights": (_pointer, _pointer, _long, _long, _pointer, ctypes.c_int, _pointer),
    "kasync_dense": (_pointer, _pointer, _long, _long, _long, _long, ctypes.c_int, _pointer),
    "kasync_pool": (_pointer, _long, _long, _pointer),
    "kasync_unpool": (_pointer, _pointer, _pointer, _long, _long, _pointer),
}
NOT_FINITE = 2  # what kasync_combine returns where a row in doubt is not finite


class NotFinite(Exception):
    """Among rows that were taken to be finite one is not."""


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled functions, or None where they were not built."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernel{suffix}")
        if not path.exists():
            continue
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # built for another machine
            continue
        if hasattr(library, "kasync_version") and library.kasync_version() == VERSION:
            for name, kinds in ARGUMENTS.items():
                getattr(library, name).argtypes = kinds
            return library
    return None


def available() -> bool:
    """Whether the library was built and can be called here."""
    return _library() is not None


def instructions(limit: str | None = None) -> str:
    """Which of LEVELS is used from now on: the best this processor has, up to the limit (the same bits everywhere)."""
    library = _library()
    return "none" if library is None else LEVELS[library.kasync_level(-1 if limit is None else LEVELS.index(limit))]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows [n, D] of a table, where they lie."""

    table: Tensor  # [all, D]
    chosen: Sequence[int]  # [n]

    def __len__(self) -> int:
        return len(self.chosen)

    def gathered(self) -> Tensor:
        """[n, D] a copy of them, in one piece."""
        return self.table[list(self.chosen)]


Block = Tensor | Rows


def fits(blocks: Sequence[Block]) -> bool:
    """Whether the kernel takes these blocks [n, D]: on the CPU, of one type, each row in one piece, not too many."""
    if not blocks or _library() is None:
        return False
    first, rows = _table(blocks[0]), 0
    dtype, width = first.dtype, first.shape[-1]
    for block in blocks:
        table = _table(block)
        shape = table.shape
        if not (
            table.is_cpu
            and table.dtype == dtype
            and len(shape) == 2
            and shape[1] == width
            and (width < 2 or table.stride(1) == 1)
            and not (table.requires_grad and torch.is_grad_enabled())
        ):
            return False
        rows += shape[0] if table is block else length(block)
    return dtype in TYPES and rows <= MOST_ROWS


def fits_start(start: Tensor, blocks: Sequence[Block]) -> bool:
    """Whether `combine` takes this vector [D] to start from: on the CPU, in one piece, of the type of the rows."""
    first = _table(blocks[0])
    known = start.is_cpu and start.dtype == first.dtype and start.shape == first.shape[1:] and start.is_contiguous()
    return known and not (start.requires_grad and torch.is_grad_enabled())


def gram(blocks: Sequence[Block]) -> Tensor:
    """R R^T for the rows R of blocks that fit.  [n, D] ... -> [B, B] float64"""
    rows = _places(blocks)
    result = torch.empty(len(rows), len(rows), dtype=torch.float64)
    _call("kasync_gram", rows, _table(blocks[0]), result.data_ptr())
    return result


def combine(
    coefficients: Tensor, blocks: Sequence[Block], start: Tensor | None = None, rate: float = 1.0, doubtful: int = 0
) -> Tensor:
    """coefficients @ R for the rows R of blocks that fit.  [n, B] -> [n, D], or [B] -> [D]

    With a start [D] the first of them is start - rate * (coefficients @ R) instead. A row whose coefficients are all
    zero is not read, but for the first `doubtful` rows, of which nobody knows whether they are finite: if they are not,
    NotFinite is raised.
    """
    rows, shape, first = _places(blocks), coefficients.shape, _table(blocks[0])
    if shape[-1] != len(rows):
        raise ValueError(f"coefficients {list(shape)}: need one column for each of {len(rows)} rows")
    if not (coefficients.dtype == torch.float64 and coefficients.is_cpu and coefficients.is_contiguous()):
        coefficients = coefficients.to(CPU, torch.float64).contiguous()
    columns, number = first.shape[1], 1 if len(shape) == 1 else shape[0]
    result = first.new_empty(columns if len(shape) == 1 else (number, columns))
    table, begin = coefficients.data_ptr(), None if start is None else start.data_ptr()
    _call("kasync_combine", rows, first, table, number, begin, rate, doubtful, result.data_ptr())
    return result


def fits_sum(blocks: Sequence[Block]) -> bool:
    """Whether `add_rows` takes these blocks: as `fits`, and in float32."""
    return fits(blocks) and _table(blocks[0]).dtype == torch.float32


def add_rows(coefficients: Tensor, blocks: Sequence[Block], out: Tensor) -> None:
    """out [D] float64 += coefficients [B] @ R for the rows R of blocks that fit, every product and sum in float64."""
    rows = addresses(blocks)
    factors = coefficients.to("cpu", torch.float64).contiguous()
    call("kasync_add_rows", rows, len(rows), len(out), factors.data_ptr(), torch.get_num_threads(), out.data_ptr())


def addresses(blocks: Sequence[Block], column: int = 0) -> ctypes.Array[ctypes.c_void_p]:
    """[B] where this column of each row is."""
    places = _places(blocks, column)
    return (_pointer * len(places)).from_buffer(places)


def _places(blocks: Sequence[Block], column: int = 0) -> array[int]:
    """[B] the same as numbers, which must live as long as they are used."""
    places = array("Q")
    for block in blocks:
        table = block if isinstance(block, Tensor) else block.table
        size = table.element_size()
        start, stride = table.data_ptr() + column * size, table.stride(0) * size
        if isinstance(block, Rows):
            places.extend([start + row * stride for row in block.chosen])
        elif stride:
            places.extend(range(start, start + table.shape[0] * stride, stride))
        else:
            places.extend([start] * table.shape[0])  # one row, again and again
    return places


def _table(block: Block) -> Tensor:
    return block if isinstance(block, Tensor) else block.table


def width(blocks: Sequence[Block]) -> int:
    """How many columns they have."""
    return _table(blocks[0]).shape[-1]


def length(values: Sized) -> int:
    """Its len, which for a tensor is a Python function that takes its time; a number in a tensor has none."""
    return values.shape[0] if isinstance(values, Tensor) and values.dim() else len(values)


def _call(name: str, rows: array[int], first: Tensor, *rest: float | None) -> None:
    """Call a function of rows at these places, which are like the first block's, with torch's number of threads."""
    place, count = rows.buffer_info()
    call(name, place, count, first.shape[1], first.dtype == torch.float64, torch.get_num_threads(), *rest)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library; Python's lock is free meanwhile."""
    result = getattr(_library(), name)(*arguments)
    if result == NOT_FINITE:
        raise NotFinite
    if result:
        raise MemoryError(f"no memory for {name}")
