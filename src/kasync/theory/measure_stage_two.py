"""Estimates of stage two's constants, sigma_e, M_e, B and the estimate's error, on the steps of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kasync.errors import UserError
from kasync.theory.constants import Floats
from kasync.theory.envelope import upper_line
from kasync.theory.measure import Estimate


class StepLike(Protocol):
    """What is asked of a step; `Selection` has it from vectors, a run that keeps inner products has it without."""

    @property
    def spread(self) -> float: ...  # sum_i p_i |estimate - g_i|^2

    @property
    def squared_length(self) -> float: ...  # |estimate|^2

    @property
    def ratio(self) -> float: ...  # the longest g_i with a weight, in lengths of the estimate

    @property
    def error(self) -> float: ...  # |estimate - grad F|


@dataclass(frozen=True)
class Selection:
    """What one step of stage two combined: weights [k], clipped gradients [k, D], the estimate [D], grad F [D]."""

    weights: Floats
    gradients: Floats
    estimate: Floats
    gradient: Floats

    @property
    def spread(self) -> float:
        """sum_i p_i |estimate - g_i|^2."""
        return float(self.weights @ np.square(self.gradients - self.estimate).sum(axis=-1))

    @property
    def squared_length(self) -> float:
        """|estimate|^2."""
        return float(np.square(self.estimate).sum())

    @property
    def ratio(self) -> float:
        """The longest gradient with a weight, in lengths of the estimate."""
        used = np.linalg.norm(self.gradients[self.weights > 0], axis=-1)
        length = float(np.linalg.norm(self.estimate))
        return float(used.max() / length) if length > 0 else float(np.inf if used.max() > 0 else 0.0)

    @property
    def error(self) -> float:
        """|estimate - grad F|."""
        return float(np.linalg.norm(self.estimate - self.gradient))


@dataclass(frozen=True)
class MeasuredStageTwo:
    """The constants of Equations (assumpTwo1) and (assumpTwo2) along a run; pass their values to `StageTwo`."""

    estimate_error: Estimate
    spread: Estimate
    spread_growth: Estimate
    clip_ratio: Estimate


def measure_stage_two(selections: Sequence[StepLike], spread_growth: float | None = None) -> MeasuredStageTwo:
    """The constants that hold on every given step; Theorem 2 then holds for that very run, without expectations.

    (sigma_e^2, M_e) is a line just above the spreads. V_j >= 0 needs a small M_e, so `spread_growth` may fix it
    and leave the rest to sigma_e.
    """
    if not selections:
        raise UserError("selections is empty; pass the steps of a run in stage two.")
    spreads = np.array([step.spread for step in selections])
    lengths = np.array([step.squared_length for step in selections])
    how = f"upper line through the spreads of {len(selections)} steps"
    if spread_growth is None:
        floor, growth = upper_line(lengths, spreads)
    else:
        growth = spread_growth
        floor = max(0.0, float((spreads - growth * lengths).max()))
        how = f"{how}, with M_e fixed at {growth:.4g}"
    largest = f"largest of {len(selections)} steps"
    return MeasuredStageTwo(
        estimate_error=Estimate(max(step.error for step in selections), f"{largest}: |estimate - grad F|"),
        spread=Estimate(float(np.sqrt(floor)), how),
        spread_growth=Estimate(growth, how),
        clip_ratio=Estimate(max(step.ratio for step in selections), f"{largest}: |g_i| / |estimate|"),
    )
