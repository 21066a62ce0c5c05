"""A limit on how far the model moves while a typical client computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kasync import checks
from kasync.constants import where
from kasync.core import Step
from kasync.parts.tables import ClientPart

PRIOR = 0.5  # rounds of deliveries, clients / K steps stale, that are taken for granted before the first


@dataclass(frozen=True)
class KeepWithinReach(ClientPart):
    """lr * min(1, reach / (sqrt(t) full_lr)),  t the typical 1 + staleness, full_lr the rate before its schedule

    While a typical client works the model makes t steps of one length, lr. They follow different clients, so that it
    goes about sqrt(t) as far: at most `reach`, and less as the schedule lowers the rate. t is the geometric mean of the
    last rounds, so that a few very slow clients do not decide it.
    """

    reach: float
    sets: ClassVar[frozenset[str]] = frozenset({"lr"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.limit("reach", self.reach)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        nothing = torch.zeros((), dtype=torch.float64, device=params.device)
        return {"log_delays": nothing, "delays": nothing.clone()}  # sum, and how many

    def __call__(self, step: Step) -> Step:
        pace = step.count / self.clients
        number, prior = step.memory["delays"], PRIOR * self.clients
        total = where(number > 0, step.memory["log_delays"], -prior * pace.log())
        total = (1.0 - pace) * total + step.kept(step.staleness.log1p(), 0.0).sum()
        number = (1.0 - pace) * where(number > 0, number, prior) + step.count
        distance = step.full_lr * (total / number / 2.0).exp()
        factor = where(distance > self.reach, self.reach / where(distance > 0, distance, 1.0), 1.0)
        return step.keep(log_delays=total, delays=number).having(lr=step.lr * factor)
