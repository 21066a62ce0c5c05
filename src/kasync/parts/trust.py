"""Weights by agreement with a gradient that the server takes on a few samples of its own.

`server_gradient` is a function of the parameters [D] that returns the server's own gradient [D]. One with a second
parameter is also given the server's step [] int64, to choose other samples in every step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, ServerState, Step
from kasync.span import possible

ServerGradient = Callable[[Tensor], Tensor] | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ServerPart(Part):
    """A part that compares with the server's gradient at the current parameters."""

    server_gradient: ServerGradient

    def __post_init__(self) -> None:
        checks.function("server_gradient", self.server_gradient, of="the parameters [D]")

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"server": self._own(server)[None]}

    @cached_property
    def _draws(self) -> bool:
        """Whether the server's gradient is on other samples in every step."""
        try:
            parameters = inspect.signature(self.server_gradient).parameters.values()
        except ValueError:  # a function that is not Python's
            return False
        given = [
            p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        return len(given) > 1

    def _own(self, server: ServerState) -> Tensor:
        """[D] the server's gradient at its parameters."""
        params = server.params
        own: Tensor = self.server_gradient(*((params, server.step) if self._draws else (params,)))
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
        near = step.apart(server) <= self.radius * step.norms(server)
        step = step.having(similarities=step.cosines_to(server))
        return step.weighed(step.averaged(near.double()))


@dataclass(frozen=True)
class AcceptByScore(ServerPart):
    """g_i rescaled to |v|, kept when scale <v, g_i> - penalty |g_i|^2 >= -scale * slack   (Zeno++)

    v is computed anew in every step while the number of accepted updates is a multiple of `refresh_every`: after a
    candidate that is refused, on other samples where `server_gradient` draws them, and then kept for refresh_every - 1
    more accepted updates.
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
        none = torch.zeros((), dtype=torch.int64, device=params.device)
        return {"server": torch.zeros_like(params), "accepted": none}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        due, kept = server.memory["accepted"] % self.refresh_every == 0, server.memory["server"]
        return {"server": (where(due, self._own(server), kept) if possible(due) else kept)[None]}

    def __call__(self, step: Step) -> Step:
        server = step.unit("server")[0]
        step = _lengthened(step.having(similarities=step.cosines_to(server)), step.norms(server))
        score = self.scale * step.dots(step.coefficients, server) - self.penalty * step.norms() ** 2
        accepted = step.usable & (score >= -self.scale * self.slack)
        step = step.remember(server=server).keep(accepted=step.memory["accepted"] + accepted.any().long())
        return step.weighed(step.averaged(accepted.double()))
