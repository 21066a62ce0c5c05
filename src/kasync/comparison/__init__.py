"""Paired comparisons of any rules, models and data: runs, statistics and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kasync import checks, fingerprint
from kasync.comparison.contenders import Entrant, contenders
from kasync.comparison.result import Comparison
from kasync.comparison.running import Contest, plainly
from kasync.comparison.tuning import Tune, by_metric, carry_out, told
from kasync.errors import UserError, unknown
from kasync.experiments import grid
from kasync.experiments.display import fitting
from kasync.experiments.experiment import cell_record
from kasync.experiments.runner import Wanted
from kasync.experiments.store import Store
from kasync.report import loggers
from kasync.work import Work

__all__ = ["Comparison", "Tune", "compare"]
FOLDER = "kasync-runs"
VARYING = {"model": "initial parameters", "data": "data", "timeline": "arrivals"}  # what seeds may make different
MEASURED = ("accuracy", "test_loss", "train_loss", "staleness", "selected", "dropped")  # at every evaluation
OPTIONS = {  # of kasync.simulate, which every run gets
    "staleness": "true",
    "hold": "auto",
    "faults": None,
    "buffers": "average",
    "precision": "float32",
    "backend": "auto",
    "engine": "local",
    "workers": None,
    "resources_per_worker": None,
    "address": None,
}


def compare(
    model: Any,
    data: Any,
    rules: Any,
    timeline: Any,
    seeds: int | Iterable[int] = 5,
    work: Work | None = None,
    *,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    metric: str | None = None,
    lower_is_better: bool | None = None,
    baseline: str | None = None,
    tune: int | Tune | None = None,
    loss: Any = None,
    evaluate_every: int | None = None,
    device: str = "cpu",
    jobs: int = 1,
    folder: str | Path = FOLDER,
    name: str = "comparison",
    track: str | None = None,
    progress: bool = True,
    **options: Any,
) -> Comparison:
    """Train every rule on the same data, the same arrivals, the same start and the same batches, seed by seed.

    model        a torch.nn.Module; or a class or function that makes one, so that its start varies with the seed
    data         kasync.data.federate(...) or from_arrays(...); or a function of the seed
    rules        a list of rules, or labels with rules. A rule is kasync.rules.wkafl(0.05), the name of one with
                 settings, ("wkafl", {"lr": 0.05}), a function that makes one, or "module:name"; what its function
                 asks for by name (clients, k, seed, server_gradient) is filled in
    timeline     one for all seeds, or a function of the seed: lambda seed: kasync.timelines.uniform(100, 5, 500, seed)
    seeds        how many, or which
    metrics      name -> function of test outputs and labels; `metric` decides, accuracy or test_loss without it
    baseline     the rule that the others are held against; without one every pair is compared
    tune         so many tries of its rate and main knob for every rule, on held-out samples; or a Tune
    folder       where runs are kept: what is finished is not run again, what was interrupted goes on
    jobs         runs at once on a GPU, where they can share their steps
    track        "tensorboard", "mlflow" or "wandb": log every run there too
    options      anything else that kasync.simulate takes: staleness, hold, faults, buffers, precision, backend, and
                 engine="ray" with workers and address to spread every run over a cluster

    A run that raises is marked and left out, the others go on. What cannot work at all is refused before it starts.
    """
    chosen = contenders(rules)
    numbers = _seeds(seeds)
    checks.count("jobs", jobs)
    if metric is not None and metric not in {*MEASURED, *(metrics or {})}:
        raise unknown("metric", metric, {*MEASURED, *(metrics or {})})
    if evaluate_every is not None:
        checks.count("evaluate_every", evaluate_every)
    for option in options:
        if option not in OPTIONS:
            raise unknown("option of compare", option, OPTIONS)
    every = {**OPTIONS, **options, "loss": loss, "metrics": metrics, "device": device}
    task = Contest(model, data, timeline, work, every, evaluate_every)
    judged = metric or ("accuracy" if task.data_of(numbers[0]).classes else "test_loss")
    place = Path(folder)
    display = fitting(quiet=not progress)
    found = Comparison([each.label for each in chosen], numbers, {}, judged, lower_is_better, baseline)
    found.varies = ["batches", *(words for name, words in VARYING.items() if task.varies(name))]
    rows: list[dict[str, Any]] = []
    if tune is not None:
        how = tune if isinstance(tune, Tune) else Tune(tune)
        held = replace(task, held_out=how.held_out)
        searches = how.searches([(each, partial(held.with_settings, each)) for each in chosen])
        carry_out(searches, place, by_metric(judged, found.lower_is_better), display=display, jobs=jobs)
        chosen, rows = [each.contender.having(**each.best) for each in searches], told(searches)
    planned = {(each.label, seed): task.run(each, seed) for seed in numbers for each in chosen}
    store, one = Store(place), planned[chosen[0].label, numbers[0]].ready()
    for each in chosen:
        run = planned[each.label, numbers[0]]
        if not store.finished(run.name):
            run.ready().simulation()  # what cannot work is refused before any work
    sizes = f"{one.timeline.k} of {one.timeline.population} clients at each of {one.timeline.steps} steps"
    found.about = {
        "name": name,
        "title": f"{one.data.name}, {sizes}",
        "model": type(one.model).__name__,
        "work": str(one.work),
        "settings": {each.label: each.words for each in chosen},
    }
    tables = {one.name: dict(one.table) for one in planned.values()}
    logged = loggers.tracked(display, track, name, place, tables)
    failed = dict(grid.make(planned.values(), place, jobs=jobs, display=logged).failed)
    found.tuned, found.folder = rows, place
    keys = {each.label: {seed: planned[each.label, seed].name for seed in numbers} for each in chosen}
    found.runs = {rule: {seed: store.run(key) for seed, key in each.items()} for rule, each in keys.items()}
    found.failed = {
        rule: {seed: failed[key] for seed, key in each.items() if key in failed} for rule, each in keys.items()
    }
    if find_spec("pyarrow") is not None:
        _record(found, chosen, planned, store)
    known = {name for runs in found.runs.values() for run in runs.values() for name in run.rows}
    if known and judged not in known:
        raise UserError(f"metric = {judged!r}: no run measured it; known: {', '.join(sorted(known))}.")
    return found


def _record(
    found: Comparison, chosen: Sequence[Entrant], planned: Mapping[tuple[str, int], Wanted], store: Store
) -> None:
    """Enter the comparison into the store of its folder, so that `kasync report` and `kasync results` know it.

    Comparisons of other tasks stand beside this one, and so do other rules of the same label.
    """
    about, one = found.experiment().about, next(iter(planned.values())).ready()
    told = about.record()
    for row, each in zip(told["rules"], chosen, strict=True):
        row |= {"settings": plainly(each.settings), "fingerprint": fingerprint.of(each.make, each.settings)}
    shape = (one.timeline.kind, one.timeline.population, one.timeline.k, one.timeline.steps)
    task = fingerprint.of(one.data.name, one.data.clients, type(one.model).__name__, str(one.work), shape)
    labels = {rule.label: rule for rule in about.rules}
    cells = [
        cell_record(
            about.tasks[0], labels[label], run.table["staleness"], seed, run.name, run.device_kind, run.precision
        )
        for (label, seed), run in planned.items()
    ]
    store.record(f"{found.name}-{task[:6]}", told, cells)


def _seeds(given: int | Iterable[int]) -> list[int]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        checks.count("seeds", given)
        return list(range(given))
    numbers = list(given)
    for seed in numbers:
        checks.count("seed", seed, least=0)
    if not numbers or len(set(numbers)) < len(numbers):
        raise UserError(f"seeds = {numbers}: give at least one, each once.")
    return numbers
