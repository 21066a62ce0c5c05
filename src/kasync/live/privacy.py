"""What does a delivery reveal of its client's data, and how is that bounded?

Each delivery is clipped and noised by itself: the Gaussian mechanism. The epsilon that a client has spent follows from
the number of its deliveries; the accountant is dp-accounting (`pip install 'kasync[privacy]'`), not one of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from kasync import checks
from kasync.errors import UserError


@dataclass(frozen=True)
class Privacy:
    """row * min(1, max_norm / |row|) + noise_multiplier * max_norm * N(0, 1) in every entry.

    On the server it protects against whoever sees the models; in the ClientApp (`noised_model`) against the server
    too. Neighbours differ in one client's deliveries being there or not. Without a generator the noise is seeded from
    the operating system.
    """

    max_norm: float
    noise_multiplier: float
    delta: float = 1e-5
    generator: torch.Generator | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.above("max_norm", self.max_norm, 0.0)
        checks.above("noise_multiplier", self.noise_multiplier, 0.0)
        checks.above("delta", self.delta, 0.0)
        if self.delta >= 1.0:
            raise UserError(f"delta = {self.delta}: must lie below 1; 1e-5 is usual.")
        if self.generator is None:
            generator = torch.Generator()
            generator.seed()
            object.__setattr__(self, "generator", generator)

    def noised(self, row: Tensor) -> Tensor:
        """[D] the row, clipped and noised."""
        norm = torch.linalg.vector_norm(row, dtype=torch.float64).clamp(min=1e-300)
        clipped = row * (self.max_norm / norm).clamp(max=1.0).to(row)
        noise = torch.randn(row.shape, generator=self.generator, dtype=row.dtype).to(row.device)
        return clipped + self.noise_multiplier * self.max_norm * noise

    def noised_model(self, start: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For a ClientApp: the trained state_dict, its change from the received one clipped and noised as a whole.

        What is not floating-point is returned as it was received.
        """
        names = [name for name, value in start.items() if value.is_floating_point()]
        change = torch.cat([(start[name] - trained[name]).detach().flatten().cpu() for name in names])
        parts = self.noised(change).split([start[name].numel() for name in names])
        changed = {name: start[name].cpu() - part.view_as(start[name]) for name, part in zip(names, parts, strict=True)}
        return {name: changed.get(name, value) for name, value in start.items()}

    def epsilon(self, deliveries: int) -> float:
        """What a client that has delivered so often has spent, at this delta."""
        return _epsilon(self.noise_multiplier, deliveries, self.delta) if deliveries else 0.0


@lru_cache(maxsize=4096)
def _epsilon(noise_multiplier: float, deliveries: int, delta: float) -> float:
    try:
        import dp_accounting
    except ImportError:
        raise UserError("epsilon needs dp-accounting, which is not installed: pip install 'kasync[privacy]'.") from None
    mechanism = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise_multiplier), deliveries)
    accountant = dp_accounting.pld.PLDAccountant()
    return float(accountant.compose(mechanism).get_epsilon(delta))
