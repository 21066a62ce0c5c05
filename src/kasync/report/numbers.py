"""What is computed from lines: curves with bands, standings and verdicts of rules, and sweeps over learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kasync.experiments.experiment import Contender, Task
from kasync.experiments.settings import facts_of
from kasync.experiments.store import Run
from kasync.report.results import ACCURACY, ANY, STABILITY, WORDS, Findings, Line, reaching
from kasync.statistics import Estimate, bands, estimate
from kasync.verdict import verdict

POINTS = 160  # on a curve, at most: more cannot be told apart on a screen
AXES = ("step", "time", "updates")
NEAR = 0.9  # of the limit's accuracy: the steps to it are counted
FOLD = 30.0  # a range of rates in which nobody needs to look far
KEPT = 0.95  # of the best accuracy
Reals = NDArray[np.float64]


# ---- curves


@dataclass(frozen=True, eq=False)
class Band:
    """A curve with its interval; `low` and `high` as `statistics.bands` makes them. [points] each"""

    x: Reals
    mean: Reals
    low: Reals
    high: Reals


def evaluations(line: Line, column: str, against: str = "step") -> Band | None:
    """A column of metrics.csv against steps, virtual time or client updates; also of runs that still go on."""
    curves = [(run.rows[against], run.rows[column]) for run in line.runs.values() if run.rows]
    return band(curves, common=len(line.finished) == len(line.runs))


def during(line: Line, name: str) -> Band | None:
    """What the rule did, against steps: in blocks where runs are finished, at evaluations while they go on."""
    return band([curve for run in line.runs.values() if (curve := _told(run, name)) is not None])


def band(curves: Sequence[tuple[Reals, Reals]], common: bool = False) -> Band | None:
    """Curves (x, y) of the seeds on one axis: theirs where all share it, else each interpolated within its reach.

    With `common` the axis is where all of them are: else a mean jumps where one of them ends.
    """
    thinned = [_thinned(x, y) for x, y in curves if np.isfinite(y).any()]
    if not thinned:
        return None
    first = thinned[0][0]
    if all(np.array_equal(x, first) for x, _ in thinned):
        return Band(first, *bands([y for _, y in thinned]))
    ends = [(x[0], x[-1]) for x, _ in thinned]
    axis = np.linspace(min(start for start, _ in ends), max(end for _, end in ends), max(len(x) for x, _ in thinned))
    latest, earliest = max(start for start, _ in ends), min(end for _, end in ends)
    if common and latest < earliest:
        every = np.sort(np.concatenate([x for x, _ in thinned]))[:: len(thinned)]  # as dense as the curves are
        axis = np.unique(np.append(every[(every >= latest) & (every <= earliest)], [latest, earliest]))
    return Band(axis, *bands([np.interp(axis, x, y, left=np.nan, right=np.nan) for x, y in thinned]))


def counts(line: Line, name: str) -> Reals | None:
    """A histogram of steps.npz as shares, the mean over the finished seeds."""
    arrays = [run.steps[name].astype(np.float64) for run in line.finished if name in run.steps]
    arrays = [array / array.sum() for array in arrays if array.sum() > 0]
    longest = max(map(len, arrays), default=0)  # the shorter ones are filled up with zeros
    return np.mean([np.pad(array, (0, longest - len(array))) for array in arrays], axis=0) if arrays else None


def _told(run: Run, name: str) -> tuple[Reals, Reals] | None:
    source = run.steps if name in run.steps else run.rows
    return (source["step"].astype(np.float64), source[name].astype(np.float64)) if name in source else None


def _thinned(x: Reals, y: Reals) -> tuple[Reals, Reals]:
    """At most POINTS points: means of y over equal runs of points, each at its last x."""
    if len(x) <= POINTS:
        return x, y
    edges = np.arange(POINTS + 1) * len(x) // POINTS
    return x[edges[1:] - 1], np.add.reduceat(y, edges[:-1]) / np.diff(edges)


# ---- standings and verdicts


@dataclass(frozen=True, eq=False)
class Standing:
    """One rule on one task. The limit, a rule that knows no staleness, stands beside the others and does not compete.

    `within`: its mean lies within the interval of the best mean, or is the best. `ahead`: its paired difference from
    each other rule is above zero, interval and all.
    """

    line: Line
    accuracy: Estimate
    stability: Estimate | None
    shortfall: float | None = None  # of its mean to the best one
    within: bool = False
    ahead: bool = False
    share: Estimate | None = None  # of the limit's accuracy, seed by seed
    steps: Estimate | None = None  # to NEAR of the limit's mean accuracy, of the seeds that came so far
    fastest: bool = False  # every seed came so far, and no other rule's mean is smaller

    @property
    def limit(self) -> bool:
        return self.line.staleness == ANY

    @property
    def best(self) -> bool:
        return self.shortfall == 0.0


def standings(experiment: Findings, task: Task, way: str) -> list[Standing]:
    """Of every rule that has numbers on one task under one semantics, in the order of the rules."""
    found = {line: each for line in experiment.beside(task, way) if (each := ACCURACY.estimate(line)) is not None}
    rivals = [line for line in found if line.staleness != ANY or way == ANY]
    limit = max((line for line in found if line not in rivals), key=lambda line: found[line].mean, default=None)
    best = max((found[line] for line in rivals), key=lambda each: each.mean, default=None)
    steps = {line: reaching(NEAR * found[limit].mean).estimate(line) if limit else None for line in found}
    paces = {line: each.mean for line in rivals if (each := steps[line]) and each.count == len(line.finished)}
    made = []
    for line, accuracy in found.items():
        share = _share(line, limit) if limit else None
        standing = Standing(line, accuracy, STABILITY.estimate(line), share=share, steps=steps[line])
        if best is not None and line in rivals:
            standing = replace(
                standing,
                shortfall=best.mean - accuracy.mean,
                within=accuracy.mean >= best.mean - (best.half or 0.0),
                ahead=len(rivals) > 1 and all(_beats(line, other) for other in rivals if other is not line),
                fastest=line in paces and paces[line] == min(paces.values()),
            )
        made.append(standing)
    return made


def _beats(line: Line, other: Line) -> bool:
    found = ACCURACY.difference(line, other)
    return found is not None and found.excludes_zero and found.mean > 0


def _share(line: Line, limit: Line) -> Estimate | None:
    ours, most = ACCURACY.by_seed(line), ACCURACY.by_seed(limit)
    return estimate([value / most[seed] for seed, value in ours.items() if value is not None and most.get(seed)])  # type: ignore[operator]


def verdicts_in_words(experiment: Findings) -> dict[str, dict[str, str]]:
    """Task -> semantics -> what can be said of the rules, empty where nothing can be."""
    if experiment.kind == "timelines" or experiment.tried:
        return {}
    ways = experiment.semantics
    return {task.name: {way: verdict_on(experiment, task, way) for way in ways} for task in experiment.tasks}


def sentences(experiment: Findings) -> list[str]:
    """The same as one sentence or two for each task and semantics."""
    titles, several = {task.name: task.title for task in experiment.tasks}, len(experiment.semantics) > 1
    return [
        f"{titles[task]}{f' ({WORDS[way]})' if several else ''}: {words}"
        for task, by_way in verdicts_in_words(experiment).items()
        for way, words in by_way.items()
        if words
    ]


def verdict_on(experiment: Findings, task: Task, way: str) -> str:
    """What can be said of the rules on one task; the limit, which knows no staleness, does not compete."""
    lines = [each.line for each in standings(experiment, task, way) if not each.limit or way == ANY]
    if not lines:
        return ""
    finals = {line.rule.title: ACCURACY.by_seed(line) for line in lines}
    lost = {line.rule.title: sum(bool(run.summary.get("diverged")) for run in line.finished) for line in lines}
    return verdict(finals, planned=max(len(line.runs) for line in lines), diverged=lost)


# ---- learning rates


@dataclass(frozen=True, eq=False)
class Sweep:
    """One rule on one task at ascending rates."""

    task: Task
    rule: Contender
    rates: Sequence[float]
    factors: Sequence[float]  # the rates as multiples of the rule's own, which is the tuned one where there is one
    accuracies: Sequence[Estimate]

    @property
    def best(self) -> int:
        """The place of the rate with the highest mean."""
        return max(range(len(self.rates)), key=lambda place: self.accuracies[place].mean)

    def over(self, fold: float = FOLD) -> tuple[float, float] | None:
        """Mean and least accuracy over the `fold`-fold range of rates with the highest mean; None: none is so wide."""
        windows = []
        for start, low in enumerate(self.rates):
            reach = [place for place in range(start, len(self.rates)) if self.rates[place] >= low * fold * 0.999]
            if reach:
                means = [each.mean for each in self.accuracies[start : reach[0] + 1]]
                windows.append((sum(means) / len(means), min(means)))
        return max(windows, default=None)

    def held(self, kept: float = KEPT) -> tuple[float, bool]:
        """How many-fold the range around the best rate is that keeps this share of accuracy, and if the grid cut it."""
        means = [each.mean for each in self.accuracies]
        least = kept * means[self.best]
        ends, cut = [], False
        for way in (-1, 1):
            place = self.best
            while 0 <= place + way < len(means) and means[place + way] >= least:
                place += way
            rate = math.log(self.rates[place])
            if 0 <= place + way < len(means):  # between here and the next rate it falls below
                part = (means[place] - least) / (means[place] - means[place + way])
                rate += part * (math.log(self.rates[place + way]) - rate)
            else:
                cut = True
            ends.append(rate)
        return math.exp(ends[1] - ends[0]), cut


def sweeps(experiment: Findings) -> Iterator[Sweep]:
    """Every rule on every task, as far as runs are finished, in the order of tasks and rules."""
    bases = {rule.of: replace(rule, label=rule.of, of="", factor=1.0) for rule in experiment.rules}
    for task in experiment.tasks:
        for label, base in bases.items():
            points = sorted(
                (_rate(line), line.rule.factor, found)
                for line in experiment.beside(task, experiment.semantics[0])
                if line.rule.of == label and (found := ACCURACY.estimate(line)) is not None
            )
            if points:
                yield Sweep(task, base, *zip(*points, strict=True))


def _rate(line: Line) -> float:
    rule = line.finished[0].settings["rule"]
    rate: float = rule[facts_of(rule["kind"]).rate]
    return rate
