"""What is in a results folder: experiments with the lines that tables and figures are made of, and their numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from kasync import statistics
from kasync.errors import UserError
from kasync.experiments.experiment import COSTS, Contender, Experiment, Task
from kasync.experiments.settings import title_of
from kasync.experiments.store import ABOUT, Run, Store, run_in
from kasync.statistics import Estimate, estimate, paired, ratios

SEMANTICS = ("true", "published-code", "none")
WORDS = {"true": "true staleness", "published-code": "published code", "none": "no staleness"}
ANY = "none"  # of a line whose rule knows no staleness: it stands beside every semantics
NOT_DECISIVE = ("rule", "seed", "staleness", "root", "device", "hold")  # runs that differ in these share a task
RATIO = 2.0  # mu of N_ave in tables


@dataclass(frozen=True, eq=False)
class Line:
    """All seeds of one rule on one task under one semantics of staleness."""

    task: Task
    rule: Contender
    staleness: str
    runs: Mapping[int, Run]  # by seed
    entry: str = ""  # the label of the contender that tuning put in the rule's place

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs.values() if run.finished]

    def paper(self, name: str) -> float | None:
        """What the paper prints for it."""
        return self.task.paper.get(self.rule.label, {}).get(name)


@dataclass(frozen=True, eq=False)
class Findings:
    """An experiment and what its runs gave so far."""

    name: str
    about: Experiment
    lines: Sequence[Line]

    @property
    def tasks(self) -> Sequence[Task]:
        return self.about.tasks

    @property
    def rules(self) -> Sequence[Contender]:
        return self.about.rules

    @property
    def tried(self) -> bool:
        """Whether the contenders are rules at several learning rates."""
        return any(rule.of for rule in self.rules)

    @property
    def semantics(self) -> list[str]:
        """Those there are; a line without staleness counts only where there is no other."""
        there = [each for each in SEMANTICS if any(line.staleness == each for line in self.lines)]
        return [each for each in there if each != ANY] or there

    def beside(self, task: Task, staleness: str) -> list[Line]:
        """The lines of one panel: this task under this semantics, in the order of the rules."""
        return [line for line in self.lines if line.task is task and line.staleness in (staleness, ANY)]

    @property
    def panels(self) -> list[tuple[Task, str, list[Line]]]:
        """Each task under each semantics, with its lines."""
        return [(task, way, self.beside(task, way)) for task in self.tasks for way in self.semantics]

    @property
    def pairs(self) -> list[tuple[str, Line, Line]]:
        """Lines that can be compared, each pair once, with the semantics."""
        return [(way, *pair) for _, way, lines in self.panels for pair in combinations(lines, 2)]

    def groups(self) -> dict[str, list[Task]]:
        """Tasks by the line of a table or the figure that they belong to, each in the order of x."""
        grouped: dict[str, list[Task]] = {}
        for task in self.tasks:
            grouped.setdefault(task.group or self.about.title, []).append(task)
        return {name: sorted(tasks, key=lambda task: task.x or 0.0) for name, tasks in grouped.items()}

    @property
    def counts(self) -> tuple[int, int]:
        """Runs that are finished, and runs planned."""
        return _counts(self.lines)


@dataclass(frozen=True, eq=False)
class Results:
    """Everything in a results folder."""

    folder: Path
    experiments: Sequence[Findings]

    @property
    def counts(self) -> tuple[int, int]:
        """Distinct runs that are finished, and distinct runs planned."""
        return _counts([line for experiment in self.experiments for line in experiment.lines])


def _counts(lines: Iterable[Line]) -> tuple[int, int]:
    every = {run.key: run.finished for line in lines for run in line.runs.values()}
    return sum(every.values()), len(every)


# ---- reading


def read(folder: str | Path) -> Results:
    """A results folder, a run folder, or a folder of run folders."""
    folder = Path(folder)
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {problem}: give a results folder.")
    store = Store(folder)
    if recorded := store.experiments():
        return Results(folder, [*_recorded(store, recorded)])
    alone = [folder] if (folder / "run.toml").exists() else sorted(path.parent for path in folder.glob("*/run.toml"))
    if alone:
        return Results(folder, [_loose(folder, alone)])
    inside = sorted(str(path.parent) for path in folder.glob(f"*/{ABOUT}"))
    hint = "give a folder that kasync run, compare or reproduce filled"
    if (folder / "experiments").is_dir():
        hint = f"an older version filled it: kasync results pack {folder}"
    if inside:
        hint = f"{' and '.join(inside[:3])} {'does' if len(inside) == 1 else 'do'}"
    raise UserError(f"{folder} is not a results folder: it holds neither {ABOUT} nor run.toml; {hint}.")


def _recorded(store: Store, recorded: Mapping[str, Mapping[str, Any]]) -> Iterable[Findings]:
    """Every experiment of the store, in the order of their names."""
    cells: dict[str, list[tuple[Any, ...]]] = {}
    entries: dict[str, dict[tuple[Any, ...], str]] = {}
    for row in store.cells():
        place = (row["task"], row["rule"], row["staleness"])
        cells.setdefault(row["experiment"], []).append((place, row["seed"], store.run(row["key"])))
        entries.setdefault(row["experiment"], {})[place] = row.get("entry") or ""
    for name, table in sorted(recorded.items()):
        try:
            about = Experiment.of(table)
        except (KeyError, TypeError, ValueError) as problem:
            words = f"says nothing of use about {name} ({problem}): delete it and run again."
            raise UserError(f"{store.folder / ABOUT} {words}") from None
        yield Findings(name, about, _lines(about, cells.get(name, []), entries.get(name, {})))


def _lines(
    about: Experiment, cells: Iterable[tuple[Any, ...]], entries: Mapping[tuple[Any, ...], str] | None = None
) -> list[Line]:
    """Cells ((task, rule, staleness), seed, run) gathered over their seeds, ordered by task, rule, semantics."""
    by_place: dict[tuple[str, str, str], dict[int, Run]] = {}
    for place, seed, run in cells:
        by_place.setdefault(place, {})[seed] = run
    return [
        Line(task, rule, staleness, dict(sorted(by_place[place].items())), (entries or {}).get(place, ""))
        for task in about.tasks
        for rule in about.rules
        for staleness in SEMANTICS
        if (place := (task.name, rule.label, staleness)) in by_place
    ]


def _loose(folder: Path, folders: Sequence[Path]) -> Findings:
    """Runs that no experiment lists: those that share all settings but the rule and the seed share a task."""
    tasks: dict[str, Task] = {}
    rules: dict[str, Contender] = {}
    cells = []
    for path in folders:
        run = run_in(path)
        settings = run.settings
        kept = json.dumps({n: v for n, v in settings.items() if n not in NOT_DECISIVE}, sort_keys=True, default=str)
        sizes = f"P/K = {settings['clients']}/{settings['k']}"
        tasks.setdefault(kept, Task(f"task-{len(tasks) + 1}", sizes, settings["dataset"]))
        rule, key = settings["rule"]["kind"], json.dumps(settings["rule"], sort_keys=True, default=str)
        same = sum(each.rule == rule for each in rules.values())  # the rule was seen with other settings
        suffix = f" ({same + 1})" if same else ""
        rules.setdefault(key, Contender(rule + suffix, rule, title_of(rule) + suffix))
        cells.append(((tasks[kept].name, rules[key].label, settings["staleness"]), settings["seed"], run))
    kind = "timelines" if all(rule.rule == "none" for rule in rules.values()) else "training"
    name = folder.resolve().name
    about = Experiment(name, name, list(rules.values()), list(tasks.values()), kind=kind)
    return Findings(name, about, _lines(about, cells))


def only(results: Results, places: Mapping[str, set[tuple[str, str]]]) -> list[Findings]:
    """The experiments of these names with the lines at these (task, rule)."""
    found = []
    for each in results.experiments:
        kept = [line for line in each.lines if (line.task.name, line.rule.label) in places.get(each.name, ())]
        rules = [rule for rule in each.rules if any(line.rule is rule for line in kept)]
        tasks = [task for task in each.tasks if any(line.task is task for line in kept)]
        found += [Findings(each.name, replace(each.about, tasks=tasks, rules=rules), kept)] if kept else []
    return found


# ---- numbers


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    name: str
    title: str
    of: Callable[[Run], float | None]
    digits: int = 4

    def by_seed(self, line: Line) -> dict[int, float | None]:
        """Of the finished runs of a line."""
        return {seed: self.of(run) for seed, run in line.runs.items() if run.finished}

    def estimate(self, line: Line) -> Estimate | None:
        return estimate(list(self.by_seed(line).values()))

    def difference(self, line: Line, other: Line) -> Estimate | None:
        """This line minus the other, paired by seed."""
        return paired(self.by_seed(line), self.by_seed(other))

    def ratio(self, line: Line, other: Line) -> Estimate | None:
        """This line over the other, paired by seed."""
        return estimate(ratios(self.by_seed(line), self.by_seed(other)))


def _of(name: str, title: str, digits: int = 4, column: str = "") -> Measure:
    """A number of the summary, `predominant.mean` one in a table of it."""
    table, dot, last = name.rpartition(".")
    return Measure(
        column or name, title, lambda run: ((run.summary.get(table) or {}) if dot else run.summary).get(last), digits
    )


def _final(name: str) -> Measure:
    """How a column of metrics.csv ends: the mean of its last evaluations."""

    def of(run: Run) -> float | None:
        value = statistics.final(run.rows[name]) if name in run.rows else math.nan
        return value if math.isfinite(value) else None

    return Measure(f"final_{name}", f"final {name}", of)


ACCURACY = _of("final_accuracy", "final accuracy")
STABILITY = _of("stability", "stability")
PRINTED = {"final_accuracy": "accuracy", "stability": "stability"}  # what the paper's numbers are called
BEHAVIOUR = (
    _of("average_staleness", "τ_ave", 2),
    Measure("aggregated", f"N_ave (μ = {RATIO:g})", lambda run: run.aggregated(RATIO), 2),
    _of("predominant.mean", "predominant gradients", 2, "predominant"),
    _of("predominant.at_most_five", "steps with at most five", 3, "at_most_five"),
    _of("stage_two_step", "stage two from step", 0),
    _of("dropped", "dropped", 0),
)
OF_TIMELINES = (  # Appendix D, counted from 1
    _of("bound", "least by Appendix D", 2),
    _of("least_held", "least mean held", 2),
    _of("held", "mean held", 2),
    _of("delivered", "mean delivered", 2),
)
ENDS = tuple(_of(name, name.replace("_", " ")) for name in ("best_accuracy", "last_accuracy", "last_test_loss"))
OURS = (  # columns of metrics.csv; metrics of the user's own come after them
    *("step", "time", "updates", "accuracy", "test_loss", "train_loss", "lr", "stage", "staleness"),
    *("selected", "dropped"),
)
PERPLEXITY = Measure(
    *("final_perplexity", "final perplexity"),
    lambda run: math.exp(statistics.final(run.rows["test_loss"])) if run.rows else None,
    digits=2,
)


def reaching(target: float, name: str = "step", metric: str = "accuracy", digits: int = 0) -> Measure:
    """Steps, virtual time or client uploads to this accuracy or perplexity."""
    title = f"{COSTS[name]} to {'perplexity ' if metric == 'perplexity' else ''}{target:g}"
    return Measure(f"{name}_to_{target:g}", title, lambda run: run.reached(target, metric).get(name), digits)


def targets(experiment: Findings) -> list[Measure]:
    """What each target of the experiment costs, in everything it counts."""
    about = experiment.about
    digits = {"time": 2 if about.baseline else 0}
    pairs = product(about.targets, about.costs)
    return [reaching(target, cost, about.metric, digits.get(cost, 0)) for target, cost in pairs]


def judged(experiment: Findings) -> Measure:
    """What rules are judged by."""
    return PERPLEXITY if experiment.about.metric == "perplexity" else ACCURACY


def own(lines: Iterable[Line]) -> list[Measure]:
    """How metrics of the user's own end."""
    runs = [run for line in lines for run in line.finished]
    return [_final(name) for name in dict.fromkeys(name for run in runs for name in run.rows) if name not in OURS]


def all_of(experiment: Findings) -> Sequence[Measure]:
    """Every number of an experiment."""
    if experiment.about.kind == "timelines":
        return OF_TIMELINES
    language = [PERPLEXITY] if experiment.about.metric == "perplexity" else []
    ends = [ACCURACY, *language, STABILITY, *ENDS, *own(experiment.lines)]
    return [*ends, *targets(experiment), *BEHAVIOUR]
