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

from kasync import lock, statistics
from kasync.errors import UserError, unknown
from kasync.experiments import experiment as catalogue
from kasync.experiments import files, grid, tuned
from kasync.experiments.display import Display
from kasync.experiments.experiment import Cell
from kasync.experiments.resolve import facts_of
from kasync.experiments.settings import Choice
from kasync.experiments.store import Store

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
    engine: str = "local",
    jobs: int = 1,
    workers: int | None = None,
    address: str | None = None,
    display: Display | None = None,
) -> Path:
    """Choose for every rule of an experiment; the file of chosen settings. What was tried before is not run again."""
    if budget < 1:
        raise UserError(f"budget = {budget}: give at least 1 learning rate.")
    if not 1.0 < spacing <= 100.0:
        raise UserError(f"spacing = {spacing}: give a factor above 1 and at most 100 between neighbouring rates.")
    if further < 0:
        raise UserError(f"further = {further}: give 0 or more learning rates beyond the end of the grid.")
    if per not in PER:
        raise unknown("per", per, PER)
    one = catalogue.load(name, scale).only(tasks, rules)
    problems = {task.name: task.problem.name for task in one.tasks if task.problem}
    first = {problems[task.name] if per == "problem" else task.name: task for task in one.tasks[::-1]}
    chosen_on = list(first.values())[::-1]
    seed_list = range(FIRST_SEED, FIRST_SEED + (seeds or 1))
    held = {"validation": HELD_OUT, **(overrides or {})}
    base = replace(one, tasks=chosen_on).cells(seed_list, (staleness,), None, held)
    how: dict[str, Any] = {"engine": engine, "jobs": jobs, "workers": workers, "address": address, "display": display}
    metric = one.metric
    coarse = [cell for cell in base if cell.seed == FIRST_SEED]
    rates = rate_grid(budget, spacing)
    tried = _made([_with(cell, lr=_rate(cell) * factor) for cell in coarse for factor in rates], out, how, metric)

    def more(cells: Sequence[Cell]) -> None:
        """One more rate for each of these."""
        best = _best(coarse, tried)
        others = [_with(cell, **_another(cell, tried, best[_place(cell)], spacing)) for cell in cells]
        tried.extend(_made(others, out, how, metric))

    for _ in range(further):
        more(coarse)
    if knob:
        best, knobs = _best(coarse, tried), [_knob_values(cell) for cell in coarse]
        second = [
            _with(cell, **{**best[_place(cell)].settings, str(facts_of(cell.settings.rule.kind).knob): value})
            for cell, values in zip(coarse, knobs, strict=True)
            for value in values
        ]
        tried += _made(second, out, how, metric)
        for number in range(KNOB_TRIES):
            more([cell for cell, values in zip(coarse, knobs, strict=True) if number < KNOB_TRIES - len(values)])
    if len(seed_list) > 1:
        finalists = _finalists(tried)
        rest = [cell for cell in base if cell.seed != FIRST_SEED]
        tried += _made([_with(cell, **chosen) for cell in rest for chosen in finalists[_place(cell)]], out, how, metric)
    best = _best(coarse, tried)
    folder = files.make_folder(out / "tuned")
    path = folder / f"{one.name}-{scale}.toml"
    about = {
        "experiment": one.name,
        "scale": scale,
        "budget": budget,
        "spacing": spacing,
        "further": further,
        "knob": knob,
        "held_out": HELD_OUT,
    }
    about["seeds"] = list(seed_list)
    with lock.held(folder, wait=10.0):
        tuned.write(path, about, list(best.values()), tried)
    return path


