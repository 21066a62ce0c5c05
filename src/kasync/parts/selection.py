"""Parts that select gradients by how well they agree, and the switch to WKAFL's stage two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from kasync import checks
from kasync.constants import where
from kasync.core import Part, Step
from kasync.span import possible


@dataclass(frozen=True)
class SelectConsistent(Part):
    """weights ~ exp(sharpness * cos(g_i, estimate)) where the cosine >= threshold, else 0   (WKAFL, Eqs. 6-8)

    If no gradient passes, the direction is the estimate itself: the paper does not say, its authors' code does so. With
    a `base` above 1 the weights are also ~ base^(-staleness_i), as in that code.
    """

    sharpness: float
    threshold: float
    base: float = 1.0
    reads: ClassVar[frozenset[str]] = frozenset({"estimate"})

    def __post_init__(self) -> None:
        checks.finite("sharpness", self.sharpness)
        checks.at_least("base", self.base, 1.0)
        checks.between("threshold", self.threshold, -1.0, 1.0)

    def __call__(self, step: Step) -> Step:
        estimate = step.direction if step.estimate is None else step.estimate
        similarities = step.cosines_to(estimate)
        passes = step.kept(similarities >= self.threshold, False)
        none = ~passes.any()
        logits = self.sharpness * similarities
        if self.base > 1.0:
            logits = logits - math.log(self.base) * step.staleness
        weights = where(passes, logits, -torch.inf).softmax(0)  # NaN where there is none
        step = step.having(similarities=similarities, estimate=estimate)
        if not possible(none):
            return step.weighed(weights)
        rows = where(none, estimate, step.coefficients)
        return step.having(coefficients=rows).weighed(where(none, step.equal_weights, weights))


@dataclass(frozen=True)
class EnterStageTwo(Part):
    """stage two, for good, once the mean loss of the k deliveries is <= loss_threshold   (WKAFL, Algorithm 2)

    The paper's text compares the mean, line 10 of its listing the sum, which would depend on k; the mean is taken.
    """

    loss_threshold: float
    sets: ClassVar[frozenset[str]] = frozenset({"stage"})

    def __post_init__(self) -> None:
        checks.finite("loss_threshold", self.loss_threshold)

    def __call__(self, step: Step) -> Step:
        if step.losses is None:
            return step
        low = step.mean_loss <= self.loss_threshold
        if not possible(low):
            return step
        low = low if step.all_usable else low & ~step.skipped
        return step.having(stage=where(low, 2, step.stage))
