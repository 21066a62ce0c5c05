"""Factors by which an update loses weight as it grows stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kasync import checks
from kasync.constants import constant


class Discount(Protocol):
    """staleness [K] -> factor [K]"""

    def __call__(self, staleness: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class NoDiscount:
    """1"""

    def __call__(self, staleness: Tensor) -> Tensor:
        return torch.ones_like(staleness)


@dataclass(frozen=True)
class Polynomial:
    """(1 + staleness)^(-power)   (FedAsync; FedBuff with power 1/2)"""

    power: float = 0.5

    def __post_init__(self) -> None:
        checks.at_least("power", self.power, 0.0)

    def __call__(self, staleness: Tensor) -> Tensor:
        return (1.0 + staleness).pow(-self.power)


@dataclass(frozen=True)
class Hinge:
    """1 while staleness <= grace, then 1 / (slope * (staleness - grace) + 1)   (FedAsync)"""

    slope: float = 10.0
    grace: float = 4.0

    def __post_init__(self) -> None:
        checks.at_least("slope", self.slope, 0.0)
        checks.at_least("grace", self.grace, 0.0)

    def __call__(self, staleness: Tensor) -> Tensor:
        return 1.0 / (self.slope * (staleness - self.grace).clamp(min=0.0) + 1.0)


@dataclass(frozen=True)
class Inverse:
    """min(1, patience / staleness)   (SASGD: patience 1; delay-adaptive SGD: the number of concurrent clients)"""

    patience: float = 1.0

    def __post_init__(self) -> None:
        checks.above("patience", self.patience, 0.0)

    def __call__(self, staleness: Tensor) -> Tensor:
        return (constant(self.patience, staleness.dtype, staleness.device) / staleness).clamp_max(1.0)
