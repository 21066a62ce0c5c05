"""What do the next steps read: which clients work on which samples, and who delivers?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kasync.faults.deliveries import Damage
from kasync.faults.spoilers import Spoilers
from kasync.simulator.plan import Plan
from kasync.work.batches import Batches


@dataclass(frozen=True, eq=False)
class Workload:
    """Pieces of work: who does them, on which samples, and where the result waits."""

    slots: NDArray[np.int64]  # [n]
    samples: NDArray[np.int64]  # [n, batches, m]
    weights: NDArray[np.float32]  # [n, batches, m]

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, part: slice) -> Workload:
        return Workload(self.slots[part], self.samples[part], self.weights[part])

    def padded(self, length: int, slot: int) -> Workload:
        """With idle pieces of work up to a fixed length; their results go to a slot nobody reads."""
        rest = length - len(self)
        return Workload(
            np.concatenate([self.slots, np.full(rest, slot, dtype=np.int64)]),
            np.concatenate([self.samples, np.zeros((rest, *self.samples.shape[1:]), dtype=np.int64)]),
            np.concatenate([self.weights, np.zeros((rest, *self.weights.shape[1:]), dtype=np.float32)]),
        )


@dataclass(frozen=True, eq=False)
class Deliveries:
    """What the server is told in each of some steps."""

    slots: NDArray[np.int64]  # [steps, k] where the gradient, or the version it is computed on, lies
    clients: NDArray[np.int64]  # [steps, k]
    staleness: NDArray[np.float64]  # [steps, k]
    batch_sizes: NDArray[np.float64]  # [steps, k]
    damage: Damage | None = None  # what faults do to them


@dataclass(frozen=True, eq=False)
class Inputs:
    """Prepares both for a range of steps."""

    plan: Plan
    batches: Batches
    early: bool  # gradients wait in a row for each client, or are computed from a kept version at delivery
    spoilers: Spoilers | None = None  # faults that change what clients bring

    def work(self, start: int, stop: int) -> list[Workload]:
        """For every step: what is computed before its deliveries are used."""
        timeline, plan = self.plan.timeline, self.plan
        if self.early:
            chosen = plan.order[plan.bounds[start] : plan.bounds[stop]]
            cuts = plan.bounds[start : stop + 1] - plan.bounds[start]
        else:
            chosen = np.arange(start * timeline.k, stop * timeline.k)
            cuts = np.arange(stop - start + 1) * timeline.k
        clients = timeline.clients.ravel()[chosen]
        visits = timeline.visits.ravel()[chosen]
        samples, weights = self.batches.draw(clients, visits)
        if self.spoilers is not None:
            samples = self.spoilers.samples(samples, clients, visits)
        everything = Workload(plan.client_slots[clients], samples, weights)
        return [everything[a:b] for a, b in pairwise(cuts)]

    def deliveries(self, start: int, stop: int) -> Deliveries:
        plan = self.plan
        clients = plan.timeline.clients[start:stop]
        slots = plan.client_slots[clients] if self.early else plan.version_slots[plan.computed_on[start:stop]]
        sizes = self.batches.offsets[clients + 1] - self.batches.offsets[clients]
        return Deliveries(
            slots,
            clients.astype(np.int64),
            plan.reported[start:stop].astype(np.float64),
            np.minimum(sizes, self.batches.batch_size).astype(np.float64),
            None if self.spoilers is None else self.spoilers.damage(clients, plan.timeline.visits[start:stop]),
        )
