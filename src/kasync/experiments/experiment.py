"""Experiments: a file names tasks, rules, seeds and the paper's numbers; here it becomes cells, one run each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from kasync import components, files
from kasync.errors import UserError, unknown
from kasync.experiments.settings import ELSEWHERE, SECTIONS, RunSettings, facts_of, title_of

HERE = Path(__file__).parent
PAPERS, PROBLEMS, DEMO = HERE / "papers", HERE / "problems", HERE / "demo.toml"
SCALES = ("quick", "full")
SEEDS = {"quick": 2, "full": 3}  # where a file does not say
KINDS = ("training", "timelines")
METRICS = ("accuracy", "perplexity")  # by which rules are judged and targets are meant
COSTS = {"step": "steps", "time": "virtual time", "updates": "client uploads"}  # what a target is counted in
SHORT = {"uploads", "over_selection", "evaluate"}  # in [run] of an experiment beside a run's settings: see `_sized`
TUNED = "kasync tuned settings"


@dataclass(frozen=True)
class Problem:
    """A data set with its network and settings by rule; `stands_for` is the paper's data set, `note` what differs.

    Where settings have the label of a variant, they are that variant's and not those of its rule.
    `scripts` names, by rule, the authors' script in authors.toml whose settings these are. A rule's own `k` takes the
    place of the task's, and `lr_per_arrival` is its rate divided by k.
    """

    name: str
    title: str
    run: Mapping[str, Any]
    rules: Mapping[str, Mapping[str, Any]]
    stands_for: str = ""
    note: str = ""
    scripts: Mapping[str, str] = field(default_factory=dict)

    def settings_of(self, rule: str) -> Mapping[str, Any]:
        """The settings of a rule on this problem."""
        if rule not in self.rules and ":" in rule:  # of the user's own: as rules that suit a data set are started
            facts = facts_of(rule)
            return {facts.rate: self.rules[MAIN]["lr"] if facts.start is None else facts.start}
        if rule not in self.rules:
            raise UserError(f"problem {self.name!r} has no settings for the rule {rule!r}: add [rules.{rule}] to it.")
        return self.rules[rule]


@dataclass(frozen=True)
class Contender:
    """A rule under a label of its own: with other settings, with parts left out, or with a run of another shape.

    With a `factor` it is the contender `of` with its learning rate, tuned or not, times this factor. With `instead_of`
    it takes the place of that contender wherever tuning found it better: the two compete as one.
    """

    label: str
    rule: str
    name: str = ""  # for people
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    of: str = ""
    factor: float = 1.0
    instead_of: str = ""

    @property
    def title(self) -> str:
        name = self.name or title_of(self.rule)
        return f"{name}, rate × {self.factor:g}" if self.of else name


@dataclass(frozen=True)
class Task:
    """One line of a table or one panel of a figure, in a group of such; `axes` says where it stands among them."""

    name: str
    short: str  # for people, beside others of its group
    group: str | None = None
    x: float | None = None
    axes: Mapping[str, str] = field(default_factory=dict)  # axis -> value
    names: Mapping[str, str] = field(default_factory=dict)  # axis -> what people call the value
    problem: Problem | None = None  # known where runs are planned
    run: Mapping[str, Any] = field(default_factory=dict)
    stands_for: str = ""
    note: str = ""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return ", ".join(text for text in (self.group, self.short) if text)

    def record(self) -> dict[str, Any]:
        """As experiments.json has it."""
        table = {**asdict(self), "problem": self.problem.name if self.problem else ""}
        del table["run"]
        if self.problem:
            table["stands_for"] = self.problem.stands_for
            table["note"] = " ".join(text for text in (self.problem.note, self.note) if text)
        return table


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    task: Task
    rule: Contender
    staleness: str
    seed: int
    settings: RunSettings  # resolved
    entry: str = ""  # the label of what took the rule's place

    def record(self) -> dict[str, Any]:
        """As cells.parquet has it."""
        run, entry = self.settings, {"entry": self.entry} if self.entry else {}
        place = (self.task, self.rule, self.staleness, self.seed)
        return cell_record(*place, run.name, run.device_kind, run.precision) | entry


def cell_record(
    task: Task, rule: Contender, staleness: str, seed: int, key: str, device: str | None, precision: str | None
) -> dict[str, Any]:
    """A row of cells.parquet: where a run stands, its key, and on what it is made, where that is known."""
    place = {"task": task.name, "rule": rule.label, "staleness": staleness, "seed": seed, "key": key}
    factors = {"of": rule.of, "factor": rule.factor} if rule.of else {}
    axes = {f"axis.{name}": value for name, value in task.axes.items()}
    made = {} if device is None else {"device": device, "precision": precision}
    return place | {"kind": rule.rule, "group": task.group, "x": task.x} | factors | axes | made


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or a comparison of one's own, at one scale."""

    name: str
    title: str
    rules: Sequence[Contender]
    tasks: Sequence[Task]
    scale: str = "quick"
    seeds: int = 2
    shows: str = ""
    command: str = ""
    figures: Sequence[str] = ()
    targets: Sequence[float] = ()  # accuracies, or perplexities, whose cost is of interest
    costs: Sequence[str] = ("step", "time")  # what that is counted in
    metric: str = "accuracy"
    baseline: str = ""  # the contender whose time to a target is divided by that of the others
    kind: str = "training"
    x_title: str = ""  # what a task's x is
    against: str = "step"  # what curves are drawn against: step, or time, the virtual seconds
    tuned: str | None = None  # the file of chosen settings

    @property
    def key(self) -> str:
        """Under which it is stored."""
        return f"{self.name}-{self.scale}{'-tuned' if self.tuned else ''}"

    def only(self, tasks: Sequence[str] | None = None, rules: Sequence[str] | None = None) -> Experiment:
        """With the tasks whose name is one of these or fits one of these patterns (`cifar10*`), and with these rules.

        A rule that competes at several rates stands for all of them.
        """
        every, contenders = [task.name for task in self.tasks], self.rules
        for pattern in tasks or ():
            if not any(fnmatchcase(name, pattern) for name in every):
                raise unknown(f"task of {self.name}", pattern, every)
        kept = [task for task in self.tasks if tasks is None or any(fnmatchcase(task.name, each) for each in tasks)]
        if rules:
            known = {each.label: each for each in self.rules}
            at_rates = {rule: [each for each in self.rules if each.of == rule] for rule in rules}
            contenders = [
                each for rule in rules for each in at_rates[rule] or [known.get(rule) or Contender(rule, rule)]
            ]
        return replace(self, tasks=kept, rules=contenders)

    def cells(
        self,
        seeds: Sequence[int] | None = None,
        staleness: Sequence[str] = ("true",),
        tuned: Tuned | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> list[Cell]:
        """Every run, resolved and checked; seed by seed, so that an unfinished grid has whole rows."""
        cells: list[Cell] = []
        for seed in range(self.seeds) if seeds is None else seeds:
            for task in self.tasks:
                for (rule, entry), semantics in product(self._entries(task, tuned), staleness):
                    cell = self._cell(task, entry, semantics, seed, tuned, overrides or {})
                    if entry is not rule:
                        cell = replace(cell, rule=rule, entry=entry.label)
                    if cell not in cells[-len(staleness) :]:
                        cells.append(cell)
        return cells

    def _entries(self, task: Task, tuned: Tuned | None) -> list[tuple[Contender, Contender]]:
        """Who competes on a task, each with the contender that it enters: itself, or one that was tuned better."""
        if tuned is None:
            return [(each, each) for each in self.rules]
        groups: dict[str, list[Contender]] = {}
        for each in sorted(self.rules, key=lambda each: each.instead_of != ""):  # of equal ones the rule as it is
            groups.setdefault(each.instead_of or each.label, []).append(each)
        name = task.problem.name if task.problem else ""
        return [
            (group[0], max(group, key=lambda each: tuned.found(task.name, name, each.label).accuracy))
            if len(group) > 1
            else (group[0], group[0])
            for group in groups.values()
        ]

    def _cell(
        self, task: Task, rule: Contender, semantics: str, seed: int, tuned: Tuned | None, overrides: Mapping[str, Any]
    ) -> Cell:
        assert task.problem is not None
        table = merged(task.problem.run, task.run, rule.run, {"seed": seed, "staleness": semantics}, overrides)
        if "steps" in overrides:
            table.pop("uploads", None)
        settled = rule.label if rule.label in task.problem.rules else rule.rule
        own = {} if self.kind == "timelines" else dict(task.problem.settings_of(settled))
        values = {**own, **rule.settings}
        if tuned is not None:
            values = tuned.applied(values, task.name, task.problem.name, rule.of or rule.label)
        if "k" in values:  # a script that takes another number of deliveries than the others
            table["k"] = values.pop("k")
        _sized(table)
        values = _per_step(values, table["k"])
        if rule.factor != 1.0:
            values[facts_of(rule.rule).rate] *= rule.factor
        kind = "none" if self.kind == "timelines" else rule.rule
        where = f"task {task.name!r} of {self.name}"
        settings = RunSettings.of({**table, "rule": {"kind": kind, **values}}, where).resolved()
        return Cell(task, rule, settings.staleness, seed, settings)

    def record(self) -> dict[str, Any]:
        """As experiments.json has it; the cells are a table of their own."""
        table = {name: value for name, value in vars(self).items() if name not in ("tasks", "rules", "seeds")}
        labels = {each.label for each in self.rules}
        rules = [
            {"label": each.label, "rule": each.rule, "name": each.name or title_of(each.rule)}
            | ({"of": each.of, "factor": each.factor} if each.of else {})
            for each in self.rules
            if not (self.tuned and each.instead_of in labels)
        ]
        return table | {"tasks": [task.record() for task in self.tasks], "rules": rules}

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Experiment:
        """The opposite of `record`; what later versions may write more is not read."""
        tasks = [Task(**(_known(row, Task) | {"problem": None})) for row in table["tasks"]]
        rules = [Contender(**_known(row, Contender)) for row in table["rules"]]
        return cls(**(_known(table, cls) | {"tasks": tasks, "rules": rules}))


def _names(kind: Any) -> set[str]:
    return {each.name for each in fields(kind)}


def _known(row: Mapping[str, Any], kind: type) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in _names(kind)}


