"""How much does a stale gradient count?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kasync import checks
from kasync.constants import where
from kasync.core import Part, Step
from kasync.discounts import Discount
from kasync.parts.tables import ClientPart

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
        shares = step.averaged(step.batch_sizes)
        if not self.normalize:
            return step.weighed(shares * (-math.log(self.base) * step.staleness).exp())
        excess = step.staleness - step.least(step.staleness)  # the ratio is the same and nothing underflows
        return step.weighed(step.averaged(shares * (-math.log(self.base) * excess).exp()))


@dataclass(frozen=True)
class EstimateByStaleness(Part):
    """estimate = sum a_i g_i / sum a_i,  a_i = base^(-staleness_i)   (WKAFL, Eq. 5)"""

    base: float = HALF_E

    def __post_init__(self) -> None:
        checks.at_least("base", self.base, 1.0)

    def __call__(self, step: Step) -> Step:
        step = step.weighed(step.kept(-math.log(self.base) * step.staleness, -torch.inf).softmax(0))
        return step.having(estimate=step.direction)


@dataclass(frozen=True)
class SlowWhenAllStale(Part):
    """lr / (decay * min staleness + 1)   (WKAFL, Eq. 10)"""

    decay: float

    def __post_init__(self) -> None:
        checks.at_least("lr_decay", self.decay, 0.0)

    def __call__(self, step: Step) -> Step:
        return step.having(lr=step.lr / (self.decay * step.least(step.staleness) + 1.0))


@dataclass(frozen=True)
class SlowWhenAnyStale(Part):
    """lr if max staleness <= patience, else min(lr, 1 / max staleness)   (FADAS)"""

    patience: float

    def __post_init__(self) -> None:
        checks.at_least("patience", self.patience, 0.0)

    def __call__(self, step: Step) -> Step:
        oldest = step.largest(step.staleness)
        slowed = torch.minimum(step.lr, 1.0 / oldest.clamp(min=1.0))
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
        return {"discounts": nothing, "discounted": nothing.clone()}  # their sum, and how many they are

    def __call__(self, step: Step) -> Step:
        factors = step.kept(self.discount(step.staleness), 0.0)
        kept = 1.0 - step.count / (2 * self.clients)
        total = kept * step.memory["discounts"] + factors.sum()
        number = kept * step.memory["discounted"] + step.count
        usual = total / number
        weights = step.weights * factors / where(usual > 0, usual, 1.0)
        return step.keep(discounts=total, discounted=number).weighed(weights)


@dataclass(frozen=True)
class DropStale(Part):
    """weights 1/n for the n arrivals with staleness < max_staleness, 0 for the others   (Ringmaster)"""

    max_staleness: float

    def __post_init__(self) -> None:
        checks.limit("max_staleness", self.max_staleness)

    def __call__(self, step: Step) -> Step:
        return step.weighed(step.averaged((step.staleness < self.max_staleness).double()))
