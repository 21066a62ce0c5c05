"""Which gradients are computed on which version, and what is held until they are delivered.

The clock never looks at a gradient, so all of this is known before the first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kasync.errors import unknown
from kasync.timelines import Timeline

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
