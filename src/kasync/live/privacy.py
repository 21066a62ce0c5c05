"""Differential privacy of a live run: clipping, Gaussian noise and the epsilon that every client has spent.

A delivery, or the sum of k of them, with noise is the Gaussian mechanism. How often a client takes part is fixed by
the clock, not by chance, so n mechanisms with noise multipliers s_i compose to one with 1 / s^2 = sum 1 / s_i^2
(Dong, Roth, Su: Gaussian Differential Privacy, 2022), whose epsilon is exact in closed form (Balle and Wang, 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from kasync import checks, parts
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, Rule, ServerState, Step
from kasync.errors import UserError, unknown
from kasync.live.deliveries import VARIANCES, length

NOISE = ("delivery", "sum")
LINEAR = (  # parts whose weights depend on who delivers when, and on no number in a delivery
    parts.DiscountStaleness,
    parts.DropStale,
    parts.MixModels,
    parts.SlowWhenAllStale,
    parts.SlowWhenAnyStale,
    parts.WeighByStaleness,
)


@dataclass(frozen=True)
class Privacy:
    """Deliveries clipped to max_norm, and noise_multiplier * max_norm * N(0, 1) in every entry, per delivery or sum.

    noise="delivery": every delivery is noised by itself, whatever the rule does with it then; in the ClientApp
    (`noised_model`) that protects against the server too. noise="sum": the sum of the k deliveries is noised once,
    sqrt(k) times less in all; for rules whose weights depend on staleness and examples alone. Neighbouring runs differ
    in one client's deliveries being replaced by zeros (zero-out). Without a generator the noise is seeded from the
    operating system.
    """

    max_norm: float
    noise_multiplier: float
    delta: float = 1e-5
    noise: str = "delivery"
    generator: torch.Generator | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.above("max_norm", self.max_norm, 0.0)
        checks.above("noise_multiplier", self.noise_multiplier, 0.0)
        checks.above("delta", self.delta, 0.0)
        if self.delta >= 1.0:
            raise UserError(f"delta = {self.delta}: must lie below 1; 1e-5 is usual.")
        if self.noise not in NOISE:
            raise unknown("setting of noise", self.noise, NOISE)
        if self.generator is None:
            generator = torch.Generator()
            generator.seed()
            object.__setattr__(self, "generator", generator)

    def prepare_(self, row: Tensor) -> None:
        """Do to an accepted row [D], in place, what has to be done before anything else sees it."""
        self._clip_(row)
        if self.noise == "delivery":
            row.add_(self.drawn(row), alpha=self.noise_multiplier * self.max_norm)

    def noised(self, row: Tensor) -> Tensor:
        """[D] the row, clipped and noised."""
        out = row.clone()
        self._clip_(out)
        return out.add_(self.drawn(out), alpha=self.noise_multiplier * self.max_norm)

    def noised_model(self, start: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For a ClientApp: the trained state_dict, its change from the received one clipped and noised as a whole.

        What is not floating-point is returned as it was received; every array keeps its type. Running variances that
        the noise made negative are 0: a server refuses them, and what is done after the noise costs no privacy.
        """
        names = [name for name, value in start.items() if value.is_floating_point()]
        change = torch.cat([(start[name].double() - trained[name].double()).detach().flatten().cpu() for name in names])
        moved = self.noised(change).split([start[name].numel() for name in names])
        changed = {
            name: (start[name].double().cpu() - part.view_as(start[name])).to(start[name].dtype)
            for name, part in zip(names, moved, strict=True)
        }
        changed |= {name: value.clamp(min=0.0) for name, value in changed.items() if name.endswith(VARIANCES)}
        return {name: changed.get(name, value) for name, value in start.items()}

    def around(self, rule: Rule) -> Rule:
        """The rule with what it needs for this privacy."""
        if self.noise == "delivery":
            return rule
        odd = [type(part).__name__ for part in rule.parts if not getattr(part, "linear", isinstance(part, LINEAR))]
        if odd:
            raise UserError(
                f"noise = 'sum' needs weights that no delivery's numbers decide, but {rule.name} has {odd[0]}: take "
                f"fedbuff, kasync_sgd, fadas or another rule of staleness alone, or noise = 'delivery'."
            )
        return replace(rule, parts=(*rule.parts, AddNoise(self.noise_multiplier * self.max_norm, self.generator)))

    @property
    def cost(self) -> float:
        """What one use of a client's work adds to its account."""
        return self.noise_multiplier**-2

    def epsilon(self, uses: int) -> float:
        """What a client has spent whose work was used so often with this noise, at this delta."""
        return spent(uses * self.cost, self.delta)

    def drawn(self, like: Tensor) -> Tensor:
        """Standard normal numbers of this shape."""
        return torch.randn(like.shape, generator=self.generator, dtype=like.dtype).to(like.device)

    def _clip_(self, row: Tensor) -> None:
        norm = length(row)
        if norm > self.max_norm:
            row.mul_(self.max_norm / (norm * (1 + 1e-6)))  # whatever the norm was rounded to


@dataclass(frozen=True)
class AddNoise(Part):
    """direction + max_i |a_i| * scale * N(0, 1),  a_i the weight of delivery i in the direction"""

    scale: float
    generator: torch.Generator | None = field(default=None, compare=False, repr=False)

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        noise = torch.randn(server.params.shape, generator=self.generator, dtype=server.params.dtype)
        return {"noise": self.scale * noise.to(server.params.device)[None]}

    def __call__(self, step: Step) -> Step:
        largest = step.direction[step.layout["gradients"]].abs().max()
        total = step.weights.sum()
        share = where(total > 0, largest / where(total > 0, total, 1.0), 0.0)
        return step.having(coefficients=step.coefficients + share * step.unit("noise"))


@lru_cache(maxsize=4096)
def spent(account: float, delta: float) -> float:
    """epsilon of a Gaussian mechanism with 1 / noise_multiplier^2 = account   (Balle and Wang 2018, Theorem 8)

    delta(epsilon) = P(N < mu/2 - epsilon/mu) - e^epsilon P(N < -mu/2 - epsilon/mu),  mu^2 = account
    """
    if account <= 0.0:
        return 0.0
    mu = math.sqrt(account)

    def log_normal(x: float) -> float:
        return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))

    def revealed(epsilon: float) -> float:
        first, second = log_normal(mu / 2 - epsilon / mu), epsilon + log_normal(-mu / 2 - epsilon / mu)
        return math.exp(first) * -math.expm1(min(second - first, 0.0))

    low, high = 0.0, 1.0
    if revealed(0.0) <= delta:
        return 0.0
    while revealed(high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if revealed(middle) > delta else (low, middle)
    return high