def rate_grid(budget: int, spacing: float = STEP) -> list[float]:
    """`budget` factors, neighbours so far apart, 1 in the middle (or just below it)."""
    return [spacing ** (place - budget // 2) for place in range(budget)]


def _rate(cell: Cell) -> float:
    """A rule's own rate, whatever it is called."""
    rule = cell.settings.rule
    return rule.settings[facts_of(rule.kind).rate]


def _with(cell: Cell, **values: Any) -> Cell:
    """The cell with other settings of its rule."""
    old = cell.settings.rule
    facts = facts_of(old.kind)
    if "lr" in values:
        values[facts.rate] = min(facts.rate_most, values.pop("lr"))
    rule = Choice(old.kind, {**old.settings, **values})
    return replace(cell, settings=replace(cell.settings, rule=rule).resolved())


def _made(cells: list[Cell], out: Path, how: dict[str, Any], metric: str) -> list[dict[str, Any]]:
    """Make the runs; a row for each, with what it changed and what it reached.

    Where perplexity is the metric, `accuracy` is one over it: the mean probability of the right token.
    """
    outcome = grid.make(cells, out, **how)
    wrong = dict(outcome.failed)
    rows = []
    for cell in cells:
        run = cell.settings.name
        if run in wrong:
            raise UserError(f"a run of {cell.rule.label!r} on {cell.task.name!r} failed while tuning: {wrong[run]}")
        made = Store(out).run(run)
        summary, reached = made.summary, made.summary.get("final_accuracy") or 0.0
        if metric == "perplexity":
            reached = math.exp(-statistics.final(made.rows["test_loss"]))
        values = cell.settings.rule.settings
        facts = facts_of(cell.settings.rule.kind)
        kept = {name: values[name] for name in (facts.rate, facts.knob) if name is not None}
        rows.append(
            {
                "task": cell.task.name,
                "rule": cell.rule.label,
                "seed": cell.seed,
                "settings": kept,
                "accuracy": 0.0 if summary["diverged"] else reached,
                "diverged": summary["diverged"],
                "run": run,
            }
        )
    return rows


def _rates(tried: Sequence[Mapping[str, Any]], task: str, rule: str) -> list[float]:
    """The rates tried so far, in ascending order."""
    return sorted({next(iter(row["settings"].values())) for row in tried if (row["task"], row["rule"]) == (task, rule)})


def _another(cell: Cell, tried: Sequence[Mapping[str, Any]], chosen: tuned.Chosen, spacing: float) -> Mapping[str, Any]:
    """The best settings with the next rate beyond the end of the grid, if that was best, else nearer a neighbour."""
    name, most = facts_of(cell.settings.rule.kind).rate, facts_of(cell.settings.rule.kind).rate_most
    rates, rate = _rates(tried, *_place(cell)), chosen.settings[name]
    place = rates.index(rate)
    if place == len(rates) - 1 and rate < most:
        return {**chosen.settings, name: min(most, rate * spacing)}
    if place == 0:
        return {**chosen.settings, name: rate / spacing}
    below, above = rates[place - 1], rates[min(place + 1, len(rates) - 1)]
    return {**chosen.settings, name: (rate * (above if above / rate >= rate / below else below)) ** 0.5}


def _knob_values(cell: Cell) -> list[float]:
    """The values of its rule's main knob that were not tried with its rates, the first KNOB_TRIES of them."""
    facts = facts_of(cell.settings.rule.kind)
    if facts.knob is None:
        return []
    return [value for value in facts.grid if value != cell.settings.rule.settings[facts.knob]][:KNOB_TRIES]


def _finalists(tried: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """For each task and rule the settings that the first seed likes best, in this order."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(tried, key=lambda row: -row["accuracy"]):
        mine = found.setdefault((row["task"], row["rule"]), [])
        if row["settings"] not in mine and len(mine) < FINALISTS:
            mine.append(row["settings"])
    return found


def _place(cell: Cell) -> tuple[str, str]:
    return cell.task.name, cell.rule.label


def _best(base: Sequence[Cell], tried: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], tuned.Chosen]:
    """For each task and rule the settings with the highest mean accuracy over seeds; the smaller rate wins a tie.

    Settings that were tried with fewer seeds than others do not count.
    """
    best = {}
    for cell in base:
        place = _place(cell)
        if place in best:
            continue
        scores: dict[tuple[tuple[str, float], ...], dict[int, float]] = {}
        for row in tried:
            if (row["task"], row["rule"]) == place:
                scores.setdefault(tuple(row["settings"].items()), {})[row["seed"]] = row["accuracy"]
        most = max(len(by_seed) for by_seed in scores.values())
        whole = {settings: by_seed.values() for settings, by_seed in scores.items() if len(by_seed) == most}
        means = {settings: sum(found) / len(found) for settings, found in whole.items()}
        top = max(means.values())
        winners = [values for values in means if means[values] == top]
        smallest = min(winners, key=lambda values: values[0][1])
        settings = dict(smallest)
        rate = next(iter(settings.values()))
        rates = _rates(tried, *place)
        at_edge = rate in (rates[0], rates[-1])
        problem = cell.task.problem.name if cell.task.problem else ""
        best[place] = tuned.Chosen(cell.task.name, problem, cell.rule.label, settings, top, at_edge)
    return best
