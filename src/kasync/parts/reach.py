"""How far may the model go before a client has seen where it went?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import ServerState, Step
from kasync.parts.tables import ClientPart

PRIOR = 0.5  # rounds of deliveries, clients / K steps stale, that are taken for granted before the first


@dataclass(frozen=True)
class KeepWithinReach(ClientPart):
    """lr * min(1, reach |w| / (t top_lr |direction|)),  t the typical 1 + staleness, top_lr the largest rate so far

    While a typical client works the model moves by at most `reach` times its own length, and by less as the schedule
    lowers the rate. t is the geometric mean of the last rounds, so that a few very slow clients do not decide it. A
    model at zero has no length and may go anywhere.
    """

    reach: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.limit("reach", self.reach)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        nothing = torch.zeros((), dtype=torch.float64, device=params.device)
        return {"top_lr": nothing, "log_delays": nothing.clone(), "delays": nothing.clone()}  # sum, and how many

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"params": server.params[None]}

    def __call__(self, step: Step) -> Step:
        top = torch.maximum(step.memory["top_lr"], step.lr)
        pace = step.count / self.clients
        number, prior = step.memory["delays"], PRIOR * self.clients
        total = where(number > 0, step.memory["log_delays"], -prior * pace.log())
        total = (1.0 - pace) * total + step.kept(step.staleness.log1p(), 0.0).sum()
        number = (1.0 - pace) * where(number > 0, number, prior) + step.count
        most = self.reach * step.norms(step.unit("params")[0]) * (-total / number).exp()
        wanted = top * step.norms(step.direction)
        factor = where((wanted > most) & (most > 0), most / where(wanted > 0, wanted, 1.0), 1.0)
        return step.keep(top_lr=top, log_delays=total, delays=number).having(lr=step.lr * factor)
