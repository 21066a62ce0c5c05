"""A timeline in a few numbers: staleness, pace, participation, and the memory a simulation of it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kasync.timelines.timeline import Timeline

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Summary:
    """The numbers a person wants to know before training on a timeline."""

    kind: str
    clients: int
    k: int
    steps: int
    mean_staleness: float
    median_staleness: float
    max_staleness: int
    virtual_seconds: float
    steps_per_second: float  # of virtual time
    share_delivering: float  # of the clients, those that delivered at least once
    fewest_deliveries: int  # of any client, and so on
    median_deliveries: float
    most_deliveries: int
    rows_held: int  # peak, when gradients are computed as soon as a client has its model
    versions_held: int  # peak, when models are kept until the last client that works on them delivers

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.kind}: {self.steps:,} steps, {self.k:,} of {self.clients:,} clients at each",
                f"staleness   mean {self.mean_staleness:,.1f}, median {self.median_staleness:,.0f}, "
                f"max {self.max_staleness:,}",
                f"time        {self.virtual_seconds:,.6g} virtual seconds, {self.steps_per_second:,.4g} steps a second",
                f"clients     {self.share_delivering:.1%} delivered; deliveries per client: fewest "
                f"{self.fewest_deliveries:,}, median {self.median_deliveries:,.0f}, most {self.most_deliveries:,}",
                f"to be held  {self.rows_held:,} gradients early, or {self.versions_held:,} model versions late",
            ]
        )


def summarize(timeline: Timeline) -> Summary:
    """All of it, from the arrays alone."""
    staleness = timeline.staleness
    deliveries = np.bincount(timeline.clients.ravel(), minlength=timeline.population)  # [population]
    seconds = float(timeline.times[-1])
    return Summary(
        kind=timeline.kind,
        clients=timeline.population,
        k=timeline.k,
        steps=timeline.steps,
        mean_staleness=float(staleness.mean(dtype=np.float64)),
        median_staleness=float(np.median(staleness)),
        max_staleness=int(staleness.max()),
        virtual_seconds=seconds,
        steps_per_second=timeline.steps / seconds if seconds > 0 else float("inf"),
        share_delivering=float(np.count_nonzero(deliveries) / timeline.population),
        fewest_deliveries=int(deliveries.min()),
        median_deliveries=float(np.median(deliveries)),
        most_deliveries=int(deliveries.max()),
        rows_held=int(rows_held(timeline).max()),
        versions_held=int(versions_held(timeline).max()),
    )


def rows_held(timeline: Timeline) -> Counts:
    """[steps]: gradients that exist when step s is taken, if each is computed as soon as its model exists.

    A row lives from the step its version appears to the step that uses it, both included; work that the timeline
    never delivers has no row.
    """
    computed = np.bincount(timeline.begun.ravel(), minlength=timeline.steps)  # [steps]
    used = np.arange(timeline.steps) * timeline.k  # [steps]: deliveries before this step
    return np.cumsum(computed) - used


def versions_held(timeline: Timeline) -> Counts:
    """[steps]: model versions that exist when step s is taken and that this or a later delivery was computed on."""
    last_use = np.full(timeline.steps, -1)  # [steps]: by version
    np.maximum.at(last_use, timeline.versions.ravel(), np.repeat(np.arange(timeline.steps), timeline.k))
    needed = np.flatnonzero(last_use >= 0)
    begun = np.bincount(needed, minlength=timeline.steps)
    done = np.bincount(last_use[needed] + 1, minlength=timeline.steps + 1)[: timeline.steps]
    return np.cumsum(begun - done)
