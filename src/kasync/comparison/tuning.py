"""Equal tuning: every rule gets the same number of tries, its rate first and then its main knob, coarse to fine.

Tries are judged on samples held out from training, under seeds of their own; the test set is never looked at.
`kasync.compare(tune=...)`, `kasync compare --tune` and `kasync tune` are one search, begun at a rate or with a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from kasync import checks, files, lock, statistics
from kasync.comparison.contenders import FIRST_RATE, Entrant
from kasync.errors import UserError, unknown
from kasync.experiments import experiment as catalogue
from kasync.experiments import grid
from kasync.experiments.experiment import Cell, Chosen, Tuned
from kasync.experiments.runner import Wanted
from kasync.experiments.settings import RunSettings, facts_of
from kasync.experiments.store import Run, Store

FIRST_SEED = 100  # comparisons and experiments count theirs from 0
HELD_OUT = 0.1
WORST = -math.inf
STEP = 10**0.5
PER = ("task", "problem")  # choose for every task, or on the first task of each problem
FINALISTS = 3  # settings of each rule that all seeds are spent on, where the others get one
KNOB_TRIES = 4  # values of a main knob in `kasync tune`, or more rates for a rule without one

Settings = Mapping[str, float]
Place = tuple[tuple[str, float], ...]  # settings, as a key
Describe = Callable[[Settings, int], RunSettings | Wanted]  # settings and a seed -> the run on held-out samples


@dataclass(frozen=True)
class Tune:
    """`budget` settings for every rule, each judged by its mean over `seeds` on the share `held_out` of the samples.

    knobs    rule or label -> (name of a setting, values to begin with), for rules of one's own, or instead of ours
    """

    budget: int = 8
    seeds: int = 3
    held_out: float = HELD_OUT
    spacing: float = 10.0  # factor between the first rates
    knobs: Mapping[str, tuple[str, Sequence[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.count("budget", self.budget)
        checks.count("seeds of tune", self.seeds)
        if not 0.0 < self.held_out < 1.0:
            raise UserError(f"held_out = {self.held_out}: give a share between 0 and 1, such as 0.1.")
        if not self.spacing > 1.0:
            raise UserError(f"spacing = {self.spacing}: give a factor above 1 between neighbouring rates.")

    @property
    def numbers(self) -> range:
        """The seeds, which are not those of comparisons."""
        return range(FIRST_SEED, FIRST_SEED + self.seeds)

    def searches(self, contenders: Sequence[tuple[Entrant, Describe]]) -> list[Search]:
        """A search for each contender, a third of its tries for the knob if it has one."""
        known = {name for each, _ in contenders for name in (each.label, each.facts.name)}
        for name in self.knobs:
            if name not in known:
                raise unknown("rule in knobs", name, [each.label for each, _ in contenders])
        way = Way(self.spacing, self.budget, self.budget // 3, self.numbers)
        return [
            Search(each, describe, way, self.knobs.get(each.label) or self.knobs.get(each.facts.name))
            for each, describe in contenders
        ]


@dataclass(frozen=True)
class Way:
    """How the tries of every rule are spent: on rates first, `factors` times its own, the last ones on its main knob.

    Where there are `final_seeds`, the best settings, `finalists` of them, are tried with them in the end.
    """

    spacing: float  # factor between neighbouring rates
    tries: int
    knob_tries: int
    seeds: Sequence[int]
    factors: Sequence[float] = (1.0,)
    final_seeds: Sequence[int] = ()
    finalists: int = FINALISTS


class Search:
    """The tries of one rule: proposes the next settings and remembers their scores by seed; higher is better."""

    def __init__(
        self, contender: Entrant, describe: Describe, way: Way, knob: tuple[str, Sequence[float]] | None = None
    ) -> None:
        facts, knob_tries = contender.facts, way.knob_tries
        self.contender, self.describe, self.way, self.final_seeds = contender, describe, way, way.final_seeds
        self.rate = contender.rate
        self.knob: str | None
        self.grid: Sequence[float]
        self.knob, self.grid = knob or (facts.knob, facts.grid)
        if self.knob is None or not contender.knows(self.knob):
            self.knob, knob_tries = None, 0
        self.rate_tries = 0 if self.rate is None else way.tries - knob_tries
        known = None if self.knob is None else contender.value(self.knob)
        of_knob = {} if self.knob is None or known is None else {self.knob: known}
        self.first: list[dict[str, float]] = [of_knob]
        if self.rate is not None:
            own = contender.value(self.rate) or facts.start or FIRST_RATE
            rates = dict.fromkeys(min(facts.rate_most, own * factor) for factor in way.factors)
            self.first = [{self.rate: rate, **of_knob} for rate in rates]
        self.scores: dict[Place, dict[int, float]] = {}
        self.rows: list[dict[str, Any]] = []  # everything that was tried, in this order

    def propose(self) -> list[tuple[dict[str, float], int]]:
        """The settings and seeds to try next; none when the tries are used up, or there is nothing else to try."""
        if wanted := self._next():
            return [(settings, seed) for settings in wanted for seed in self.way.seeds]
        finals, self.final_seeds = self.final_seeds, ()
        means = self.means
        best = sorted(means, key=lambda place: -means[place])[: self.way.finalists]
        return [(dict(place), seed) for seed in finals for place in best]

    def _next(self) -> list[dict[str, float]]:
        if not self.scores:
            return self.first
        rates, knobs = self._next_rates(), self._next_knobs()
        ways = (rates, knobs) if len(self.scores) < self.rate_tries else (knobs, rates)
        left = (each for way in (*ways, self._finer_knobs()) for each in way if _place(each) not in self.scores)
        return list(islice(left, 1)) if len(self.scores) < self.way.tries else []

    def tell(self, settings: Settings, seed: int, score: float) -> None:
        self.scores.setdefault(_place(settings), {})[seed] = score if math.isfinite(score) else WORST

    @property
    def means(self) -> dict[Place, float]:
        """The mean score of each settings; those that were tried with fewer seeds than others do not count."""
        most = max(map(len, self.scores.values()))
        return {each: sum(by.values()) / most for each, by in self.scores.items() if len(by) == most}

    @property
    def best(self) -> dict[str, float]:
        """The settings with the highest mean score; of equal ones those with the smaller rate."""
        means = self.means
        return min(map(dict, means), key=lambda each: (-means[_place(each)], each.get(self.rate or "", 0.0)))

    @property
    def rates(self) -> list[float]:
        """The rates tried so far, in ascending order."""
        return [] if self.rate is None else sorted({dict(each)[self.rate] for each in self.scores})

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest of those tried, so that one beyond may be better."""
        return self.rate is not None and self.best[self.rate] in (self.rates[0], self.rates[-1])

    def _next_rates(self) -> Iterator[dict[str, float]]:
        """One beyond the end where that was best, then halfway (in the logarithm) to the farther neighbour."""
        if self.rate is None:
            return
        best, rates = self.best, self.rates
        here, spacing, most = best[self.rate], self.way.spacing, self.contender.facts.rate_most
        place = rates.index(here)
        if place == len(rates) - 1 and here < most:
            yield {**best, self.rate: min(most, here * spacing)}
        if place == 0:
            yield {**best, self.rate: here / spacing}
        neighbours = rates[place + 1 : place + 2] + rates[max(0, place - 1) : place]
        for other in sorted(neighbours, key=lambda other: -max(other / here, here / other)):
            yield {**best, self.rate: (here * other) ** 0.5}

    def _next_knobs(self) -> Iterator[dict[str, float]]:
        """The values of the grid, the nearest to the best one first."""
        if self.knob is not None:
            here = self.best.get(self.knob, self.grid[0])
            for value in sorted(self.grid, key=lambda value: abs(value - here)):
                yield {**self.best, self.knob: value}

    def _finer_knobs(self) -> Iterator[dict[str, float]]:
        """Halfway between the best value and its neighbours."""
        if self.knob is None or any(isinstance(value, int) for value in self.grid):
            return
        best, values = self.best, {dict(each).get(self.knob, self.grid[0]) for each in self.scores}
        here, tried = best.get(self.knob, self.grid[0]), sorted(values)
        place = tried.index(here)
        for other in tried[place + 1 : place + 2] + tried[max(0, place - 1) : place]:
            yield {**best, self.knob: (here + other) / 2}


