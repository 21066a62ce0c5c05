"""How much does the learning rate matter to a rule? Its accuracy at several rates, and over which range it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kasync.report.intervals import Estimate
from kasync.report.measures import ACCURACY
from kasync.report.printing import NOTHING, table
from kasync.report.results import Contender, Experiment, Line, Task

FOLD = 30.0  # a range of rates in which nobody needs to look far
KEPT = 0.95  # of the best accuracy


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


def tried(experiment: Experiment) -> bool:
    """Whether the contenders are rules at several rates."""
    return any(rule.of for rule in experiment.rules)


def sweeps(experiment: Experiment) -> Iterator[Sweep]:
    """Every rule on every task, as far as runs are finished, in the order of tasks and rules."""
    bases = {rule.of: Contender(rule.of, rule.rule, rule.title.partition(", rate ×")[0]) for rule in experiment.rules}
    for task in experiment.tasks:
        for label, base in bases.items():
            points = sorted(
                (_rate(line), float(line.rule.label.rpartition("@")[2]), found)
                for line in experiment.beside(task, experiment.semantics[0])
                if line.rule.of == label and (found := ACCURACY.estimate(line)) is not None
            )
            if points:
                yield Sweep(task, base, *zip(*points, strict=True))


def table_of(experiment: Experiment) -> str:
    """A row for each rule and task."""
    rows = []
    for sweep in sweeps(experiment):
        fold, cut = sweep.held()
        over = sweep.over()
        rows.append(
            [
                sweep.task.title,
                sweep.rule.title,
                f"{sweep.rates[sweep.best]:.3g}",
                f"{sweep.accuracies[sweep.best].mean:.4f}",
                *([NOTHING] * 2 if over is None else (f"{value:.4f}" for value in over)),
                f"{'at least ' if cut else ''}{fold:.1f}",
            ]
        )
    head = [
        "task",
        "rule",
        "best rate",
        "accuracy there",
        f"mean accuracy over its best {FOLD:g}-fold range of rates",
        "least accuracy in it",
        f"range with {KEPT:.0%} of its best accuracy, fold",
    ]
    return table("### Accuracy when the learning rate is wrong", head, rows)


def _rate(line: Line) -> float:
    rule = line.finished[0].settings["rule"]
    return rule["lr"] if "lr" in rule else rule["mixing"]
