"""What is an experiment? A file that names tasks, rules, seeds and the paper's numbers; here it becomes cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from kasync.errors import unknown
from kasync.experiments.problems import Problem
from kasync.experiments.settings import SECTIONS, RunSettings
from kasync.experiments.tuned import Tuned

TITLES = {
    "wkafl": "WKAFL",
    "twafl": "TWAFL",
    "sasgd": "SASGD",
    "gsgm": "GSGM",
    "kasync_sgd": "K-async SGD",
    "fedbuff": "FedBuff",
    "ca2fl": "CA2FL",
    "fresh": "no staleness",
    "zeno": "Zeno++",
    "recall": "Recall",
    "ace": "ACE",
    "fadas": "FADAS",
    "delay_adaptive": "delay-adaptive",
    "ringmaster": "Ringmaster",
}


@dataclass(frozen=True)
class Variant:
    """A rule under another name: with other settings, with parts left out, or with a run of another shape.

    With a `factor` it is the contender `of` with its learning rate, tuned or not, times this factor.
    """

    rule: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class Task:
    """One line of a table or one panel of a figure."""

    name: str
    title: str
    problem: Problem
    run: Mapping[str, Any]
    group: str | None = None
    x: float | None = None
    note: str = ""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    task: str
    rule: str  # the label
    staleness: str
    seed: int
    settings: RunSettings  # resolved

    def entry(self) -> dict[str, Any]:
        """As experiments/NAME.json lists it."""
        run = f"runs/{self.settings.name}"
        return {"task": self.task, "rule": self.rule, "staleness": self.staleness, "seed": self.seed, "run": run}


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or a comparison of one's own."""

    name: str
    title: str
    shows: str
    command: str
    rules: Sequence[str]
    tasks: Mapping[str, Sequence[Task]]  # by scale
    seeds: Mapping[str, int] = field(default_factory=lambda: {"quick": 2, "full": 3})  # by scale
    figures: Sequence[str] = ()
    targets: Sequence[float] = ()
    kind: str = "training"
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def variant(self, label: str) -> Variant:
        return self.variants.get(label) or Variant(label, TITLES.get(label, label))

    def tasks_at(self, scale: str) -> Sequence[Task]:
        if scale not in self.tasks:
            raise unknown(f"scale of {self.name}", scale, self.tasks)
        return self.tasks[scale]

    def only(self, scale: str, tasks: Sequence[str] | None) -> Experiment:
        """With the tasks of this scale whose name is one of these or fits one of these patterns (`cifar10*`)."""
        if tasks is None:
            return self
        every = self.tasks_at(scale)
        for pattern in tasks:
            if not any(fnmatchcase(task.name, pattern) for task in every):
                raise unknown(f"task of {self.name}", pattern, [task.name for task in every])
        kept = [task for task in every if any(fnmatchcase(task.name, pattern) for pattern in tasks)]
        return replace(self, tasks={scale: kept})

    def labels(self, rules: Sequence[str] | None) -> list[str]:
        """The contenders that these rules stand for, all without rules: a rule at several rates is several."""
        if not rules:
            return list(self.rules)
        at_rates = {rule: [label for label in self.rules if self.variant(label).of == rule] for rule in rules}
        return [label for rule in rules for label in at_rates[rule] or [rule]]

    def cells(
        self,
        scale: str,
        seeds: Sequence[int] | None = None,
        staleness: Sequence[str] = ("true",),
        tuned: Tuned | None = None,
        overrides: Mapping[str, Any] | None = None,
        rules: Sequence[str] | None = None,
    ) -> list[Cell]:
        """Every run, resolved and checked; seed by seed, so that an unfinished grid has whole rows."""
        cells: list[Cell] = []
        tasks, labels = self.tasks_at(scale), self.labels(rules)
        for seed in range(self.seeds[scale]) if seeds is None else seeds:
            for task in tasks:
                for label in labels:
                    for semantics in staleness:
                        cell = self._cell(task, label, semantics, seed, tuned, overrides or {})
                        if not any(_same(cell, other) for other in cells[-len(staleness) :]):
                            cells.append(cell)
        return cells

    def _cell(
        self, task: Task, label: str, semantics: str, seed: int, tuned: Tuned | None, overrides: Mapping[str, Any]
    ) -> Cell:
        variant = self.variant(label)
        table = merged(task.problem.run, task.run, variant.run, {"seed": seed, "staleness": semantics}, overrides)
        own = {} if self.kind == "timelines" else dict(task.problem.settings_of(variant.rule))
        values = {**own, **variant.settings}
        if tuned is not None:
            values = tuned.applied(values, task.name, task.problem.name, variant.of or label)
        if "lr_per_arrival" in values:  # the authors' SASGD is not divided by k
            values["lr"] = values.pop("lr_per_arrival") * table["k"]
        if variant.factor != 1.0:
            rate = "lr" if "lr" in values else "mixing"
            values[rate] *= variant.factor
        kind = "none" if self.kind == "timelines" else variant.rule
        where = f"task {task.name!r} of {self.name}"
        settings = RunSettings.of({**table, "rule": {"kind": kind, **values}}, where).resolved()
        return Cell(task.name, label, settings.staleness, seed, settings)

    def entry(self, scale: str, rules: Sequence[str] | None = None) -> dict[str, Any]:
        """What experiments/NAME-SCALE.json says, but for the cells."""
        contenders = [(label, self.variant(label)) for label in self.labels(rules)]
        return {
            "format": "kasync experiment",
            "version": 1,
            "name": self.name,
            "scale": scale,
            "title": self.title,
            "shows": self.shows,
            "command": self.command,
            "figures": list(self.figures),
            "kind": self.kind,
            "targets": list(self.targets),
            "tasks": [
                {
                    "name": task.name,
                    "title": task.title,
                    "group": task.group,
                    "x": task.x,
                    "problem": task.problem.name,
                    "stands_for": task.problem.stands_for,
                    "note": " ".join(text for text in (task.problem.note, task.note) if text),
                    "paper": {label: dict(numbers) for label, numbers in task.paper.items()},
                }
                for task in self.tasks_at(scale)
            ],
            "rules": [
                {"label": label, "rule": one.rule, "title": one.title, **({"of": one.of} if one.of else {})}
                for label, one in contenders
            ],
        }


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Later tables win, setting by setting; a section of another kind replaces the earlier one whole."""
    result: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            before = result.get(name)
            if name in SECTIONS and isinstance(before, Mapping) and isinstance(value, Mapping):
                same = value.get("kind", before.get("kind")) == before.get("kind")
                result[name] = {**before, **value} if same else dict(value)
            else:
                result[name] = value
    return result


def _same(one: Cell, other: Cell) -> bool:
    return (one.task, one.rule, one.seed, one.settings) == (other.task, other.rule, other.seed, other.settings)