def carry_out(
    searches: Sequence[Search], out: Path, score: Callable[[Run], float], *, strict: bool = False, **where: Any
) -> None:
    """Make the runs that the searches propose, and tell them what these gave, until they propose nothing.

    A run that failed is the worst there is, or with `strict` an error. `where` is what `grid.make` takes: engine, jobs,
    workers, address and display.
    """
    while tries := [(search, *each) for search in searches for each in search.propose()]:
        runs = [search.describe(settings, seed) for search, settings, seed in tries]
        failed = dict(grid.make(runs, out, **where).failed)
        for (search, settings, seed), one in zip(tries, runs, strict=True):
            run, why = Store(out).run(one.name), failed.get(one.name, "")
            if why and strict:
                raise UserError(f"{one.name}, a run of {search.contender.label!r}, failed while tuning: {why}")
            reached = score(run) if run.finished else WORST
            search.tell(settings, seed, reached)
            row = {"seed": seed, "settings": settings, "accuracy": reached}
            search.rows.append(row | {"diverged": run.summary.get("diverged"), "run": run.key, "why": why})


def by_metric(metric: str, lower: bool | None) -> Callable[[Run], float]:
    """The mean of the last evaluations, turned round where lower is better."""

    def found(run: Run) -> float:
        curve = run.rows.get(metric, ())
        return (-1.0 if lower else 1.0) * statistics.final(curve) if len(curve) else WORST

    return found


