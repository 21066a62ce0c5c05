"""Does a delivery agree with what the server sees on a few samples of its own?

`server_gradient` is a function of the parameters [D] that returns the server's own gradient [D].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, ServerState, Step

ServerGradient = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ServerPart(Part):
    """A part that compares with the server's gradient at the current parameters."""

    server_gradient: ServerGradient

    def __post_init__(self) -> None:
        checks.function("server_gradient", self.server_gradient, of="the parameters [D]")

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"server": self._own(server.params)[None]}

    def _own(self, params: Tensor) -> Tensor:
        """[D] the server's gradient at these parameters."""
        own = self.server_gradient(params)
        if own.shape != params.shape:
            raise ValueError(
                f"server_gradient returned shape {list(own.shape)}: it must be as long as the parameters, {len(params)}"
            )
        return own.detach().to(params)


def _lengthened(step: Step, length: Tensor) -> Step:
    """Every gradient at the given length; a zero gradient stays zero."""
    norms = step.norms()
    return step.scaled(where(norms > 0, length / where(norms > 0, norms, 1.0), 0.0))


@dataclass(frozen=True)
class TrustByServer(ServerPart):
    """weights ~ max(0, cos(g_i, v)), every g_i rescaled to |v|   (FLTrust)"""

    def __call__(self, step: Step) -> Step:
        server = step.unit("server")[0]
        similarities = step.cosines_to(server)
        step = _lengthened(step.having(similarities=similarities), step.norms(server))
        return step.weighed(step.averaged(similarities.clamp(min=0.0)))


@dataclass(frozen=True)
class AcceptNearServer(ServerPart):
    """equal weights for the g_i with |g_i - v| <= radius * |v|   (AFLGuard)"""

    radius: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("radius", self.radius, 0.0)

    def __call__(self, step: Step) -> Step:
        server = step.unit("server")[0]
        near = step.norms(step.coefficients - server) <= self.radius * step.norms(server)
        step = step.having(similarities=step.cosines_to(server))
        return step.weighed(step.averaged(near.double()))


@dataclass(frozen=True)
class AcceptByScore(ServerPart):
    """g_i rescaled to |v|, kept when scale <v, g_i> - penalty |g_i|^2 >= -scale * slack   (Zeno++)

    v is computed anew after every `refresh_every` accepted updates.
    """

    scale: float
    penalty: float
    slack: float
    refresh_every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.above("scale", self.scale, 0.0)
        checks.at_least("penalty", self.penalty, 0.0)
        checks.at_least("slack", self.slack, 0.0)
        checks.count("refresh_every", self.refresh_every)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        due = torch.full((), self.refresh_every, dtype=torch.int64, device=params.device)
        return {"server": torch.zeros_like(params), "accepted": due}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        due = server.memory["accepted"] >= self.refresh_every
        return {"server": where(due, self._own(server.params), server.memory["server"])[None]}

    def __call__(self, step: Step) -> Step:
        server = step.unit("server")[0]
        step = _lengthened(step.having(similarities=step.cosines_to(server)), step.norms(server))
        score = self.scale * step.dots(step.coefficients, server) - self.penalty * step.norms() ** 2
        accepted = step.usable & (score >= -self.scale * self.slack)
        since = where(step.memory["accepted"] >= self.refresh_every, 0, step.memory["accepted"])
        step = step.remember(server=server).keep(accepted=since + accepted.any().long())
        return step.weighed(step.averaged(accepted.double()))
