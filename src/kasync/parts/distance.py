"""Parts that weigh a gradient by how far, or where, the model has moved since it was computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, ServerState, Step
from kasync.parts.compensation import gaps


@dataclass(frozen=True)
class GapPart(Part):
    """A part that brings the rows w - start_i into the span."""

    needs_starts: ClassVar[bool] = True

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {} if arrivals.starts is None else {"gaps": gaps(server, arrivals)}

    def gaps(self, step: Step) -> Tensor | None:
        """[K, B] the rows w - start_i, None where every client started from w."""
        return step.unit("gaps") if step.has("gaps") else None


@dataclass(frozen=True)
class DiscountDistance(GapPart):
    """weights_i * softness / (|w - start_i| / |g_i| + softness)   (AsyncFedED)"""

    softness: float = 1.0

    def __post_init__(self) -> None:
        checks.above("softness", self.softness, 0.0)

    def __call__(self, step: Step) -> Step:
        rows = self.gaps(step)
        if rows is None:
            return step
        gap, length = step.norms(rows), step.norms()
        weights = self.softness * length / where(gap + length > 0, gap + self.softness * length, 1.0)
        return step.weighed(step.weights * weights)


@dataclass(frozen=True)
class WeighByAgeAndDirection(GapPart):
    """weights ~ m_i (age b / (s_i + b) + agreement (1 + cos(-g_i, w - start_i)) / 2)   (PORT)

    The cosine counts as 1 for what is at most one step stale.
    """

    bound: float = 10.0
    age: float = 3.0
    agreement: float = 1.0

    def __post_init__(self) -> None:
        checks.above("bound", self.bound, 0.0)
        checks.at_least("age", self.age, 0.0)
        checks.at_least("agreement", self.agreement, 0.0)

    def __call__(self, step: Step) -> Step:
        rows, cosines = self.gaps(step), torch.ones_like(step.staleness)
        if rows is not None:
            inner = (step.coefficients * (rows @ step.gram)).sum(-1)  # [K]
            lengths = step.norms() * step.norms(rows)
            cosines = -inner / where(lengths > 0, lengths, torch.inf)
            cosines = where(step.staleness <= 1, 1.0, cosines)
        scores = self.age * self.bound / (step.staleness + self.bound) + self.agreement * (1.0 + cosines) / 2.0
        return step.weighed(step.averaged(step.batch_sizes * scores.clamp(min=0.0)))
