"""Who is best, where, and by how much? Every rule on every task beside the best one and beside the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kasync.report.intervals import Estimate, estimate
from kasync.report.measures import ACCURACY, STABILITY, steps_to
from kasync.report.results import ANY, Contender, Experiment, Line, Task

NEAR = 0.9  # of the limit's accuracy: the steps to it are counted


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


@dataclass(frozen=True, eq=False)
class Verdict:
    """One rule over those tasks on which it has numbers; an extreme is (value, task)."""

    rule: Contender
    limit: bool
    tasks: int
    best: int
    ahead: int
    within: int
    fastest: int
    shortfall: tuple[float, Task] | None  # the largest
    share: tuple[float, Task] | None  # the smallest
    stability: tuple[float, Task] | None  # the largest


def standings(experiment: Experiment, task: Task, way: str) -> list[Standing]:
    """Of every rule that has numbers on one task under one semantics, in the order of the rules."""
    found = {line: each for line in experiment.beside(task, way) if (each := ACCURACY.estimate(line)) is not None}
    rivals = [line for line in found if line.staleness != ANY or way == ANY]
    limit = max((line for line in found if line not in rivals), key=lambda line: found[line].mean, default=None)
    best = max((found[line] for line in rivals), key=lambda each: each.mean, default=None)
    steps = {line: steps_to(NEAR * found[limit].mean).estimate(line) if limit else None for line in found}
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


def verdicts(experiment: Experiment, tasks: Sequence[Task], way: str) -> list[Verdict]:
    """Of every rule over these tasks, in the order of the rules."""
    every = [each for task in tasks for each in standings(experiment, task, way)]
    found = []
    for rule in experiment.rules:
        mine = [each for each in every if each.line.rule is rule]
        if mine:
            found.append(
                Verdict(
                    rule,
                    mine[0].limit and way != ANY,
                    len(mine),
                    best=sum(each.best for each in mine),
                    ahead=sum(each.ahead for each in mine),
                    within=sum(each.within for each in mine),
                    fastest=sum(each.fastest for each in mine),
                    shortfall=_extreme(max, ((each.shortfall, each.line.task) for each in mine)),
                    share=_extreme(min, ((_mean(each.share), each.line.task) for each in mine)),
                    stability=_extreme(max, ((_mean(each.stability), each.line.task) for each in mine)),
                )
            )
    return found


def _extreme(
    pick: Callable[..., tuple[float, Task]], pairs: Iterable[tuple[float | None, Task]]
) -> tuple[float, Task] | None:
    known = [(value, task) for value, task in pairs if value is not None]
    return pick(known, key=lambda pair: pair[0]) if known else None


def _beats(line: Line, other: Line) -> bool:
    found = ACCURACY.difference(line, other)
    return found is not None and found.excludes_zero and found.mean > 0


def _share(line: Line, limit: Line) -> Estimate | None:
    ours, most = ACCURACY.by_seed(line), ACCURACY.by_seed(limit)
    return estimate([value / most[seed] for seed, value in ours.items() if value is not None and most.get(seed)])  # type: ignore[operator]


def _mean(found: Estimate | None) -> float | None:
    return None if found is None else found.mean
