"""How is a client's model mixed into the server's?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.core import Part, ServerState, Step
from kasync.discounts import Discount


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
        if "starts" not in step.layout:
            return step
        return step.having(coefficients=step.coefficients + step.unit("params") - step.unit("starts"))
