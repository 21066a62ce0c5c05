"""The plan of a run: on which version each gradient is computed, where it waits, and what a step reads.

The clock never looks at a gradient, so all of this follows from the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kasync.errors import unknown
from kasync.faults.deliveries import Damage
from kasync.faults.work import WorkFaults
from kasync.timelines import Timeline
from kasync.work.batches import Batches

CHUNK = 100  # steps prepared at once

STALENESS = {
    "true": "every gradient is computed on the model its client received",
    "published-code": "as the authors' code does: after a client's first delivery its gradients are computed on the "
    "newest model, though recorded as stale",
    "none": "every gradient is computed on the newest model and is fresh: the limit without staleness",
}


@dataclass(frozen=True, eq=False)
class Plan:
    """For delivery i of step s: the version it is computed on, and the staleness the rule is told."""

    timeline: Timeline
    semantics: str = "true"

    def __post_init__(self) -> None:
        if self.semantics not in STALENESS:
            raise unknown("staleness", self.semantics, STALENESS)

    @cached_property
    def computed_on(self) -> NDArray[np.int32]:
        """[steps, k] the version each delivered gradient is computed on."""
        if self.semantics == "true":
            return self.timeline.versions
        newest = np.broadcast_to(np.arange(self.timeline.steps, dtype=np.int32)[:, None], self.timeline.clients.shape)
        if self.semantics == "published-code":
            newest = np.where(self.timeline.visits == 0, self.timeline.versions, newest)
        return newest if self.timeline.copies is None else self._copied(newest, self.timeline.copies)

    def _copied(self, versions: NDArray[np.int32], copies: NDArray[np.bool_]) -> NDArray[np.int32]:
        """[steps, k] these versions, where a copy has the one of what it copies."""
        timeline, chosen = self.timeline, versions.copy()
        step, slot = np.nonzero(copies)  # [copies] each
        before = timeline.previous_step[step, slot]
        place = (timeline.clients[before] == timeline.clients[step, slot][:, None]).argmax(1)
        chosen[step, slot] = versions[before, place]
        return chosen

    def original(self, delivery: int) -> int:
        """The delivery (as s * k + i) that a copy is one of; any other is its own."""
        timeline = self.timeline
        while timeline.copies is not None and timeline.copies.flat[delivery]:
            step = int(timeline.previous_step.flat[delivery])
            client = timeline.clients.flat[delivery]
            delivery = step * timeline.k + int((timeline.clients[step] == client).argmax())
        return delivery

    @property
    def reported(self) -> NDArray[np.int32]:
        """[steps, k] the staleness the rule is told."""
        return self.timeline.staleness if self.semantics != "none" else np.zeros_like(self.timeline.clients)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """[steps * k] deliveries (as s * k + i) sorted by the version they are computed on; a copy is no work."""
        order = np.argsort(self.computed_on, axis=None, kind="stable")
        return order if self.timeline.copies is None else order[~self.timeline.copies.ravel()[order]]

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """[steps + 1] the work on version v is order[bounds[v] : bounds[v + 1]]."""
        copies = self.timeline.copies
        worked_on = self.computed_on.ravel() if copies is None else self.computed_on[~copies]
        counts = np.bincount(worked_on, minlength=self.timeline.steps)
        return np.concatenate([[0], np.cumsum(counts)])

    def work_on(self, version: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Clients [n] and visits [n] whose gradients are computed on this version."""
        chosen = self.order[self.bounds[version] : self.bounds[version + 1]]
        return self.timeline.clients.ravel()[chosen], self.timeline.visits.ravel()[chosen]

    def soonest(self, start: int, stop: int) -> NDArray[np.int64]:
        """[stop - start] the first step that delivers something computed on each version, where there is work on it."""
        first = self.order[np.minimum(self.bounds[start:stop], len(self.order) - 1)]
        return first // self.timeline.k

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """[steps, k] the row that a delivery waits in: one for each client, or shared in turn where few are at work."""
        clients, steps = self.timeline.clients, self.timeline.steps
        present = np.unique(clients)
        begun = np.bincount(self.computed_on.ravel(), minlength=steps)
        waiting = np.cumsum(begun) - np.arange(steps) * self.timeline.k  # at the most, within each step
        if self.timeline.copies is not None or 1.2 * waiting.max(initial=0) >= len(present):
            return np.searchsorted(present, clients)
        slots = np.full(clients.size, -1, dtype=np.int64)
        free: list[int] = []
        used = 0
        for step in range(steps):
            chosen = self.order[self.bounds[step] : self.bounds[step + 1]]
            missing = len(chosen) - len(free)
            if missing > 0:
                free.extend(range(used, used + missing))
                used += missing
            slots[chosen] = free[len(free) - len(chosen) :]
            del free[len(free) - len(chosen) :]
            free.extend(slots[step * self.timeline.k : (step + 1) * self.timeline.k].tolist())
        return slots.reshape(clients.shape)

    @cached_property
    def rows(self) -> int:
        """Rows that deliveries wait in."""
        return int(self.slots.max(initial=-1)) + 1

    @cached_property
    def version_slots(self) -> NDArray[np.int64]:
        """[steps] the place each version is kept in; -1 for versions nobody computes on. Places are used again."""
        steps = self.timeline.steps
        last = np.full(steps, -1, dtype=np.int64)
        np.maximum.at(last, self.computed_on.ravel(), np.repeat(np.arange(steps), self.timeline.k))
        ending: list[list[int]] = [[] for _ in range(steps)]
        slots = np.full(steps, -1, dtype=np.int64)
        free: list[int] = []
        used = 0
        for version in range(steps):
            if last[version] >= 0:
                if not free:
                    free.append(used)
                    used += 1
                slots[version] = free.pop()
                ending[last[version]].append(int(slots[version]))
            free.extend(ending[version])  # step `version` is over once its own model is no longer needed
        return slots

    @property
    def versions(self) -> int:
        """Model versions that are kept at the same time."""
        return int(self.version_slots.max(initial=-1)) + 1


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
    """Prepares the work and the deliveries of a range of steps."""

    plan: Plan
    batches: Batches
    early: bool  # gradients wait in a row for each client, or are computed from a kept version at delivery
    work_faults: WorkFaults | None = None  # faults that change what clients bring
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
            if self.work_faults is not None:
                samples = self.work_faults.samples(samples, clients, visits)
        everything = Workload(slots, chosen, samples, weights)
        return [everything[a:b] for a, b in pairwise(cuts)]

    def draw(self, client: int, visit: int, steps: int | None) -> list[NDArray[np.int64]]:
        """The samples of one visit, a mini-batch each."""
        batches = self.batches.visit(client, visit, steps)
        if self.work_faults is None:
            return batches
        who, when = np.array([client]), np.array([visit])
        return [self.work_faults.samples(rows[None, None], who, when)[0, 0] for rows in batches]

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
            None if self.work_faults is None else self.work_faults.damage(clients, plan.timeline.visits[start:stop]),
        )


