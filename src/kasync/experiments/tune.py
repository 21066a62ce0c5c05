"""Would another learning rate change the winner? Every rule gets the same number of tries, judged on held-out samples.

The rates of a rule are `budget` powers of `spacing` around its own rate in the problem's file: rules whose weights
shrink with staleness need other magnitudes than rules whose weights sum to one, so one grid for all would be unfair.
A best rate at the end of its grid is followed up to `further` steps beyond it, so that nobody loses by a grid that
ends too early, and is marked `at_edge` if it is still the last one tried. With `knob`, the best rate is then tried with
other values of the rule's main knob. The held-out samples leave the training set, the test set is never looked at, and
the seeds are not those of the experiments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kasync import lock
from kasync.errors import UserError, unknown
from kasync.experiments import catalogue, files, grid, tuned
from kasync.experiments.display import Display
from kasync.experiments.experiment import Cell, Task
from kasync.experiments.settings import Choice

FIRST_SEED = 100  # experiments count theirs from 0
HELD_OUT = 0.1
PER = ("task", "problem")  # choose for every task, or on the first task of each problem
STEP = 10**0.5
KNOBS: dict[str, tuple[str, tuple[float, ...]]] = {  # rule -> its main knob and the values to try
    "wkafl": ("threshold", (-1.0, 0.0, 0.3, 0.6)),
    "gsgm": ("momentum", (0.0, 0.1, 0.5, 0.9)),
    "fedbuff": ("power", (0.0, 0.5, 1.0, 2.0)),
    "zeno": ("penalty", (0.0, 0.002, 0.02, 0.2)),
}


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
    one = catalogue.load(name).only(scale, tasks)
    first = {task.problem.name if per == "problem" else task.name: task for task in one.tasks_at(scale)[::-1]}
    chosen_on = list(first.values())[::-1]
    labels = one.labels(rules)
    seed_list = range(FIRST_SEED, FIRST_SEED + (seeds or 1))
    held = {"validation": HELD_OUT, **(overrides or {})}
    base = replace(one, tasks={scale: chosen_on}).cells(scale, seed_list, (staleness,), None, held, labels)
    how: dict[str, Any] = {"engine": engine, "jobs": jobs, "display": display}
    places = {task.name: task for task in chosen_on}
    rates = rate_grid(budget, spacing)
    tries = [_with(cell, lr=_rate(cell) * factor) for cell in base for factor in rates]
    tried = _made(tries, out, how)
    best = _best(base, tried, places)
    for _ in range(further):
        ends = {
            place: _beyond(chosen, _rates(tried, *place), spacing) for place, chosen in best.items() if chosen.at_edge
        }
        beyond = [_with(cell, lr=end) for cell in base if (end := ends.get((cell.task, cell.rule)))]
        tried += _made(beyond, out, how)
        best = _best(base, tried, places)
    if knob:
        second = [
            _with(cell, **{**best[cell.task, cell.rule].settings, **{KNOBS[kind][0]: value}})
            for cell in base
            if (kind := cell.settings.rule.kind) in KNOBS
            for value in KNOBS[kind][1]
        ]
        tried += _made(second, out, how)
        best = _best(base, tried, places)
    folder = files.make_folder(out / "tuned")
    path = folder / f"{one.name}-{scale}.toml"
    about = {
        "experiment": one.name,
        "scale": scale,
        "budget": budget,
        "spacing": spacing,
        "further": further,
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
    """A rule's own rate; FedAsync's is called mixing."""
    values = cell.settings.rule.settings
    return values["lr"] if "lr" in values else values["mixing"]


def _with(cell: Cell, **values: Any) -> Cell:
    """The cell with other settings of its rule."""
    old = cell.settings.rule
    if "lr" in values and "lr" not in old.settings:
        values["mixing"] = min(1.0, values.pop("lr"))
    rule = Choice(old.kind, {**old.settings, **values})
    return replace(cell, settings=replace(cell.settings, rule=rule).resolved())


def _made(cells: list[Cell], out: Path, how: dict[str, Any]) -> list[dict[str, Any]]:
    """Make the runs; a row for each, with what it changed and what it reached."""
    outcome = grid.make(cells, out, **how)
    wrong = dict(outcome.failed)
    rows = []
    for cell in cells:
        run = cell.settings.name
        if run in wrong:
            raise UserError(f"a run of {cell.rule!r} on {cell.task!r} failed while tuning: {wrong[run]}")
        summary = files.read_json(out / "runs" / run / "summary.json")
        values = cell.settings.rule.settings
        kept = {"lr": values["lr"]} if "lr" in values else {"mixing": values["mixing"]}
        if cell.settings.rule.kind in KNOBS:
            knob = KNOBS[cell.settings.rule.kind][0]
            kept[knob] = values[knob]
        rows.append(
            {
                "task": cell.task,
                "rule": cell.rule,
                "seed": cell.seed,
                "settings": kept,
                "accuracy": 0.0 if summary["diverged"] else summary["final_accuracy"] or 0.0,
                "diverged": summary["diverged"],
                "run": run,
            }
        )
    return rows


def _rates(tried: Sequence[Mapping[str, Any]], task: str, rule: str) -> list[float]:
    """The rates tried so far, in ascending order."""
    return sorted({next(iter(row["settings"].values())) for row in tried if (row["task"], row["rule"]) == (task, rule)})


def _beyond(chosen: tuned.Chosen, rates: Sequence[float], spacing: float) -> float | None:
    """The next rate beyond the end of the grid that was best; None where there is only one rate."""
    if len(rates) < 2:
        return None
    return rates[0] / spacing if next(iter(chosen.settings.values())) == rates[0] else rates[-1] * spacing


def _best(
    base: Sequence[Cell], tried: Sequence[Mapping[str, Any]], tasks: Mapping[str, Task]
) -> dict[tuple[str, str], tuned.Chosen]:
    """For each task and rule the settings with the highest mean accuracy over seeds; the smaller rate wins a tie."""
    best = {}
    for cell in base:
        place = (cell.task, cell.rule)
        if place in best:
            continue
        scores: dict[tuple[tuple[str, float], ...], list[float]] = {}
        for row in tried:
            if (row["task"], row["rule"]) == place:
                scores.setdefault(tuple(row["settings"].items()), []).append(row["accuracy"])
        means = {settings: sum(found) / len(found) for settings, found in scores.items()}
        top = max(means.values())
        winners = [values for values in means if means[values] == top]
        smallest = min(winners, key=lambda values: values[0][1])
        settings = dict(smallest)
        rate = next(iter(settings.values()))
        rates = _rates(tried, *place)
        at_edge = rate in (rates[0], rates[-1])
        task = tasks[cell.task]
        best[place] = tuned.Chosen(cell.task, task.problem.name, cell.rule, settings, top, at_edge)
    return best
