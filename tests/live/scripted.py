"""Seeded deliveries on a timeline, so that all engines must end with the same parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from deliveries import CLIENTS, LENGTH
from numpy.typing import NDArray
from torch import Tensor

from kasync import Arrivals, Rule, ServerState, timelines
from kasync.timelines import Timeline

DISTRUSTING = ("krum", "geometric_median", "centered_clip", "fltrust", "zeno", "aflguard")  # count every client once


@dataclass(frozen=True, eq=False)
class Script:
    """Client c's n-th delivery is rows[c, n], with losses[c, n], at the step the timeline says."""

    timeline: Timeline
    start: Tensor  # [D]
    rows: NDArray[np.float64]  # [clients, visits, D]
    losses: NDArray[np.float64]  # [clients, visits]
    sizes: NDArray[np.int64]  # [clients]

    @classmethod
    def drawn(cls, k: int = 4, steps: int = 25, seed: int = 0, clients: int = CLIENTS) -> Script:
        rng = np.random.default_rng(seed)
        return cls(
            timelines.uniform(clients=clients, k=k, steps=steps, seed=seed),
            torch.from_numpy(rng.normal(size=LENGTH)),
            rng.normal(size=(clients, steps + 1, LENGTH)) + rng.normal(size=LENGTH),
            rng.uniform(0.5, 1.5, size=(clients, steps + 1)),
            rng.integers(1, 20, size=clients),
        )

    def due(self, client: int, visit: int) -> int:
        """The step that uses this delivery; beyond the last one when none does."""
        steps, _ = np.nonzero((self.timeline.clients == client) & (self.timeline.visits == visit))
        return int(steps[0]) if len(steps) else self.timeline.steps

    def simulated(self, rule: Rule) -> ServerState:
        """The server after the rule was given all rows in stacks, step by step."""
        sizes = np.ones_like(self.sizes) if rule.name in DISTRUSTING else self.sizes
        server = ServerState.initial(self.start)
        versions = [self.start]
        for s in range(self.timeline.steps):
            clients, visits = self.timeline.clients[s], self.timeline.visits[s]
            server, _ = rule(
                server,
                Arrivals(
                    torch.from_numpy(self.rows[clients, visits]),
                    self.timeline.staleness[s].tolist(),
                    self.losses[clients, visits].tolist(),
                    sizes[clients].tolist(),
                    clients.tolist(),
                    torch.stack([versions[v] for v in self.timeline.versions[s]]),
                ),
            )
            versions.append(server.params)
        return server