def _sized(table: dict[str, Any]) -> None:
    """`over_selection` and `uploads` as settings of a run, so that fleets of other k make equally many deliveries.

    over_selection = 1.3: a synchronous round starts as many clients as work at a time and keeps 1 of 1.3 of them;
    uploads: the server makes as many steps of k deliveries as these are; evaluate: so many times in the run.
    """
    if "over_selection" in table:
        share, arrivals = table.pop("over_selection"), dict(table.get("arrivals", {}))
        if not isinstance(share, int | float) or share < 1 or "concurrency" not in arrivals:
            raise UserError(f"over_selection = {share!r}: give a factor of at least 1, with concurrency in arrivals.")
        table["k"] = max(1, int(arrivals["concurrency"] / share))
        kept = {name: value for name, value in arrivals.items() if name not in ("restart", "max_staleness")}
        table["arrivals"] = {**kept, "mode": "sync"}
    if "uploads" in table:
        uploads = table.pop("uploads")
        if not isinstance(uploads, int) or uploads < table["k"]:
            raise UserError(f"uploads = {uploads!r}: give a whole number of at least k = {table['k']}.")
        table["steps"] = uploads // table["k"]
    if "evaluate" in table:
        times = table.pop("evaluate")
        if not isinstance(times, int) or times < 1:
            raise UserError(f"evaluate = {times!r}: give a whole number of at least 1, the evaluations of a run.")
        table["evaluate_every"] = max(1, table["steps"] // times)


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


# ---- what tuning chose


@dataclass(frozen=True)
class Chosen:
    """For one rule on one task: the settings, their accuracy on held-out samples, and if the grid's end was best."""

    task: str
    problem: str
    rule: str
    settings: Mapping[str, Any]
    accuracy: float
    at_edge: bool = False


@dataclass(frozen=True)
class Tuned:
    """Everything that was chosen."""

    source: str
    chosen: Sequence[Chosen]

    def found(self, task: str, problem: str, rule: str) -> Chosen:
        """What was chosen for a rule: for this task if it was tuned, else for its problem."""
        mine = [row for row in self.chosen if row.rule == rule]
        found = [row for row in mine if row.task == task] or [row for row in mine if row.problem == problem]
        if not found:
            raise UserError(f"{self.source} has nothing for the rule {rule!r} on {problem!r}: tune it first.")
        return found[0]

    def applied(self, values: Mapping[str, Any], task: str, problem: str, rule: str) -> dict[str, Any]:
        """The rule's settings with the chosen ones."""
        chosen = self.found(task, problem, rule).settings
        return {name: value for name, value in values.items() if name != "lr_per_arrival"} | dict(chosen)

    @classmethod
    def read(cls, path: Path) -> Tuned:
        table = files.read_toml(path)
        if table.get("format") != TUNED:
            raise UserError(f"{path} is not a file that kasync tune wrote: give one.")
        for row in table.get("chosen", []):
            _only(row, _names(Chosen) | {"diverged"}, path.name)
        return cls(str(path), [Chosen(**_known(row, Chosen)) for row in table.get("chosen", [])])

    @staticmethod
    def write(
        path: Path, about: Mapping[str, Any], chosen: Sequence[Chosen], tried: Sequence[Mapping[str, Any]]
    ) -> None:
        """The choices, then all that was tried; what the file says of other tasks and rules, searched alike, stays."""
        head = {"format": TUNED, **about}
        choices: list[Mapping[str, Any]] = [{**vars(row), "settings": dict(row.settings)} for row in chosen]
        lists = {"chosen": choices, "tried": list(tried)}
        before = files.read_toml(path) if path.exists() else {}
        if all(before.get(name) == value for name, value in head.items()):
            now = {(row.task, row.rule) for row in chosen}
            for name, rows in lists.items():
                lists[name] = [row for row in before.get(name, []) if (row["task"], row["rule"]) not in now] + rows
        files.write(path, files.toml_text(head | lists))


# ---- files


def names() -> list[str]:
    """The experiments of the package."""
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


def load(name: str, scale: str = "quick") -> Experiment:
    """One of the package's by its name, or any from a file."""
    if name.endswith(".toml"):
        return read(Path(name), scale)
    if name not in names():
        raise unknown("experiment", name, names())
    return read(PAPERS / f"{name}.toml", scale)


KEYS = (_names(Experiment) | {"rates", "variants", "problems", "axes", *SCALES}) - {"name", "tasks", "scale", "tuned"}
TASK = (_names(Task) | {"title"}) - {"short", "stands_for"}
VALUE = ("title", "x", "run")  # what a value on an axis may say


def read(path: Path, scale: str = "quick") -> Experiment:
    """An experiment from its file; a misspelt key is an error that names the nearest one."""
    table, where = files.read_toml(path), path.name
    if "include" in table:  # its tables come on top of those of the file that it includes
        table = {**files.read_toml(path.parent / str(table.pop("include"))), **table}
    _only(table, KEYS, where, ("title", "shows", "command", "rules"))
    _only(table.get("seeds", {}), SCALES, f"[seeds] of {where}")
    for key, options in (("kind", KINDS), ("metric", METRICS), ("baseline", table["rules"])):
        if table.get(key, options[0]) not in options:
            raise unknown(f"{key} in {where}", table[key], options)
    for cost in table.get("costs", ()):
        if cost not in COSTS:
            raise unknown(f"cost in {where}", cost, COSTS)
    variants = {label: _variant(label, row, where) for label, row in table.get("variants", {}).items()}
    rules = [variants.get(label) or Contender(label, label) for label in table["rules"]]
    for each in rules:
        if each.instead_of and each.instead_of not in table["rules"]:
            raise unknown(f"instead_of in [variants.{each.label}] of {where}", each.instead_of, table["rules"])
    own = {
        name: _problem(f"{path.stem}-{name}", row, f"[problems.{name}] of {where}")
        for name, row in table.get("problems", {}).items()
    }
    axes = table.get("axes", {})
    tasks = {
        each: [_task(task, own, f"[[{each}]] of {where}") for row in table[each] for task in crossed(row, axes, where)]
        for each in SCALES
        if each in table
    }
    if scale not in tasks:
        raise unknown(f"scale of {path.stem}", scale, tasks)
    said: dict[str, Any] = dict(_known(table, Experiment))
    said |= {name: tuple(value) for name, value in said.items() if isinstance(value, list)}
    said |= {"name": path.stem, "tasks": tasks[scale], "scale": scale}
    said["seeds"] = {**SEEDS, **table.get("seeds", {})}[scale]
    said["rules"] = _at_rates(rules, table["rates"], where) if "rates" in table else rules
    return Experiment(**said)


def crossed(row: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The tasks that a row with axes stands for, one for every combination; a row without stands for itself.

    `axes = ["sizes", "labels"]` takes every value of these, `axes = { sizes = ["large"], labels = "*" }` only some.
    Names are joined by dashes, titles by commas, the runs are merged in the order of the axes.
    """
    wanted = row.get("axes", ())
    chosen = [_values(name, wanted[name] if isinstance(wanted, Mapping) else "*", axes, where) for name in wanted]
    for values in product(*chosen):
        joined: dict[str, Any] = {**row, "axes": {}, "names": {}}
        for axis, name, value in values:
            joined["name"] = f"{joined.get('name', '')}-{name}".lstrip("-")
            joined["run"] = merged(joined.get("run", {}), value.get("run", {}))
            joined["title"] = ", ".join([*([joined["title"]] if "title" in joined else []), value.get("title", name)])
            joined["axes"][axis], joined["names"][axis] = name, value.get("title", name)
            joined |= {"x": value["x"]} if "x" in value else {}
        yield joined


def _values(
    axis: str, wanted: Sequence[str], axes: Mapping[str, Any], where: str
) -> Sequence[tuple[str, str, Mapping[str, Any]]]:
    """The wanted values on one axis, `*` for all: (axis, name, what it says)."""
    if axis not in axes:
        raise unknown(f"axis in {where}", axis, axes)
    for name, value in axes[axis].items():
        if not isinstance(value, Mapping):
            raise UserError(f"[axes.{axis}] of {where} has {name} = {value!r}: write {{ run = {{ ... }} }}.")
        _only(value, VALUE, f"{name!r} in [axes.{axis}] of {where}")
    for name in () if wanted == "*" else wanted:
        if name not in axes[axis]:
            raise unknown(f"value of axis {axis!r} in {where}", name, axes[axis])
    return [(axis, name, value) for name, value in axes[axis].items() if wanted == "*" or name in wanted]


def _task(row: Mapping[str, Any], problems: Mapping[str, Problem], where: str) -> Task:
    _only(row, TASK, f"a task in {where}", ("name", "problem"))
    run = row.get("run", {})
    _only(run, _names(RunSettings) | SHORT, f"run of {row['name']!r} in {where}")
    own = {name: value for name, value in row.items() if name != "title"}
    suits = problems.get(row["problem"]) or problem(row["problem"])
    return Task(**own | {"short": row.get("title", row["name"]), "problem": suits})


def _variant(label: str, row: Mapping[str, Any], where: str) -> Contender:
    _only(row, row, f"[variants.{label}] of {where}", ("rule",))
    own = {name: value for name, value in row.items() if name not in ("rule", "title", "run", "instead_of")}
    title, run = row.get("title", label), row.get("run", {})
    return Contender(label, row["rule"], title, own, run, instead_of=row.get("instead_of", ""))


def _at_rates(rules: Sequence[Contender], factors: Any, where: str) -> list[Contender]:
    """Every rule once for each factor on its learning rate."""
    if not isinstance(factors, list) or not all(isinstance(each, int | float) and each > 0 for each in factors):
        raise UserError(f"rates = {factors!r} in {where}: give factors above 0, such as [0.1, 1, 10].")
    return [
        replace(rule, label=f"{rule.label}@{factor:g}", of=rule.label, factor=float(factor))
        for rule in rules
        for factor in factors
    ]


@cache
def problem(name: str) -> Problem:
    """The problem of this name."""
    known = sorted(path.stem for path in PROBLEMS.glob("*.toml"))
    if name not in known:
        raise unknown("problem", name, known)
    path = PROBLEMS / f"{name}.toml"
    return _problem(name, files.read_toml(path), str(path))


def _problem(name: str, table: Mapping[str, Any], where: str) -> Problem:
    _only(table, _names(Problem) - {"name"}, where, ("title", "run", "rules"))
    return Problem(name, **table)


def _only(table: Mapping[str, Any], known: Collection[str], where: str, needed: Sequence[str] = ()) -> None:
    """Refuse a table with other keys than these, or without those that are needed."""
    for key in table:
        if key not in known:
            raise unknown(f"key in {where}", key, known)
    missing = [name for name in needed if name not in table]
    if missing:
        raise UserError(f"{where} has no {' and '.join(missing)}: add it.")


# ---- a person who names only rules and a data set

SUITS = {name: name for name in ("digits", "mnist", "femnist", "cifar10", "celeba")}  # data set -> problem
SUITS |= {"emnist-mnist": "mnist", "emnist-byclass": "femnist"}
SIZES = {"clients": 300, "k": 10}  # where neither the person nor the problem says
MAIN = "kasync_sgd"  # a rule without settings of its own on a problem takes the learning rate of this one
FALLBACK = Problem("own", "own", {"steps": 1000}, {MAIN: {"lr": 0.05}})


def problem_for(dataset: str) -> Problem:
    """The problem whose settings suit this data set, on this data set."""
    suiting = problem(SUITS[dataset]) if dataset in SUITS else replace(FALLBACK, title=components.short(dataset))
    return replace(suiting, run={**SIZES, **suiting.run, "dataset": dataset})


def settings_for(kind: str, given: Mapping[str, Any], own: Mapping[str, Any]) -> RunSettings:
    """A run of this rule: what suits the data set, then what was given."""
    base = problem_for(str(given.get("dataset", "digits")))
    table = merged(base.run, given)
    return RunSettings.of({**table, "rule": {"kind": kind, **_suiting(base, kind, table), **own}}, "the command line")


def _suiting(base: Problem, kind: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of this rule that suit the problem, in a run of these sizes."""
    facts = facts_of(kind)
    start = {facts.rate: facts.start} if facts.start is not None or facts.rate != "lr" else base.rules[MAIN]
    suits = base.rules.get(kind) or start
    values = {name: value for name, value in suits.items() if value is not None and name != "k"}  # k is the run's
    return _per_step(values, int(run["k"]))


def _per_step(values: dict[str, Any], k: int) -> dict[str, Any]:
    """`lr_per_arrival`, SASGD's rate as most of its authors' scripts have it, times k."""
    if "lr_per_arrival" in values:
        values["lr"] = values.pop("lr_per_arrival") * k
    return values


def comparison(
    rules: Sequence[str], given: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]], seeds: int
) -> Experiment:
    """These rules on one task; `own` are settings by rule.

    Another task is another experiment and another setting of a rule another contender, so that comparisons in one
    place stand beside each other.
    """
    dataset = str(given.get("dataset", "digits"))
    base = problem_for(dataset)
    table = merged(base.run, given)
    contenders = []
    for rule in rules:
        mine, brief = own.get(rule, {}), components.short(rule)
        words = ", ".join(f"{name} = {value}" for name, value in mine.items())
        shown = brief if [components.short(each) for each in rules].count(brief) == 1 else rule
        label, name = (f"{shown} {words}", f"{title_of(rule)} ({words})") if words else (shown, "")
        contenders.append(Contender(label, rule, name, mine))
    sizes = f"{table['clients']}/{table['k']}"
    decisive = {name: value for name, value in table.items() if name not in ELSEWHERE}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:6]
    chosen = [_told(name, value) for name, value in given.items() if name not in (*ELSEWHERE, *SIZES, "dataset")]
    task = Task(
        f"{components.short(dataset)}-{sizes.replace('/', '-')}",
        ", ".join([f"P/K = {sizes}", *chosen]),
        base.title,
        problem=replace(base, rules={rule: _suiting(base, rule, table) for rule in rules}),
        run=table,
    )
    return Experiment(
        name=f"compare-{task.name}-{digest}",
        title=f"Rules on {task.title}",
        rules=contenders,
        tasks=[task],
        scale="own",
        seeds=seeds,
        shows="Which rule is the most accurate, the steadiest and the fastest on the same arrivals?",
        command="kasync compare",
    )


def _told(name: str, value: Any) -> str:
    """A setting in a title."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{each} {what}" for each, what in value.items() if each != "kind")
        return f"{name} {components.short(str(value.get('kind', '')))}" + (f" ({inner})" if inner else "")
    names = value if isinstance(value, list | tuple) else [value]
    return f"{name} {', '.join(components.short(str(each)) for each in names)}"
