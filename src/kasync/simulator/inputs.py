"""What the next steps read: which clients work on which samples, and who delivers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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
    deliveries: NDArray[np.int64]  # [n] s * k + i of what they will be
    samples: NDArray[np.int64] | None  # [n, steps, m]; None where every piece draws its own
    weights: NDArray[np.float32] | None  # [n, steps, m]

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, part: slice) -> Workload:
        drawn = (
            (None, None) if self.samples is None or self.weights is None else (self.samples[part], self.weights[part])
        )
        return Workload(self.slots[part], self.deliveries[part], *drawn)

    @property
    def batches(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Samples and weights, where they were drawn for all pieces at once."""
        assert self.samples is not None
        assert self.weights is not None
        return self.samples, self.weights

    def padded(self, length: int, slot: int) -> Workload:
        """With idle pieces of work up to a fixed length; their results go to a slot nobody reads."""
        rest = length - len(self)
        samples, weights = self.batches
        return Workload(
            np.concatenate([self.slots, np.full(rest, slot, dtype=np.int64)]),
            np.concatenate([self.deliveries, np.zeros(rest, dtype=np.int64)]),
            np.concatenate([samples, np.zeros((rest, *samples.shape[1:]), dtype=np.int64)]),
            np.concatenate([weights, np.zeros((rest, *weights.shape[1:]), dtype=np.float32)]),
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
    drawn: bool = True  # whether batches are drawn for many pieces at once

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
        slots = plan.slots.ravel()[chosen] if self.early else clients.astype(np.int64)
        samples = weights = None
        if self.drawn:
            visits = timeline.visits.ravel()[chosen]
            samples, weights = self.batches.draw(clients, visits)
            if self.spoilers is not None:
                samples = self.spoilers.samples(samples, clients, visits)
        everything = Workload(slots, chosen, samples, weights)
        return [everything[a:b] for a, b in pairwise(cuts)]

    def draw(self, client: int, visit: int, steps: int | None) -> list[NDArray[np.int64]]:
        """The samples of one visit, a mini-batch each."""
        batches = self.batches.visit(client, visit, steps)
        if self.spoilers is None:
            return batches
        who, when = np.array([client]), np.array([visit])
        return [self.spoilers.samples(rows[None, None], who, when)[0, 0] for rows in batches]

    def piece(self, delivery: int) -> tuple[int, int, int, int | None]:
        """Client, visit, mini-batches of its earlier visits, and of this one where the timeline says how many."""
        timeline = self.plan.timeline
        step, place = divmod(delivery, timeline.k)
        steps = None if self.local_steps is None else int(self.local_steps[step, place])
        before = int(self.steps_before.flat[delivery])
        return int(timeline.clients[step, place]), int(timeline.visits[step, place]), before, steps

    @cached_property
    def local_steps(self) -> NDArray[np.integer] | None:
        """[steps, k] mini-batches of each delivery, where fast clients do more."""
        return getattr(self.plan.timeline, "local_steps", None)

    @cached_property
    def steps_before(self) -> NDArray[np.int64]:
        """[steps, k] mini-batches that the client had worked on before each delivery's."""
        timeline = self.plan.timeline
        clients = timeline.clients.ravel()
        sizes = self.batches.offsets[clients + 1] - self.batches.offsets[clients]
        done = (
            self.batches.work.batches(sizes) if self.local_steps is None else self.local_steps.ravel().astype(np.int64)
        )
        if timeline.copies is not None:
            done = np.where(timeline.copies.ravel(), 0, done)
        order = np.lexsort((timeline.visits.ravel(), clients))
        total = np.cumsum(done[order]) - done[order]  # over everybody before
        first = np.r_[True, np.diff(clients[order]) != 0]
        mine = total - np.maximum.accumulate(np.where(first, total, 0))
        before = np.empty_like(mine)
        before[order] = mine
        return before.reshape(timeline.clients.shape)

    def deliveries(self, start: int, stop: int) -> Deliveries:
        plan = self.plan
        clients = plan.timeline.clients[start:stop]
        slots = plan.slots[start:stop] if self.early else plan.version_slots[plan.computed_on[start:stop]]
        return Deliveries(
            slots.astype(np.int64),
            clients.astype(np.int64),
            plan.reported[start:stop].astype(np.float64),
            self.batches.used(clients).astype(np.float64),
            None if self.spoilers is None else self.spoilers.damage(clients, plan.timeline.visits[start:stop]),
        )
