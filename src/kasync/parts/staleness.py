"""Parts that weigh gradients, or set the learning rate, by staleness."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kasync import checks
from kasync.constants import where
from kasync.core import Part, Step
from kasync.discounts import Discount
from kasync.parts.tables import ClientPart
from kasync.span import how_many, possible

HALF_E = math.e / 2  # the base of Chen et al. (2019), kept by the paper


@dataclass(frozen=True)
class WeighByStaleness(Part):
    """weights = m_i base^(-staleness_i), divided by their sum, or by sum m_i as printed   (TWAFL)"""

    base: float = HALF_E
    normalize: bool = True

    def __post_init__(self) -> None:
        checks.at_least("base", self.base, 1.0)
        checks.flag("normalize", self.normalize)

    def __call__(self, step: Step) -> Step:
        if not self.normalize:
            shares = step.averaged(step.batch_sizes)
            return step.weighed(shares * (-math.log(self.base) * step.staleness).exp())
        scores = torch.sub(step.batch_sizes.log(), step.staleness, alpha=math.log(self.base))
        return step.weighed(step.kept(scores, -torch.inf).softmax(0))  # nothing underflows


@dataclass(frozen=True)
class EstimateByStaleness(Part):
    """estimate = sum a_i g_i / sum a_i,  a_i = base^(-staleness_i)   (WKAFL, Eq. 5)"""

    base: float = HALF_E
    sets: ClassVar[frozenset[str]] = frozenset({"estimate"})

    def __post_init__(self) -> None:
        checks.at_least("base", self.base, 1.0)

    def __call__(self, step: Step) -> Step:
        step = step.weighed(step.kept(-math.log(self.base) * step.staleness, -torch.inf).softmax(0))
        return step.having(estimate=step.direction)


@dataclass(frozen=True)
class SlowWhenAllStale(Part):
    """lr / (decay * (first + min staleness) + 1)   (WKAFL, Eq. 10; staleness counted from `first`)"""

    decay: float
    first: float = 0.0
    sets: ClassVar[frozenset[str]] = frozenset({"lr"})

    def __post_init__(self) -> None:
        checks.at_least("lr_decay", self.decay, 0.0)
        checks.at_least("first", self.first, 0.0)

    def __call__(self, step: Step) -> Step:
        base = self.decay * self.first + 1.0
        return step.having(lr=step.lr / (self.decay * step.least(step.staleness) + base))


@dataclass(frozen=True)
class SlowWhenAnyStale(Part):
    """lr if max staleness <= patience, else min(lr, 1 / max s) as published, or lr / max s if scaled   (FADAS)"""

    patience: float
    scaled: bool = False
    sets: ClassVar[frozenset[str]] = frozenset({"lr"})

    def __post_init__(self) -> None:
        checks.at_least("patience", self.patience, 0.0)
        checks.flag("scaled", self.scaled)

    def __call__(self, step: Step) -> Step:
        oldest = step.largest(step.staleness)
        least = 1.0 / oldest.clamp(min=1.0)
        slowed = step.lr * least if self.scaled else torch.minimum(step.lr, least)
        return step.having(lr=where(oldest <= self.patience, step.lr, slowed))


@dataclass(frozen=True)
class DiscountStaleness(Part):
    """weights_i * discount(staleness_i), scaled to sum to one where `normalize` says so"""

    discount: Discount
    normalize: bool = False

    def __post_init__(self) -> None:
        checks.function("discount", self.discount, of="staleness [K]")
        checks.flag("normalize", self.normalize)

    def __call__(self, step: Step) -> Step:
        weights = step.weights * self.discount(step.staleness)
        return step.weighed(step.averaged(weights) if self.normalize else weights)


@dataclass(frozen=True)
class DiscountAgainstUsual(ClientPart):
    """weights_i * discount(staleness_i) / u,  u its mean over all deliveries, each fading by half in 1.4 rounds

    A step in which everything is staler than usual is a short one, and one of fresh deliveries is long.
    """

    discount: Discount

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.function("discount", self.discount, of="staleness [K]")

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        nothing = torch.zeros((), dtype=torch.float64, device=params.device)
        return {"discounts": nothing, "number": nothing.clone()}  # their sum, and how many they are

    def __call__(self, step: Step) -> Step:
        factors = step.kept(self.discount(step.staleness), 0.0)
        kept = 1.0 - step.count / (2 * self.clients)
        total = kept * step.memory["discounts"] + factors.sum()
        number = kept * step.memory["number"] + step.count
        usual = total / number
        weights = step.weights * factors / where(usual > 0, usual, 1.0)
        return step.keep(discounts=total, number=number).weighed(weights)


@dataclass(frozen=True)
class DropStale(Part):
    """weights 1/n for the n arrivals with delay < max_staleness, 0 for the others   (Ringmaster)

    The delay of an arrival is its staleness less the steps since its start in which nothing was accepted: only accepted
    updates make a new version of the model. If nothing is accepted, an optimiser does not move either.
    """

    max_staleness: float
    window: int = 4096  # steps back to which it is known what was refused; before them everything counts as accepted

    def __post_init__(self) -> None:
        checks.limit("max_staleness", self.max_staleness)
        checks.count("window", self.window)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        nothing = torch.zeros((), dtype=torch.int64, device=params.device)
        refused = nothing.new_zeros(self.window)  # before each of the last steps
        return {"refused": refused, "refusals": nothing}

    def __call__(self, step: Step) -> Step:
        refused, refusals, delay = step.memory["refused"], step.memory["refusals"], step.staleness
        if possible(refusals):
            refused = refused.index_copy(0, (step.number % self.window)[None], refusals[None])
            back = step.staleness.clamp(max=self.window - 1).long()  # [K]
            delay = delay - (refusals - refused[(step.number - back) % self.window]).double()
            step = step.keep(refused=refused)
        fresh = step.kept(delay < self.max_staleness, False)
        if number := how_many(fresh):
            return step.having(still=None, weights=where(fresh, 1.0 / number, 0.0))
        nothing = ~fresh.any()
        step = step.keep(refusals=refusals + nothing)
        return step.having(still=nothing, weights=step.averaged(fresh.double()))