def told(searches: Sequence[Search]) -> list[dict[str, Any]]:
    """A row for all settings of every search: the mean score, how many runs were lost and why, which was chosen."""
    rows = []
    for search in searches:
        for place, by_seed in search.scores.items():
            settings, lost = dict(place), sum(each == WORST for each in by_seed.values())
            why = next((row["why"] for row in search.rows if row["why"] and row["settings"] == settings), "")
            mean = None if lost else sum(by_seed.values()) / len(by_seed)
            chosen = settings == search.best
            row = {"rule": search.contender.label, "settings": settings, "score": mean, "lost": lost, "why": why}
            rows.append(row | {"chosen": chosen, "at_edge": chosen and search.at_edge})
    return rows


# ---- runs that settings describe


def of_cells(cells: Iterable[Cell]) -> dict[tuple[str, str], tuple[Entrant, Describe]]:
    """What is searched for each rule on each task: (task, label) -> the rule, and its runs with other settings."""
    found: dict[tuple[str, str], dict[int, RunSettings]] = {}
    for cell in cells:
        found.setdefault((cell.task.name, cell.rule.label), {})[cell.seed] = cell.settings
    contenders: dict[tuple[str, str], tuple[Entrant, Describe]] = {}
    for place, by_seed in found.items():
        rule = next(iter(by_seed.values())).rule
        facts = facts_of(rule.kind)
        contenders[place] = Entrant(place[1], facts.make, rule.settings, facts), partial(_with_settings, by_seed)
    return contenders


def _with_settings(by_seed: Mapping[int, RunSettings], settings: Settings, seed: int) -> RunSettings:
    base = by_seed[seed]
    return replace(base, rule=base.rule.having(**settings)).resolved()


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

    A rule's first rates are `budget` powers of `spacing` around its own in the problem's file: rules whose weights
    shrink with staleness need other magnitudes than rules whose weights sum to one, so one grid for all is unfair.
    `further` more follow the best one, and with `knob` come values of its main knob. All this with the first seed; with
    several the FINALISTS best settings of each rule are tried with all of them, so that a sharp edge that one seed does
    not see is seen by another. Where contenders compete two as one (`instead_of`), those that compete alone get as many
    tries, more rates, and finalists as the two together.

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
    cells = replace(one, tasks=list(first.values())[::-1]).cells(seed_list, (staleness,), None, held)
    knob_tries = KNOB_TRIES if knob else 0
    tries = budget + further + knob_tries
    way = Way(spacing, tries, knob_tries, seed_list[:1], rate_grid(budget, spacing), seed_list[1:])
    pairs = {label for each in one.rules if each.instead_of for label in (each.label, each.instead_of)}
    alone = replace(way, tries=2 * tries, finalists=2 * FINALISTS) if pairs else way
    searches = {place: Search(*each, way if place[1] in pairs else alone) for place, each in of_cells(cells).items()}
    judge = _probability if one.metric == "perplexity" else _accuracy
    carry_out(list(searches.values()), out, judge, strict=True, **where)
    problems = {task.name: task.problem.name if task.problem else "" for task in one.tasks}
    chosen, tried = [], []
    for (task, rule), each in searches.items():
        best = each.best
        chosen.append(Chosen(task, problems[task], rule, best, each.means[_place(best)], each.at_edge))
        for row in each.rows:
            tried.append({"task": task, "rule": rule} | {name: row[name] for name in row if name != "why"})
    about = {"experiment": one.name, "scale": scale, "budget": budget, "spacing": spacing, "further": further}
    about |= {"knob": knob, "held_out": HELD_OUT, "seeds": list(seed_list)}
    path = files.make_folder(out / "tuned") / f"{one.name}-{scale}.toml"
    with lock.held(path.parent, wait=10.0):
        Tuned.write(path, about, chosen, tried)
    return path


def rate_grid(budget: int, spacing: float = STEP) -> list[float]:
    """`budget` factors, neighbours so far apart, 1 in the middle (or just below it)."""
    return [spacing ** (place - budget // 2) for place in range(budget)]


def _accuracy(run: Run) -> float:
    return 0.0 if run.summary["diverged"] else run.summary.get("final_accuracy") or 0.0


def _probability(run: Run) -> float:
    """Of the right token, on average: one over the perplexity."""
    return 0.0 if run.summary["diverged"] else math.exp(-statistics.final(run.rows["test_loss"]))


def _place(settings: Settings) -> Place:
    return tuple(settings.items())
