"""How do named arrays become one vector, and back?

Floating-point arrays are trained and make up the vector [D], in the order of their names; whole numbers (a counter of
batches, say) are not, and stay as they were at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync.errors import UserError

TRAINED = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Layout:
    """Names, shapes and types of a model's arrays."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    fixed: Mapping[str, NDArray]  # what is not trained

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray]) -> Layout:
        fixed = {name: array for name, array in arrays.items() if str(array.dtype) not in TRAINED}
        odd = [name for name, array in fixed.items() if array.dtype.kind not in "iub"]
        if odd:
            raise UserError(f"array {odd[0]!r} is {fixed[odd[0]].dtype}: a model's arrays are floats or whole numbers.")
        if len(fixed) == len(arrays):
            raise UserError("initial_arrays has no floating-point array: pass the arrays of the model to train.")
        return cls(
            {name: tuple(array.shape) for name, array in arrays.items()},
            {name: str(array.dtype) for name, array in arrays.items()},
            fixed,
        )

    @property
    def trained(self) -> list[str]:
        return [name for name in self.shapes if name not in self.fixed]

    @property
    def size(self) -> int:
        """D"""
        return sum(prod(self.shapes[name]) for name in self.trained)

    @property
    def dtype(self) -> torch.dtype:
        """float64 where an array is, so that nothing is lost; else float32."""
        return torch.float64 if "float64" in self.dtypes.values() else torch.float32

    def bytes_of(self, name: str) -> int:
        """What the numbers of an array take."""
        return prod(self.shapes[name]) * np.dtype(self.dtypes[name]).itemsize

    def wrong(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        """What is wrong with an array of this name, shape and type; an empty string for a sound one."""
        if name not in self.shapes:
            return f"it has an array {name[:80]!r} that the model has not"
        if tuple(shape) != self.shapes[name]:
            return f"its {name!r} has shape {list(shape)[:8]}, not {list(self.shapes[name])}"
        if dtype != self.dtypes[name]:
            return f"its {name!r} is {dtype[:20]!r}, not {self.dtypes[name]}"
        return ""

    def vector(self, arrays: Mapping[str, NDArray]) -> Tensor:
        """[D] the trained arrays, one after the other."""
        kind = np.float64 if self.dtype == torch.float64 else np.float32
        out = np.empty(self.size, kind)
        place = 0
        for name in self.trained:
            end = place + prod(self.shapes[name])
            out[place:end] = arrays[name].reshape(-1)
            place = end
        return torch.from_numpy(out)

    def arrays(self, vector: Tensor) -> dict[str, NDArray]:
        """The arrays whose trained ones are this vector [D]."""
        values, place = vector.detach().cpu().numpy(), 0
        out: dict[str, NDArray] = {}
        for name, shape in self.shapes.items():
            if name in self.fixed:
                out[name] = self.fixed[name]
                continue
            end = place + prod(shape)
            out[name] = values[place:end].reshape(shape).astype(self.dtypes[name], copy=False)
            place = end
        return out
