"""Robust aggregation: parts that limit the influence of a few faulty or hostile gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, ServerState, Step


@dataclass(frozen=True)
class PickCentral(Part):
    """the one gradient with the least sum of squared distances to its n - byzantine - 2 nearest   (Krum)"""

    byzantine: int

    def __post_init__(self) -> None:
        checks.count("byzantine", self.byzantine, least=0)

    def __call__(self, step: Step) -> Step:
        k = step.k
        distances = step.distances()
        others = step.usable[None, :] & ~torch.eye(k, dtype=torch.bool, device=distances.device)
        nearest = where(others, distances, torch.inf).sort(1).values  # [K, K]
        neighbours = (step.count - self.byzantine - 2.0).clamp(min=1.0)
        counted = (torch.arange(k, device=distances.device) < neighbours) & nearest.isfinite()
        scores = where(counted, nearest, 0.0).sum(1)  # [K]
        least = step.least(scores)
        return step.weighed(step.averaged((scores <= least).double()))  # equal scores share: order must not matter


@dataclass(frozen=True)
class FindMedian(Part):
    """argmin_v sum m_i |v - g_i|, by smoothed Weiszfeld iterations   (geometric median, RFA)"""

    iterations: int = 16
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        checks.count("iterations", self.iterations)
        checks.above("smoothing", self.smoothing, 0.0)

    def __call__(self, step: Step) -> Step:
        shares = step.averaged(step.batch_sizes)
        step = step.weighed(shares)
        for _ in range(self.iterations):
            distances = step.apart(step.direction)
            step = step.weighed(step.averaged(shares / distances.clamp(min=self.smoothing)))
        return step


@dataclass(frozen=True)
class CenterAndClip(Part):
    """v <- v + mean (g_i - v) min(1, radius / |g_i - v|), starting from the last step's v   (centered clipping)"""

    radius: float
    iterations: int = 1

    def __post_init__(self) -> None:
        checks.limit("radius", self.radius)
        checks.count("iterations", self.iterations)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"center": torch.zeros_like(params)}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"center": server.memory["center"][None]}

    def __call__(self, step: Step) -> Step:
        center = step.unit("center")[0]
        for _ in range(self.iterations):
            apart, norms = step.coefficients - center, step.apart(center)
            factors = where(norms > self.radius, self.radius / where(norms > 0, norms, 1.0), 1.0)
            center = center + (step.weights * factors) @ apart
        step = step.having(coefficients=center.expand_as(step.coefficients))
        return step.remember(center=center)
