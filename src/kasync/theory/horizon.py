"""Timelines of several k over the same virtual time, though a timeline is asked for by its number of steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kasync.errors import UserError
from kasync.theory.arrivals import TimelineLike, Whole
from kasync.theory.constants import Floats

PROBE = 5  # steps to begin with where nothing is known of the pace
LONGEST = 50_000  # steps played when no virtual time is asked for
MakeTimeline = Callable[[int, int], TimelineLike]  # k, steps -> timeline


def over_one_horizon(
    timeline: MakeTimeline, ks: Sequence[int], seconds: float | None
) -> tuple[dict[int, TimelineLike], float]:
    """({k: timeline}, seconds): the same virtual time for every k, ascending; the smallest k chooses it."""
    smallest, *others = sorted(set(ks))
    first = _typical(timeline, smallest) if seconds is None else over(timeline, smallest, seconds, PROBE)
    horizon = float(first.times[-1])
    deliveries = smallest * len(first.times)
    # A fleet hands in about as much work whatever k is, so the steps can be guessed.
    return {smallest: first} | {k: over(timeline, k, horizon, deliveries // k + 1) for k in others}, horizon


def _typical(timeline: MakeTimeline, k: int) -> TimelineLike:
    """30 pieces of work per client in a fleet of up to 1,000, down to 3 in a large one, if that is not too long."""
    population = timeline(k, 1).population
    pieces = min(30.0, max(3.0, 30_000 / population))
    return timeline(k, max(1, min(LONGEST, round(pieces * population / k))))


def over(timeline: MakeTimeline, k: int, seconds: float, guess: int) -> TimelineLike:
    """The steps of the first `seconds` of virtual time, or all there are; `guess` is how many that may be."""
    steps = guess
    while True:
        made = timeline(k, steps)
        if made.clients.shape[1] != k:
            raise UserError(f"the timeline for k={k} delivers {made.clients.shape[1]} at a step; make it for that k.")
        reached = float(made.times[-1])
        if reached >= seconds or len(made.times) < steps:
            return _until(made, seconds)
        steps *= 2 if reached == 0 else min(64, max(2, int(1.1 * seconds / reached) + 1))


@dataclass(frozen=True)
class Cut:
    """The beginning of a timeline."""

    clients: Whole  # [J, k]
    versions: Whole  # [J, k]
    times: Floats  # [J]
    population: int


def _until(timeline: TimelineLike, seconds: float) -> TimelineLike:
    """The steps up to the first that ends at or after the given second."""
    stop = int(np.searchsorted(timeline.times, seconds)) + 1
    return Cut(timeline.clients[:stop], timeline.versions[:stop], timeline.times[:stop], timeline.population)
