"""When a noisy curve first reaches a target: smoothed over the same time for every curve, then interpolated."""

from collections.abc import Sequence
from math import inf

import numpy as np

from kasync.theory.constants import Floats


def smoothed(times: Sequence[float] | Floats, values: Sequence[float] | Floats, window: float) -> Floats:
    """[n] the mean of the values of the last `window` seconds, at each of the ascending times [n].

    The window is one of time, not of points: a curve with few points must not lag behind one with many.
    """
    at = np.asarray(times, dtype=np.float64)
    sums = np.concatenate(([0.0], np.cumsum(np.asarray(values, dtype=np.float64))))
    after = np.arange(1, len(at) + 1)
    first = np.minimum(np.searchsorted(at, at - window, side="right"), after - 1)  # its own value always counts
    return (sums[after] - sums[first]) / (after - first)


def first_reached(times: Sequence[float] | Floats, values: Sequence[float] | Floats, target: float) -> float:
    """The time at which the curve first reaches the target, between two points on a straight line; inf if never."""
    places = np.flatnonzero(np.asarray(values) >= target)
    if len(places) == 0:
        return inf
    place = int(places[0])
    if place == 0:
        return float(times[0])
    before, there = values[place - 1], values[place]
    share = (target - before) / (there - before)
    return float(times[place - 1] + share * (times[place] - times[place - 1]))