@dataclass(frozen=True, eq=False)
class Chunk:
    """What a device reads for a chunk of steps: arrays of fixed widths, and the work beyond them."""

    start: int
    arrays: dict[str, NDArray]  # name -> [steps, ...]
    late: list[Workload]  # [steps] pieces beyond k, mostly on the first model

    @classmethod
    def of(cls, inputs: Inputs, start: int, stop: int, idle: int) -> Chunk:
        """The steps start..stop-1, each with k pieces of work; what idle pieces give goes to the slot `idle`."""
        k = inputs.plan.timeline.k
        told, works = inputs.deliveries(start, stop), inputs.work(start, stop)
        extra = [max(0, len(work) - k) for work in works]
        fitted = [work[more:].padded(k, idle) for work, more in zip(works, extra, strict=True)]
        arrays = {} if told.damage is None else told.damage.arrays()
        arrays |= {
            "slots": told.slots,
            "clients": told.clients,
            "staleness": told.staleness,
            "batch_sizes": told.batch_sizes,
            "work_slots": np.stack([work.slots for work in fitted]),
            "samples": np.stack([work.batches[0] for work in fitted]),
            "sample_weights": np.stack([work.batches[1] for work in fitted]),
        }
        return cls(start, arrays, [work[:more] for work, more in zip(works, extra, strict=True)])

    @property
    def stop(self) -> int:
        return self.start + len(self.late)


def next_stop(done: int, every: int, steps: int) -> int:
    """Where the chunk that begins at step `done` ends: at the next evaluation, and after CHUNK steps at the latest."""
    return min(done + CHUNK, (done // every + 1) * every, steps)
