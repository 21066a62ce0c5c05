"""Small tensors that are the same in every step, made once: on a GPU, making one anew costs as much as using it.

They are shared, so they are never written to, and never handed out: see `owned`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_shared: set[int] = set()  # ids of the tensors below; a tensor with the id of one let go is copied for nothing


def _kept(value: Tensor) -> Tensor:
    _shared.add(id(value))
    return value


def owned(value: Tensor) -> Tensor:
    """The value, or a copy of it where it is one of the shared ones."""
    return value.clone() if id(value) in _shared else value


def all_owned(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same for many values, some of which are no tensors."""
    return {k: v.clone() if id(v) in _shared and isinstance(v, Tensor) else v for k, v in values.items()}


@functools.lru_cache(maxsize=1024)
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[] this number."""
    return _kept(torch.tensor(value, dtype=dtype, device=device))


@functools.lru_cache(maxsize=1024)
def filled(value: float, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[length] this number, again and again."""
    return _kept(torch.full((length,), value, dtype=dtype, device=device))


@functools.lru_cache(maxsize=1024)
def eye(rows: int, columns: int, device: torch.device) -> Tensor:
    """[rows, columns] float64 with ones on the diagonal."""
    return _kept(torch.eye(rows, columns, dtype=torch.float64, device=device))


@functools.lru_cache(maxsize=1024)
def units(start: int, stop: int, size: int, device: torch.device) -> Tensor:
    """[stop - start, size] float64, these rows of the identity."""
    return _kept(eye(size, size, device)[start:stop])


@functools.lru_cache(maxsize=1024)
def column(values: tuple[float, ...], device: torch.device) -> Tensor:
    """[n, 1] float64 these numbers."""
    return _kept(torch.tensor(values, dtype=torch.float64, device=device)[:, None])


def where(condition: Tensor, one: Tensor | float, other: Tensor | float) -> Tensor:
    """torch.where, whose plain numbers become tensors once and not in every step."""
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor):
            other = constant(other, one.dtype, one.device)
    elif isinstance(other, Tensor):
        one = constant(one, other.dtype, other.device)
    else:
        one = constant(one, torch.float64, condition.device)
        other = constant(other, torch.float64, condition.device)
    return torch.where(condition, one, other)
