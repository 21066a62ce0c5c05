"""Factors on the learning rate as functions of the server's step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kasync import checks
from kasync.constants import constant
from kasync.errors import unknown


class Schedule(Protocol):
    """A factor on the learning rate."""

    def __call__(self, step: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Constant:
    """1"""

    def __call__(self, step: Tensor) -> Tensor:
        return constant(1.0, torch.float64, step.device)


@dataclass(frozen=True)
class Linear:
    """From 1 down to `final`, in equal steps, over `steps` steps."""

    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        checks.count("steps", self.steps)
        checks.at_least("final", self.final, 0.0)

    def __call__(self, step: Tensor) -> Tensor:
        return 1.0 - (1.0 - self.final) * (step.double() / self.steps).clamp(max=1.0)


@dataclass(frozen=True)
class Cosine:
    """From 1 down to `final` along half a cosine, over `steps` steps."""

    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        checks.count("steps", self.steps)
        checks.at_least("final", self.final, 0.0)

    def __call__(self, step: Tensor) -> Tensor:
        done = (step.double() / self.steps).clamp(max=1.0)
        return self.final + (1.0 - self.final) * (1.0 + (math.pi * done).cos()) / 2.0


@dataclass(frozen=True)
class Steps:
    """Times `factor` after every `every` steps."""

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        checks.count("every", self.every)
        checks.above("factor", self.factor, 0.0)

    def __call__(self, step: Tensor) -> Tensor:
        return self.factor ** torch.div(step, self.every, rounding_mode="floor").double()


def named(name: str, steps: int) -> Schedule:
    """The schedule called constant, linear, cosine or step for a run of so many steps."""
    checks.count("steps", steps)
    table: dict[str, Schedule] = {
        "constant": Constant(),
        "linear": Linear(steps),
        "cosine": Cosine(steps),
        "step": Steps(max(1, steps // 3)),
    }
    if name not in table:
        raise unknown("schedule", name, table)
    return table[name]
