"""Damaged arrays of numbers: wrong shapes, types or values, or a pickle in disguise."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import torch
from mutations import Canary


def spoilt_array(draw: Random, array: np.ndarray, canary: Path) -> np.ndarray:
    """Another shape, another type, other numbers; or a pickle in the guise of an array."""
    if array.dtype.kind not in "uif" or array.size == 0 or array.ndim == 0:
        return array  # it is spoilt already
    match draw.randrange(7):
        case 0:
            return array[: draw.randrange(len(array) + 1)]
        case 1:
            kind = draw.choice(("int8", "int64", "float16", "float64", "bool", "complex64", "S3", "datetime64[s]"))
            return array.astype(kind) if kind != "datetime64[s]" else array.astype("int64").astype(kind)
        case 2:
            return array.reshape(draw.choice(((-1,), (1, -1), (-1, 1), (1, 1, -1))))
        case 3:
            changed = array.astype("float64")
            changed.flat[draw.randrange(changed.size)] = draw.choice((np.nan, np.inf, -1, 2**31, 1e18, 3))
            return changed if array.dtype.kind == "f" or draw.random() < 0.3 else changed.astype("int64")
        case 4:
            changed = array.copy()
            changed.flat[draw.randrange(changed.size)] = draw.choice((0, 1, 5, 6, 100))
            return changed
        case 5:
            return np.array([Canary(canary)], dtype=object)
        case _:
            return np.array(draw.choice((0, 1.5, "text")))


def spoilt_tensor(draw: Random, tensor: torch.Tensor) -> torch.Tensor:
    match draw.randrange(5):
        case 0:
            kinds = (torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)
            return tensor.to(draw.choice(kinds))
        case 1:
            return tensor.reshape(-1)[: draw.randrange(tensor.numel() + 1)].clone()
        case 2:
            return torch.full_like(tensor, draw.choice((0, 1, 100)))
        case 3:
            return tensor.reshape(1, -1).clone()
        case _:
            return torch.zeros(0, dtype=tensor.dtype)
