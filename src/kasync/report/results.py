"""What is in a results folder? Experiments, each with the lines that tables and figures are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kasync.errors import UserError
from kasync.experiments import files
from kasync.experiments.experiment import TITLES
from kasync.report import runs
from kasync.report.runs import Run

SEMANTICS = ("true", "published-code", "none")
ANY = "none"  # of a line whose rule knows no staleness: it stands beside every semantics
NOT_DECISIVE = ("made", "rule", "seed", "staleness", "root", "device", "hold")  # runs that differ in these share a task


@dataclass(frozen=True)
class Task:
    """One line of a table or one panel of a figure, as it was recorded."""

    name: str
    title: str
    group: str | None = None
    x: float | None = None
    stands_for: str = ""
    note: str = ""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # rule label -> number -> value


@dataclass(frozen=True)
class Contender:
    """A rule under the label and the title that the experiment gives it; `of` whose rate it has a multiple of."""

    label: str
    rule: str
    title: str
    of: str = ""


@dataclass(frozen=True, eq=False)
class Line:
    """All seeds of one rule on one task under one semantics of staleness."""

    task: Task
    rule: Contender
    staleness: str
    runs: Mapping[int, Run]  # by seed

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs.values() if run.finished]

    def values(self, name: str) -> dict[int, float | None]:
        """One number of the summaries, by seed; runs that are not finished have none."""
        return {seed: run.summary.get(name) for seed, run in self.runs.items() if run.finished}

    def paper(self, name: str) -> float | None:
        """What the paper prints for it."""
        return self.task.paper.get(self.rule.label, {}).get(name)


@dataclass(frozen=True, eq=False)
class Experiment:
    """A table or figure of the paper or a comparison of one's own, as it was recorded."""

    name: str
    title: str
    tasks: Sequence[Task]
    rules: Sequence[Contender]
    lines: Sequence[Line]
    shows: str = ""
    command: str = ""
    figures: Sequence[str] = ()
    kind: str = "training"
    tuned: str | None = None
    targets: Sequence[float] = ()

    @property
    def semantics(self) -> list[str]:
        """Those there are; a line without staleness counts only where there is no other."""
        there = [each for each in SEMANTICS if any(line.staleness == each for line in self.lines)]
        return [each for each in there if each != ANY] or there

    def beside(self, task: Task, staleness: str) -> list[Line]:
        """The lines of one panel: this task under this semantics, in the order of the rules."""
        return [line for line in self.lines if line.task is task and line.staleness in (staleness, ANY)]

    def groups(self) -> dict[str, list[Task]]:
        """Tasks by the line of a table or the figure that they belong to, each in the order of x."""
        grouped: dict[str, list[Task]] = {}
        for task in self.tasks:
            grouped.setdefault(task.group or self.title, []).append(task)
        return {name: sorted(tasks, key=lambda task: task.x or 0.0) for name, tasks in grouped.items()}

    @property
    def counts(self) -> tuple[int, int]:
        """Runs that are finished, and runs planned."""
        every = {run.folder: run.finished for line in self.lines for run in line.runs.values()}
        return sum(every.values()), len(every)


@dataclass(frozen=True, eq=False)
class Results:
    """Everything in a results folder."""

    folder: Path
    experiments: Sequence[Experiment]

    @property
    def counts(self) -> tuple[int, int]:
        """Distinct runs that are finished, and distinct runs planned."""
        lines = [line for experiment in self.experiments for line in experiment.lines]
        every = {run.folder: run.finished for line in lines for run in line.runs.values()}
        return sum(every.values()), len(every)


