"""How does the past enter a step?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.core import Part, ServerState, Step
from kasync.errors import unknown


@dataclass(frozen=True)
class AddMomentum(Part):
    """g_i + momentum * remembered   (WKAFL, Eq. 3)"""

    momentum: float

    def __post_init__(self) -> None:
        checks.at_least("momentum", self.momentum, 0.0)
        checks.finite("momentum", self.momentum)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(params)}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"momentum": server.memory["momentum"][None]}

    def __call__(self, step: Step) -> Step:
        return replace(step, coefficients=step.coefficients + self.momentum * step.unit("momentum"))


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

    A round is over when fewer than k of the clients have not delivered in it.
    """

    momentum: float
    clients: int

    def __post_init__(self) -> None:
        checks.at_least("momentum", self.momentum, 0.0)
        checks.count("clients", self.clients)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        counted = torch.zeros((), dtype=torch.float64, device=params.device)
        return {"round_mean": torch.zeros_like(params), "round_sum": torch.zeros_like(params), "round_count": counted}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {name: server.memory[name][None] for name in ("round_mean", "round_sum")}

    def __call__(self, step: Step) -> Step:
        step = replace(step, coefficients=step.coefficients + self.momentum * step.unit("round_mean"))
        total = step.unit("round_sum")[0] + step.usable.double() @ step.coefficients  # [B]
        count = step.memory["round_count"] + step.usable.sum()
        over = count + step.k > self.clients
        step = step.remember(
            round_mean=torch.where(over, total / count.clamp(min=1), step.unit("round_mean")[0]),
            round_sum=torch.where(over, 0.0, total),
        )
        return step.keep(round_count=torch.where(over, 0.0, count))
