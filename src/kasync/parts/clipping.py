"""Parts that limit how long a gradient may be."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kasync import checks
from kasync.constants import constant, where
from kasync.core import Part, Step
from kasync.span import possible

TINY = sys.float_info.min  # to divide by instead of zero


def _limited(norms: Tensor, bound: Tensor | float) -> Tensor:
    """[K] factors that bring each norm down to the bound, and never up."""
    top = bound if isinstance(bound, Tensor) else constant(bound, norms.dtype, norms.device)
    return (top / norms.clamp(min=TINY)).clamp(max=1.0)  # what is nothing may be shortened to nothing


@dataclass(frozen=True)
class ClipNorms(Part):
    """g_i * min(1, max_norm / |g_i|)   (WKAFL, Algorithm 2 line 13)"""

    max_norm: float

    def __post_init__(self) -> None:
        checks.limit("max_norm", self.max_norm)

    def __call__(self, step: Step) -> Step:
        return step.shortened(_limited(step.norms(), self.max_norm))


@dataclass(frozen=True)
class ClipToEstimate(Part):
    """in stage two  g_i * min(1, ratio * |estimate| / |g_i|)   (WKAFL, Eq. 9)"""

    ratio: float
    reads: ClassVar[frozenset[str]] = frozenset({"estimate", "stage"})

    def __post_init__(self) -> None:
        checks.limit("ratio", self.ratio)

    def __call__(self, step: Step) -> Step:
        estimate = step.direction if step.estimate is None else step.estimate
        step = step.having(estimate=estimate)  # what follows compares with what was estimated before this clip
        late = step.stage == 2
        if not possible(late):
            return step
        factors = _limited(step.norms(), self.ratio * step.norms(estimate))
        return step.shortened(where(late, factors, 1.0))
