"""How does the past enter a step?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, ServerState, Step
from kasync.errors import unknown


@dataclass(frozen=True)
class AddMomentum(Part):
    """g_i + momentum * remembered   (WKAFL, Eq. 4)"""

    momentum: float

    def __post_init__(self) -> None:
        checks.at_least("momentum", self.momentum, 0.0)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(params)}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"momentum": server.memory["momentum"][None]}

    def __call__(self, step: Step) -> Step:
        return step.having(coefficients=step.coefficients + self.momentum * step.unit("momentum"))


@dataclass(frozen=True)
class Remember(Part):
    """remembered <- the estimate (the paper's text) or the aggregate (its proofs, and its authors' code)"""

    what: str = "estimate"

    def __post_init__(self) -> None:
        if self.what not in ("estimate", "aggregate"):
            raise unknown("remember", self.what, ("estimate", "aggregate"))

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(params)}

    def __call__(self, step: Step) -> Step:
        estimated = self.what == "estimate" and step.estimate is not None
        return step.remember(momentum=step.estimate if estimated else step.direction)  # type: ignore[arg-type]


@dataclass(frozen=True)
class AddRoundMomentum(Part):
    """direction = mean g + momentum * M,  M the mean of the corrected gradients of the last round   (GSGM)

    A round is over when fewer than k of the clients have not delivered in it, soundly or not.
    """

    momentum: float
    clients: int

    def __post_init__(self) -> None:
        checks.at_least("momentum", self.momentum, 0.0)
        checks.count("clients", self.clients)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        vectors = {name: torch.zeros_like(params) for name in ("round_mean", "round_sum")}
        counts = {name: params.new_zeros((), dtype=torch.float64) for name in ("round_count", "round_delivered")}
        return vectors | counts

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {name: server.memory[name][None] for name in ("round_mean", "round_sum")}

    def __call__(self, step: Step) -> Step:
        step = step.having(coefficients=step.coefficients + self.momentum * step.unit("round_mean"))
        total = step.unit("round_sum")[0] + step.usable.double() @ step.coefficients  # [B]
        count = step.memory["round_count"] + step.usable.sum()
        delivered = step.memory["round_delivered"] + step.k
        over = delivered + step.k > self.clients
        step = step.remember(
            round_mean=where(over, total / count.clamp(min=1), step.unit("round_mean")[0]),
            round_sum=where(over, 0.0, total),
        )
        return step.keep(round_count=where(over, 0.0, count), round_delivered=where(over, 0.0, delivered))
