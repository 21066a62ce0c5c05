"""Named arrays of a model as one vector of parameters [D] and one of buffers [B], and back.

Parameters are the floating-point arrays that are trained. Buffers are what a model carries beside them: whole numbers
(a counter of batches), and the arrays whose names say so (running means and variances). They are never differenced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync.errors import UserError

TRAINED = ("float16", "bfloat16", "float32", "float64")
COUNTED = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
VARIANCES = ("running_var", "moving_variance")  # ends of the names of buffers that are never negative
BUFFER_NAMES = ("*running_mean", "*running_var", "*num_batches_tracked", "*moving_mean", "*moving_variance")


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
