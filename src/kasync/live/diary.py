"""What happened in a live run? Counts of everything, and its timeline in the simulator's format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import numpy as np

from kasync.timelines import Timeline


@dataclass
class Diary:
    """One entry for each step, and how many replies ended in which way. Lists of plain values: it is saved as json."""

    clients: list[list[int]] = field(default_factory=list)  # of each step
    versions: list[list[int]] = field(default_factory=list)  # of each step
    times: list[float] = field(default_factory=list)  # of each step, in seconds of running
    tally: Counter[str] = field(default_factory=Counter)
    uses: Counter[int] = field(default_factory=Counter)  # how often the work of each client was used

    def note(self, clients: list[int], versions: list[int], time: float) -> None:
        self.clients.append(clients)
        self.uses.update(clients)
        self.versions.append(versions)
        self.times.append(max(time, self.times[-1]) if self.times else time)

    def timeline(self, population: int, rule: str) -> Timeline | None:
        """The longest stretch of steps with equally many deliveries; work begun before it counts as begun with it."""
        if not self.clients:
            return None
        stretches, start = [], 0
        for _, steps in groupby(self.clients, len):
            count = len(list(steps))
            stretches.append((count, start))
            start += count
        count, start = max(stretches, key=lambda stretch: (stretch[0], stretch[1]))
        stop = start + count
        return Timeline(
            clients=np.array(self.clients[start:stop]),
            versions=np.maximum(np.array(self.versions[start:stop]) - start, 0),
            times=np.array(self.times[start:stop]) - (self.times[start - 1] if start else 0.0),
            population=population,
            kind="live",
            settings={"rule": rule, "first_step": start, "steps": len(self.clients), **self.tally},
        )

    def table(self) -> dict[str, Any]:
        return {
            "clients": self.clients,
            "versions": self.versions,
            "times": self.times,
            "tally": dict(self.tally),
        }

    @classmethod
    def of(cls, table: dict[str, Any]) -> Diary:
        uses = Counter(chain.from_iterable(table["clients"]))
        return cls(table["clients"], table["versions"], table["times"], Counter(table["tally"]), uses)
