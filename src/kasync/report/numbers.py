"""What is computed from lines: curves with bands, standings and verdicts of rules, and sweeps over learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kasync.experiments.experiment import Contender, Task
from kasync.experiments.settings import facts_of
from kasync.report.results import ACCURACY, ANY, STABILITY, WORDS, Findings, Line, reaching
from kasync.statistics import Estimate, bands
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
    sources = [run.steps if name in run.steps else run.rows for run in line.runs.values()]
    return band([(told["step"].astype(float), told[name].astype(float)) for told in sources if name in told])


def band(curves: Sequence[tuple[Reals, Reals]], common: bool = False) -> Band | None:
    """Curves (x, y) of the seeds on one axis: theirs where all share it, else each interpolated within its reach.

    With `common` the axis is where all of them are: else a mean jumps where one of them ends.
    """
    thinned = [_thinned(x, y) for x, y in curves if np.isfinite(y).any()]
    if not thinned:
        return None
    axes = [x for x, _ in thinned]
    if all(np.array_equal(x, axes[0]) for x in axes):
        return Band(axes[0], *bands([y for _, y in thinned]))
    starts, ends = [x[0] for x in axes], [x[-1] for x in axes]
    axis = np.linspace(min(starts), max(ends), max(map(len, axes)))
    if common and max(starts) < min(ends):
        every = np.sort(np.concatenate(axes))[:: len(axes)]  # as dense as the curves are
        axis = np.unique(np.clip(np.append(every, [max(starts), min(ends)]), max(starts), min(ends)))
    return Band(axis, *bands([np.interp(axis, x, y, left=np.nan, right=np.nan) for x, y in thinned]))


def counts(line: Line, name: str) -> Reals | None:
    """A histogram of steps.npz as shares, the mean over the finished seeds."""
    arrays = [run.steps[name].astype(np.float64) for run in line.finished if name in run.steps]
    arrays = [array / array.sum() for array in arrays if array.sum() > 0]
    longest = max(map(len, arrays), default=0)  # the shorter ones are filled up with zeros
    return np.mean([np.pad(array, (0, longest - len(array))) for array in arrays], axis=0) if arrays else None


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
        share = ACCURACY.ratio(line, limit) if limit else None
        standing = Standing(line, accuracy, STABILITY.estimate(line), share=share, steps=steps[line])
        if best is not None and line in rivals:
            gaps = [ACCURACY.difference(line, other) for other in rivals if other is not line]
            standing = replace(
                standing,
                shortfall=best.mean - accuracy.mean,
                within=accuracy.mean >= best.mean - (best.half or 0.0),
                ahead=bool(gaps) and all(gap and gap.excludes_zero and gap.mean > 0 for gap in gaps),
                fastest=line in paces and paces[line] == min(paces.values()),
            )
        made.append(standing)
    return made


def verdicts_in_words(experiment: Findings) -> dict[str, dict[str, str]]:
    """Task -> semantics -> what can be said of the rules, empty where nothing can be.

    The limit, which knows no staleness, does not compete.
    """
    found: dict[str, dict[str, str]] = {}
    for task, way, _ in experiment.panels if experiment.about.kind == "training" and not experiment.tried else ():
        lines = [each.line for each in standings(experiment, task, way) if not each.limit or way == ANY]
        finals = {line.rule.title: ACCURACY.by_seed(line) for line in lines}
        lost = {line.rule.title: sum(bool(run.summary.get("diverged")) for run in line.finished) for line in lines}
        planned = max((len(line.runs) for line in lines), default=0)
        found.setdefault(task.name, {})[way] = verdict(finals, planned=planned, diverged=lost) if lines else ""
    return found


def sentences(experiment: Findings) -> list[str]:
    """The same as one sentence or two for each task and semantics."""
    titles, several = {task.name: task.title for task in experiment.tasks}, len(experiment.semantics) > 1
    return [
        f"{titles[task]}{f' ({WORDS[way]})' if several else ''}: {words}"
        for task, by_way in verdicts_in_words(experiment).items()
        for way, words in by_way.items()
        if words
    ]


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
        rates, windows = np.asarray(self.rates), []
        for start, stop in enumerate(np.searchsorted(rates, rates * fold * 0.999)):
            if stop < len(rates):
                means = [each.mean for each in self.accuracies[start : stop + 1]]
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
                (rule[facts_of(rule["kind"]).rate], line.rule.factor, found)
                for line in experiment.beside(task, experiment.semantics[0])
                if line.rule.of == label and (found := ACCURACY.estimate(line)) is not None
                for rule in [line.finished[0].settings["rule"]]
            )
            if points:
                yield Sweep(task, base, *zip(*points, strict=True))
