"""How did it go on? Curves of a line: the mean over seeds and its interval, on one axis for all seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kasync.report.intervals import bands
from kasync.report.results import Line
from kasync.report.runs import Run

POINTS = 160  # on a curve, at most: more cannot be told apart on a screen
AXES = ("step", "time", "updates")
Reals = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Band:
    """A curve with its interval; `low` and `high` as `intervals.bands` makes them. [points] each"""

    x: Reals
    mean: Reals
    low: Reals
    high: Reals


def evaluations(line: Line, column: str, against: str = "step") -> Band | None:
    """A column of metrics.csv against steps, virtual time or client updates; also of runs that still go on."""
    return band([(run.rows[against], run.rows[column]) for run in line.runs.values() if run.rows])


def during(line: Line, name: str) -> Band | None:
    """What the rule did, against steps: in blocks where runs are finished, at evaluations while they go on."""
    return band([curve for run in line.runs.values() if (curve := _told(run, name)) is not None])


def band(curves: Sequence[tuple[Reals, Reals]]) -> Band | None:
    """Curves (x, y) of the seeds on one axis: theirs where all share it, else each interpolated within its reach."""
    thinned = [_thinned(x, y) for x, y in curves if np.isfinite(y).any()]
    if not thinned:
        return None
    first = thinned[0][0]
    if all(np.array_equal(x, first) for x, _ in thinned):
        return Band(first, *bands([y for _, y in thinned]))
    ends = [(x[0], x[-1]) for x, _ in thinned]
    axis = np.linspace(min(start for start, _ in ends), max(end for _, end in ends), max(len(x) for x, _ in thinned))
    return Band(axis, *bands([np.interp(axis, x, y, left=np.nan, right=np.nan) for x, y in thinned]))


def mean_counts(arrays: Sequence[NDArray]) -> Reals:
    """[longest] mean over seeds of counts as shares that sum to 1, the shorter ones filled up with zeros."""
    longest = max(len(array) for array in arrays)
    shares = [np.pad(array / max(array.sum(), 1e-12), (0, longest - len(array))) for array in arrays]
    return np.mean(shares, axis=0)


def counts(line: Line, name: str) -> Reals | None:
    """A histogram of steps.npz as shares, the mean over the finished seeds."""
    arrays = [run.steps[name].astype(np.float64) for run in line.finished if name in run.steps]
    arrays = [array for array in arrays if array.sum() > 0]
    return mean_counts(arrays) if arrays else None


def _told(run: Run, name: str) -> tuple[Reals, Reals] | None:
    source = run.steps if name in run.steps else run.rows
    return (source["step"].astype(np.float64), source[name].astype(np.float64)) if name in source else None


def _thinned(x: Reals, y: Reals) -> tuple[Reals, Reals]:
    """At most POINTS points: means of y over equal runs of points, each at its last x."""
    if len(x) <= POINTS:
        return x, y
    edges = np.arange(POINTS + 1) * len(x) // POINTS
    return x[edges[1:] - 1], np.add.reduceat(y, edges[:-1]) / np.diff(edges)
