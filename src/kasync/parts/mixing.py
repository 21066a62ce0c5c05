"""Parts that mix the models of clients into the server's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, ServerState, Step, TableRows
from kasync.discounts import Discount
from kasync.errors import UserError
from kasync.parts.tables import ClientPart, client_rows


@dataclass(frozen=True)
class MixModels(Part):
    """w <- w + mean_i mixing * discount(staleness_i) * (w_i - w),  w_i = start_i - g_i   (FedAsync)

    With one arrival this is (1 - a) w + a w_1. Where no starts are given, every client started from w.
    """

    mixing: float
    discount: Discount
    needs_starts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.between("mixing", self.mixing, 0.0, 1.0)
        checks.function("discount", self.discount, of="staleness [K]")

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        if arrivals.starts is None:
            return {}
        return {"starts": arrivals.starts.to(server.params), "params": server.params[None]}

    def __call__(self, step: Step) -> Step:
        step = step.weighed(step.weights * self.mixing * self.discount(step.staleness))
        if not step.has("starts"):
            return step
        return step.having(coefficients=step.coefficients + step.unit("params") - step.unit("starts"))


@dataclass(frozen=True)
class AverageModels(ClientPart):
    """w <- mean over all clients of the newest model that each has trained, start_i - g_i   (AREA)

    A client that has not delivered yet stands for the first parameters. Where no starts are given, every client started
    from w.
    """

    needs_starts: ClassVar[bool] = True

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"models": _full(params, self.clients)}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"models": client_rows(server.memory["models"], arrivals), "starts": _starts(server, arrivals)}

    def __call__(self, step: Step) -> Step:
        assert step.clients is not None
        trained = step.unit("starts") - step.coefficients  # [K, B]
        step = step.overwrite(models=TableRows(step.clients, trained))
        shares = torch.full_like(step.weights, 1.0 / self.clients)
        return step.having(coefficients=step.unit("models") - trained).weighed(shares)


@dataclass(frozen=True)
class AverageQueue(Part):
    """w <- mean of the newest `queue` models that clients have trained, start_i - g_i   (FedFa)

    At first the queue is full of the first parameters. Each model takes the place of the oldest one.
    """

    queue: int
    needs_starts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.count("queue", self.queue)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        place = torch.zeros((), dtype=torch.int64, device=params.device)
        return {"models": _full(params, self.queue), "place": place}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        if len(arrivals) > self.queue:
            raise UserError(f"queue = {self.queue}: must hold at least the {len(arrivals)} models of one step.")
        places = torch.arange(len(arrivals), device=server.params.device) + server.memory["place"]
        return {"models": server.memory["models"][places % self.queue], "starts": _starts(server, arrivals)}

    def __call__(self, step: Step) -> Step:
        trained = step.unit("starts") - step.coefficients  # [K, B]
        order = step.usable.long().cumsum(0) - 1  # [K] the usable ones take the places one after the other
        places = (step.memory["place"] + order) % self.queue
        oldest = step.unit("models")[order.clamp(min=0)]
        step = step.overwrite(models=TableRows(where(step.usable, places, self.queue), trained))
        step = step.keep(place=(step.memory["place"] + step.usable.sum()) % self.queue)
        shares = torch.full_like(step.weights, 1.0 / self.queue)
        return step.having(coefficients=oldest - trained).weighed(shares)


def _full(params: Tensor, count: int) -> Tensor:
    """[count + 1, D] so often these parameters, and a row of zeros for what is not usable."""
    return torch.cat([params.expand(count, -1), torch.zeros_like(params)[None]])


def _starts(server: ServerState, arrivals: Arrivals) -> Tensor:
    """[K, D] the parameters each client started from, those of the server where nobody says."""
    if arrivals.starts is None:
        return server.params.expand(len(arrivals), -1)
    return arrivals.starts.to(server.params)
