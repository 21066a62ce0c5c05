"""Parts that carry momentum from earlier steps, and correct it under staleness."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, ServerState, Step
from kasync.errors import unknown


@dataclass(frozen=True)
class AddMomentum(Part):
    """g_i + momentum * remembered   (WKAFL, Eq. 4)

    What is remembered is the estimate of the step (the paper's text) or its aggregate (its proofs, and its authors'
    code). Without a part that makes an estimate both are the direction.
    """

    momentum: float
    remember: str = "estimate"

    def __post_init__(self) -> None:
        checks.at_least("momentum", self.momentum, 0.0)
        if self.remember not in ("estimate", "aggregate"):
            raise unknown("remember", self.remember, ("estimate", "aggregate"))

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(params)}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"momentum": server.memory["momentum"][None]}

    def __call__(self, step: Step) -> Step:
        return step.having(coefficients=step.coefficients + self.momentum * step.unit("momentum"))

    def finish(self, step: Step) -> Step:
        if self.remember == "aggregate" or step.estimate is None:
            return step.remember(momentum=step.direction)
        return step.remember(momentum=step.estimate)


@dataclass(frozen=True)
class ApproximateMomentum(Part):
    """m <- u d + v m,  u and v such that m gives each version of the model nearest the weight that momentum would

    Without staleness the gradient of age j would weigh (1 - momentum) momentum^j in m. d gives its deliveries' weights
    to the versions they were computed on, m what all d so far have given; u and v are the least squares fit of the two
    to the target   (Yu et al., the light variant). Ages from `window` on are counted as one.
    """

    momentum: float
    window: int = 1024

    def __post_init__(self) -> None:
        checks.fraction("momentum", self.momentum)
        checks.count("window", self.window, least=2)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        ages = torch.zeros(self.window, dtype=torch.float64, device=params.device)  # weight of each age of version
        return {"momentum": torch.zeros_like(params), "ages": ages, "steps": ages.new_zeros(())}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"momentum": server.memory["momentum"][None]}

    def __call__(self, step: Step) -> Step:
        before, last = step.memory["ages"], self.window - 1
        age = torch.arange(self.window, device=before.device)
        aged = torch.cat([before.new_zeros(1), before[:-2], before[-2:].sum()[None]])  # everything is one step older
        fresh = torch.zeros_like(before).index_add(0, step.staleness.clamp(max=last).long(), step.weights)
        target = (1.0 - self.momentum) * torch.pow(self.momentum, age.double())
        target = where(age <= step.memory["steps"], target, 0.0)
        a, b, c = fresh @ fresh, fresh @ aged, aged @ aged
        x, y = fresh @ target, aged @ target
        det = a * c - b * b
        both = det > 1e-12 * a * c
        safe, only = where(both, det, 1.0), where(a > 0, a, 1.0)
        u = where(both, (c * x - b * y) / safe, x / only)
        v = where(both, (a * y - b * x) / safe, 0.0)
        row = u * step.direction + v * step.unit("momentum")[0]  # [B]
        step = step.remember(momentum=row).keep(ages=u * fresh + v * aged, steps=step.memory["steps"] + 1.0)
        return step.having(coefficients=row.expand_as(step.coefficients)).weighed(step.equal_weights)


@dataclass(frozen=True)
class AddRoundMomentum(Part):
    """direction = mean g + momentum * M,  M the mean of the corrected gradients of the last round   (GSGM)

    A round is over when fewer than k of the clients have not delivered in it, soundly or not.
    """

    momentum: float
    clients: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        checks.at_least("momentum", self.momentum, 0.0)
        checks.count("clients", self.clients, least=0)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        vectors = {name: torch.zeros_like(params) for name in ("mean", "sum")}
        counts = {name: params.new_zeros((), dtype=torch.float64) for name in ("count", "delivered")}
        return vectors | counts

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {name: server.memory[name][None] for name in ("mean", "sum")}

    def __call__(self, step: Step) -> Step:
        step = step.having(coefficients=step.coefficients + self.momentum * step.unit("mean"))
        total = step.unit("sum")[0] + step.usable.double() @ step.coefficients  # [B]
        count = step.memory["count"] + step.usable.sum()
        delivered = step.memory["delivered"] + step.k
        over = delivered + step.k > self.clients
        step = step.remember(
            mean=where(over, total / count.clamp(min=1), step.unit("mean")[0]),
            sum=where(over, 0.0, total),
        )
        return step.keep(count=where(over, 0.0, count), delivered=where(over, 0.0, delivered))