def read(folder: str | Path) -> Results:
    """A results folder, a run folder, or a folder of run folders."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}: give a results folder."
        )
    recorded = sorted((folder / "experiments").glob("*.json"))
    recorded = [path for path in recorded if path.name != "lock.json"]
    if recorded:
        return Results(folder, [_recorded(folder, path) for path in recorded])
    alone = [folder] if (folder / "run.toml").exists() else sorted(path.parent for path in folder.glob("*/run.toml"))
    if alone:
        return Results(folder, [_loose(folder, alone)])
    raise UserError(f"{folder} is not a results folder: it holds neither experiments/ nor run.toml{_hint(folder)}.")


def _hint(folder: Path) -> str:
    inside = sorted(path.parent for path in folder.glob("*/experiments") if path.is_dir())
    if inside:
        return f"; {' and '.join(str(path) for path in inside[:3])} {'does' if len(inside) == 1 else 'do'}"
    return "; give a folder that kasync run, compare or reproduce filled"


def _recorded(folder: Path, path: Path) -> Experiment:
    """An experiment from its list of cells."""
    table = files.read_json(path)
    try:
        if (table["format"], table["version"]) != ("kasync experiment", 1):
            raise ValueError(f"its format is {table['format']!r}, version {table['version']!r}")
        tasks = [Task(**_known(row, Task)) for row in table["tasks"]]
        rules = [Contender(**_known(row, Contender)) for row in table["rules"]]
        places = [tuple(row[key] for key in ("task", "rule", "staleness", "seed")) for row in table["cells"]]
        folders = [_inside(folder, row["run"]) for row in table["cells"]]
        about = {name: table[name] for name in ("shows", "command", "figures", "kind", "targets")}
        title, tuned = table["title"], table.get("tuned")
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{path} is no list of cells ({problem}): delete it and run the command again.") from None
    lines = _lines(tasks, rules, [(*place, where) for place, where in zip(places, folders, strict=True)])
    return Experiment(path.stem, title, tasks, rules, lines, tuned=tuned, **about)


def _known(row: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields of a record that its class has: later versions may write more."""
    return {name: row[name] for name in kind.__dataclass_fields__ if name in row}  # type: ignore[attr-defined]


def _inside(folder: Path, run: str) -> Path:
    """The folder of a cell's run, which has to lie in the results folder."""
    path = folder / run
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"the run {run!r} lies elsewhere")
    return path


def _lines(tasks: Sequence[Task], rules: Sequence[Contender], cells: Iterable[tuple[Any, ...]]) -> list[Line]:
    """Cells (task, rule, staleness, seed, folder) gathered over their seeds, ordered by task, rule, semantics."""
    by_place: dict[tuple[str, str, str], dict[int, Run]] = {}
    for task_name, label, staleness, seed, path in cells:
        by_place.setdefault((task_name, label, staleness), {})[seed] = runs.read(path)
    return [
        Line(task, rule, staleness, dict(sorted(by_place[place].items())))
        for task in tasks
        for rule in rules
        for staleness in SEMANTICS
        if (place := (task.name, rule.label, staleness)) in by_place
    ]


def _loose(folder: Path, folders: Sequence[Path]) -> Experiment:
    """Runs that no experiment lists: those that share all settings but the rule and the seed share a task."""
    tasks: dict[str, Task] = {}
    rules: dict[str, Contender] = {}
    cells = []
    for path in folders:
        settings = runs.read(path).settings
        kept = json.dumps({n: v for n, v in settings.items() if n not in NOT_DECISIVE}, sort_keys=True, default=str)
        title = f"{settings['dataset']}, P/K = {settings['clients']}/{settings['k']}"
        tasks.setdefault(kept, Task(f"task-{len(tasks) + 1}", title))
        label = _label(settings["rule"], rules)
        cells.append((tasks[kept].name, label, settings["staleness"], settings["seed"], path))
    lines = _lines(list(tasks.values()), list(rules.values()), cells)
    kind = "timelines" if all(rule.rule == "none" for rule in rules.values()) else "training"
    name = folder.resolve().name
    return Experiment(name, name, list(tasks.values()), list(rules.values()), lines, kind=kind)


def _label(rule: Mapping[str, Any], rules: dict[str, Contender]) -> str:
    """The label of a rule with these settings, a new one when the same rule was seen with others."""
    key = json.dumps(rule, sort_keys=True, default=str)
    if key not in rules:
        same = sum(each.rule == rule["kind"] for each in rules.values())
        suffix = f" ({same + 1})" if same else ""
        rules[key] = Contender(rule["kind"] + suffix, rule["kind"], TITLES.get(rule["kind"], rule["kind"]) + suffix)
    return rules[key].label
