"""Tuning: the same number of tries for every rule of an experiment, judged on held-out samples.

The rates of a rule are `budget` powers of `spacing` around its own rate in the problem's file: rules whose weights
shrink with staleness need other magnitudes than rules whose weights sum to one, so one grid for all would be unfair.
Then every rule gets `further` more rates, each beyond the end of its grid if that is best, else beside its best one;
a best rate is marked `at_edge` if it is still the last one tried. With `knob`, the best rate is tried with other values
of the rule's main knob, and rules that have none get as many more rates. All this with the first seed. With several
`seeds` the FINALISTS best settings of each rule are tried with all of them, so that a sharp edge that one seed does not
see is seen by another. The held-out samples leave the training set, the test set is never looked at, and the seeds are
not those of the experiments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kasync import files, lock, statistics
from kasync.errors import UserError, unknown
from kasync.experiments import experiment as catalogue
from kasync.experiments import grid
from kasync.experiments.experiment import Cell, Chosen, Tuned
from kasync.experiments.settings import facts_of
from kasync.experiments.store import Run, Store

FIRST_SEED = 100  # experiments count theirs from 0
HELD_OUT = 0.1
PER = ("task", "problem")  # choose for every task, or on the first task of each problem
STEP = 10**0.5
FINALISTS = 3  # settings of each rule that all seeds are spent on
KNOB_TRIES = 4  # values of a main knob, or more rates for a rule without one


def tune(
    name: str,
    out: Path,
    *,
    scale: str = "quick",
    budget: int = 7,
    spacing: float = STEP,
    further: int = 0,
    knob: bool = False,
    per: str = "task",
    seeds: int | None = None,
    rules: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    staleness: str = "true",
    **where: Any,
) -> Path:
    """Choose for every rule of an experiment; the file of chosen settings. What was tried before is not run again.

    `where` is what `grid.make` takes: engine, jobs, workers, address and display.
    """
    if budget < 1:
        raise UserError(f"budget = {budget}: give at least 1 learning rate.")
    if not 1.0 < spacing <= 100.0:
        raise UserError(f"spacing = {spacing}: give a factor above 1 and at most 100 between neighbouring rates.")
    if further < 0:
        raise UserError(f"further = {further}: give 0 or more learning rates beyond the end of the grid.")
    if per not in PER:
        raise unknown("per", per, PER)
    one = catalogue.load(name, scale).only(tasks, rules)
    first = {task.problem.name if per == "problem" and task.problem else task.name: task for task in one.tasks[::-1]}
    seed_list = range(FIRST_SEED, FIRST_SEED + (seeds or 1))
    held = {"validation": HELD_OUT, **(overrides or {})}
    base = replace(one, tasks=list(first.values())[::-1]).cells(seed_list, (staleness,), None, held)
    searches = [Tried(cell, spacing) for cell in base if cell.seed == FIRST_SEED]

    def make(wanted: Sequence[tuple[Tried, Mapping[str, Any], Cell]]) -> None:
        """Make the runs of searches with these settings, on these cells."""
        if not wanted:
            return
        cells = [each.at(cell, settings) for each, settings, cell in wanted]
        failed = dict(grid.make(cells, out, **where).failed)
        for (each, _, _), cell in zip(wanted, cells, strict=True):
            if (why := failed.get(cell.settings.name)) is not None:
                raise UserError(f"a run of {cell.rule.label!r} on {cell.task.name!r} failed while tuning: {why}")
            each.note(cell, Store(out).run(cell.settings.name), one.metric)

    factors = rate_grid(budget, spacing)
    make([(each, each.with_rate(each.own * factor), each.cell) for each in searches for factor in factors])
    for _ in range(further):
        make([(each, each.another(), each.cell) for each in searches])
    if knob:
        values = [each.knobs() for each in searches]
        make([(each, one, each.cell) for each, knobs in zip(searches, values, strict=True) for one in knobs])
        for number in range(KNOB_TRIES):
            left = [each for each, knobs in zip(searches, values, strict=True) if number < KNOB_TRIES - len(knobs)]
            make([(each, each.another(), each.cell) for each in left])
    finalists = {each.place: each.finalists() for each in searches}
    by_place = {each.place: each for each in searches}
    rest = [cell for cell in base if cell.seed != FIRST_SEED]
    make([(by_place[_place(cell)], settings, cell) for cell in rest for settings in finalists[_place(cell)]])
    about = {"experiment": one.name, "scale": scale, "budget": budget, "spacing": spacing, "further": further}
    about |= {"knob": knob, "held_out": HELD_OUT, "seeds": list(seed_list)}
    path = files.make_folder(out / "tuned") / f"{one.name}-{scale}.toml"
    with lock.held(path.parent, wait=10.0):
        Tuned.write(path, about, [each.best for each in searches], [row for each in searches for row in each.tried])
    return path


def rate_grid(budget: int, spacing: float = STEP) -> list[float]:
    """`budget` factors, neighbours so far apart, 1 in the middle (or just below it)."""
    return [spacing ** (place - budget // 2) for place in range(budget)]


def _place(cell: Cell) -> tuple[str, str]:
    return cell.task.name, cell.rule.label


class Tried:
    """What was tried of one rule on one task, and what should be tried next."""

    def __init__(self, cell: Cell, spacing: float) -> None:
        self.cell, self.spacing, self.place = cell, spacing, _place(cell)
        self.facts = facts_of(cell.settings.rule.kind)
        self.own: float = cell.settings.rule.settings[self.facts.rate]  # the rate, whatever it is called
        self.tried: list[dict[str, Any]] = []

    def with_rate(self, rate: float) -> dict[str, Any]:
        return {self.facts.rate: min(self.facts.rate_most, rate)}

    def at(self, cell: Cell, settings: Mapping[str, Any]) -> Cell:
        """The cell with these settings of its rule."""
        rule = cell.settings.rule.having(**settings)
        return replace(cell, settings=replace(cell.settings, rule=rule).resolved())

    def note(self, cell: Cell, run: Run, metric: str) -> None:
        """What a run reached, and the settings that are searched.

        Where perplexity is the metric, `accuracy` is one over it: the mean probability of the right token.
        """
        values, summary = cell.settings.rule.settings, run.summary
        reached = summary.get("final_accuracy") or 0.0
        if metric == "perplexity":
            reached = math.exp(-statistics.final(run.rows["test_loss"]))
        row = {"task": self.place[0], "rule": self.place[1], "seed": cell.seed}
        row["settings"] = {name: values[name] for name in (self.facts.rate, self.facts.knob) if name is not None}
        row["accuracy"] = 0.0 if summary["diverged"] else reached
        self.tried.append(row | {"diverged": summary["diverged"], "run": cell.settings.name})

    @property
    def rates(self) -> list[float]:
        """The rates tried so far, in ascending order."""
        return sorted({row["settings"][self.facts.rate] for row in self.tried})

    @property
    def best(self) -> Chosen:
        """The settings with the highest mean accuracy over seeds; the smaller rate wins a tie.

        Settings that were tried with fewer seeds than others do not count.
        """
        scores: dict[tuple[tuple[str, float], ...], dict[int, float]] = {}
        for row in self.tried:
            scores.setdefault(tuple(row["settings"].items()), {})[row["seed"]] = row["accuracy"]
        most = max(map(len, scores.values()))
        means = {each: sum(by.values()) / most for each, by in scores.items() if len(by) == most}
        top = max(means.values())
        winners = [dict(each) for each in means if means[each] == top]
        settings = min(winners, key=lambda each: each[self.facts.rate])
        problem = self.cell.task.problem.name if self.cell.task.problem else ""
        at_edge = settings[self.facts.rate] in (self.rates[0], self.rates[-1])
        return Chosen(self.place[0], problem, self.place[1], settings, top, at_edge)

    def another(self) -> dict[str, Any]:
        """The best settings with the next rate beyond the grid's end, if that was best, else nearer a neighbour."""
        settings, rates = self.best.settings, self.rates
        rate = settings[self.facts.rate]
        place = rates.index(rate)
        if place == len(rates) - 1 and rate < self.facts.rate_most:
            return {**settings, **self.with_rate(rate * self.spacing)}
        if place == 0:
            return {**settings, **self.with_rate(rate / self.spacing)}
        below, above = rates[place - 1], rates[min(place + 1, len(rates) - 1)]
        return {**settings, self.facts.rate: (rate * (above if above / rate >= rate / below else below)) ** 0.5}

    def knobs(self) -> list[dict[str, Any]]:
        """The best settings with values of the main knob that were not tried with its rates, the first KNOB_TRIES."""
        knob = self.facts.knob
        if knob is None:
            return []
        own = self.cell.settings.rule.settings[knob]
        return [{**self.best.settings, knob: value} for value in self.facts.grid if value != own][:KNOB_TRIES]

    def finalists(self) -> list[Mapping[str, Any]]:
        """The settings that the first seed likes best, in this order."""
        found: list[Mapping[str, Any]] = []
        for row in sorted(self.tried, key=lambda row: -row["accuracy"]):
            if row["settings"] not in found and len(found) < FINALISTS:
                found.append(row["settings"])
        return found
