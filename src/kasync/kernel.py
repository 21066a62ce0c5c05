"""Calls of the compiled library, for rows that it takes.

The library, the module kasync._kernel, is built from _kernel*.c when the package is installed, where there is a
compiler; without it, and for what it does not take, kasync.span and kasync.work.layers compute the same with torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

VERSION = 5  # of the functions in the library; one left over from another version is not called
MOST_ROWS = 256  # beyond it a matrix product, which packs its operands first, may be faster
LEVELS = ("any", "AVX2", "AVX-512")  # instructions the library was built for, in the order of _kernel.c
TYPES = (torch.float32, torch.float64)
CPU = torch.device("cpu")

is_one_of_many = torch._C._functorch.is_batchedtensor  # inside torch.vmap

Places = tuple[int, int, int | Sequence[int]]  # of rows: the first one, bytes from one to the next, how many or which


class NotFinite(Exception):
    """Among rows that were taken to be finite one is not."""


@functools.cache
def library() -> Any:
    """The compiled functions, or None where they were not built; Python's lock is free while they compute."""
    try:
        found: Any = importlib.import_module("kasync._kernel")
    except ImportError:  # not built, or for another machine
        return None
    return found if found.VERSION == VERSION else None


def available() -> bool:
    """Whether the library was built and can be called here."""
    return library() is not None


def instructions(limit: str | None = None) -> str:
    """Which of LEVELS is used from now on: the best this processor has, up to the limit (the same bits everywhere)."""
    functions = library()
    return "none" if functions is None else LEVELS[functions.level(-1 if limit is None else LEVELS.index(limit))]


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


def fits(blocks: Sequence[Block], start: Tensor | None = None) -> bool:
    """Whether the kernel takes these blocks [n, D]: on the CPU, of one type, each row in one piece, not too many.

    And whether `combine` takes this vector [D] to start from: in one piece, and like the rows in everything else.
    """
    if not blocks or library() is None:
        return False
    first, rows = _table(blocks[0]), 0
    dtype, width = first.dtype, first.shape[-1]
    for block in blocks:
        table = block if isinstance(block, Tensor) else block.table
        shape = table.shape
        in_one_piece = len(shape) == 2 and shape[1] == width and (width < 2 or table.stride(1) == 1)
        if not in_one_piece or table.dtype is not dtype or _is_closed(table):
            return False
        rows += shape[0] if table is block else length(block)
    if start is not None:
        in_one_piece = start.shape == (width,) and start.is_contiguous()
        if not in_one_piece or start.dtype is not dtype or _is_closed(start):
            return False
    return dtype in TYPES and rows <= MOST_ROWS


def _is_closed(tensor: Tensor) -> bool:
    """Whether the kernel may not read it: not on the CPU, many runs' at once, or one that gradients flow through."""
    return not tensor.is_cpu or is_one_of_many(tensor) or (tensor.requires_grad and torch.is_grad_enabled())


def gram(blocks: Sequence[Block]) -> Tensor:
    """R R^T for the rows R of blocks that fit.  [n, D] ... -> [B, B] float64"""
    first, size = _table(blocks[0]), sum(map(length, blocks))
    result = torch.empty(size, size, dtype=torch.float64)
    wide = first.dtype is torch.float64
    library().gram(first.shape[1], wide, torch.get_num_threads(), result.data_ptr(), places(blocks))
    return result


def combine(
    coefficients: Tensor, blocks: Sequence[Block], start: Tensor | None = None, rate: float = 1.0, doubtful: int = 0
) -> Tensor:
    """coefficients @ R for the rows R of blocks that fit.  [n, B] -> [n, D], or [B] -> [D]

    With a start [D] the first of them is start - rate * (coefficients @ R) instead. A row whose coefficients are all
    zero is not read, but for the first `doubtful` rows, of which nobody knows whether they are finite: if they are not,
    NotFinite is raised.
    """
    if not (coefficients.dtype is torch.float64 and coefficients.is_cpu and coefficients.is_contiguous()):
        coefficients = coefficients.to(CPU, torch.float64).contiguous()
    first, shape = _table(blocks[0]), coefficients.shape
    width, number = first.shape[1], 1 if len(shape) == 1 else shape[0]
    result = first.new_empty(width if len(shape) == 1 else (number, width))
    finite = library().combine(
        width,
        first.dtype is torch.float64,
        torch.get_num_threads(),
        coefficients.data_ptr(),
        number,
        shape[-1],
        None if start is None else start.data_ptr(),
        rate,
        doubtful,
        result.data_ptr(),
        places(blocks),
    )
    if not finite:
        raise NotFinite
    return result


def fits_sum(blocks: Sequence[Block]) -> bool:
    """Whether `add_rows` takes these blocks: as `fits`, and in float32."""
    return fits(blocks) and _table(blocks[0]).dtype == torch.float32


def add_rows(coefficients: Tensor, blocks: Sequence[Block], out: Tensor) -> None:
    """out [D] float64 += coefficients [B] @ R for the rows R of blocks that fit, every product and sum in float64."""
    factors = coefficients.to("cpu", torch.float64).contiguous()
    library().add_rows(len(out), factors.data_ptr(), torch.get_num_threads(), out.data_ptr(), places(blocks))


def places(blocks: Sequence[Block], column: int = 0) -> list[Places]:
    """Where the library finds this column of each row; they must live as long as it is at work."""
    found: list[Places] = []
    for block in blocks:
        table, rows = (block, block.shape[0]) if isinstance(block, Tensor) else (block.table, block.chosen)
        size = table.element_size()
        found.append((table.data_ptr() + column * size, table.stride(0) * size, rows))
    return found


def _table(block: Block) -> Tensor:
    return block if isinstance(block, Tensor) else block.table


def width(blocks: Sequence[Block]) -> int:
    """How many columns they have."""
    return _table(blocks[0]).shape[-1]


def length(values: Sized) -> int:
    """Its len, which for a tensor is a Python function that takes its time; a number in a tensor has none."""
    return values.shape[0] if isinstance(values, Tensor) and values.dim() else len(values)
