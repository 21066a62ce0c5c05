"""Is there a compiled kernel for these rows, and how is it called?

The library is built from _kernel.c and _kernel_layers.c when the package is installed, where there is a compiler;
without it, and for what it does not take, kasync.span and kasync.work.layers compute the same with torch.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = 3  # of the functions in the library; one left over from another version is not called
MOST_ROWS = 256  # beyond it a matrix product, which packs its operands first, may be faster
LEVELS = ("any", "AVX2", "AVX-512")  # instructions the library was built for, in the order of _kernel.c
TYPES = (torch.float32, torch.float64)

_long, _pointer = ctypes.c_long, ctypes.c_void_p
_rows = (_pointer, _long, _long, ctypes.c_int, _long)  # rows, count, width, is_double, threads
ARGUMENTS = {
    "kasync_gram": (*_rows, _pointer),
    "kasync_combine": (*_rows, _pointer, _long, _pointer),
    "kasync_convolve": (_pointer, _pointer, _pointer, _long, _pointer, _pointer),
    "kasync_weights": (_pointer, _pointer, _long, _long, _pointer, ctypes.c_int, _pointer),
    "kasync_dense": (_pointer, _pointer, _long, _long, _long, _long, ctypes.c_int, _pointer),
    "kasync_pool": (_pointer, _long, _long, _pointer),
    "kasync_unpool": (_pointer, _pointer, _pointer, _long, _long, _pointer),
}


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


def fits(blocks: Sequence[Tensor]) -> bool:
    """Whether the kernel takes these blocks [n, D]: on the CPU, of one type, each row in one piece, not too many."""
    if not blocks or _library() is None:
        return False
    dtype, width = blocks[0].dtype, blocks[0].shape[-1]
    return (
        dtype in TYPES
        and sum(len(block) for block in blocks) <= MOST_ROWS
        and not (torch.is_grad_enabled() and any(block.requires_grad for block in blocks))
        and all(
            block.device.type == "cpu"
            and block.dtype == dtype
            and block.dim() == 2
            and block.shape[1] == width
            and (width < 2 or block.stride(1) == 1)
            for block in blocks
        )
    )


def gram(blocks: Sequence[Tensor]) -> Tensor:
    """R R^T for the rows R of blocks that fit.  [n, D] ... -> [B, B] float64"""
    rows = _addresses(blocks)
    result = torch.empty(len(rows), len(rows), dtype=torch.float64)
    _call("kasync_gram", rows, blocks, result.data_ptr())
    return result


def combine(coefficients: Tensor, blocks: Sequence[Tensor]) -> Tensor:
    """coefficients @ R for the rows R of blocks that fit.  [n, B] -> [n, D]

    A row whose coefficients are all zero is not read.
    """
    rows = _addresses(blocks)
    if coefficients.dim() != 2 or coefficients.shape[1] != len(rows):
        raise ValueError(f"coefficients {list(coefficients.shape)}: need one column for each of {len(rows)} rows")
    table = coefficients.detach().to("cpu", torch.float64).contiguous()  # [n, B]
    result = blocks[0].new_empty(len(table), blocks[0].shape[1])
    _call("kasync_combine", rows, blocks, table.data_ptr(), len(table), result.data_ptr())
    return result


def _addresses(blocks: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """[B] where each row begins."""
    addresses: list[int] = []
    for block in blocks:
        start, stride = block.data_ptr(), block.stride(0) * block.element_size()
        addresses.extend(start + row * stride for row in range(len(block)))
    return (_pointer * len(addresses))(*addresses)


def _call(name: str, rows: ctypes.Array[ctypes.c_void_p], blocks: Sequence[Tensor], *rest: int) -> None:
    """Call a function of rows with as many threads as torch uses."""
    first = blocks[0]
    is_double = first.dtype == torch.float64
    call(name, rows, len(rows), first.shape[1], is_double, torch.get_num_threads(), *rest)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library; Python's lock is free meanwhile."""
    if getattr(_library(), name)(*arguments):
        raise MemoryError(f"no memory for {name}")
