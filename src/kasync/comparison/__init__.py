"""Paired comparisons of any rules, models and data: runs, statistics and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from kasync import checks, fingerprint, statistics
from kasync.comparison import running
from kasync.comparison.contenders import Entrant, contenders
from kasync.comparison.result import Comparison
from kasync.comparison.running import plainly
from kasync.comparison.tuning import Tune, tuned
from kasync.errors import UserError, unknown
from kasync.experiments.display import fitting
from kasync.experiments.experiment import cell_record
from kasync.experiments.store import Run, Store
from kasync.report import loggers
from kasync.work import Work

__all__ = ["Comparison", "Tune", "compare"]
FOLDER = "kasync-runs"
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
    _check_labels(chosen)
    numbers = _seeds(seeds)
    checks.count("jobs", jobs)
    if evaluate_every is not None:
        checks.count("evaluate_every", evaluate_every)
    for option in options:
        if option not in OPTIONS:
            raise unknown("option of compare", option, OPTIONS)
    every = {**OPTIONS, **options, "loss": loss, "metrics": metrics, "device": device}
    task = running.Contest(model, data, timeline, work, every, evaluate_every)
    judged = metric or ("accuracy" if task.data_of(numbers[0]).classes else "test_loss")
    place = Path(folder)
    display = fitting(quiet=not progress)
    found = Comparison([each.label for each in chosen], numbers, {}, judged, lower_is_better, baseline)
    found.varies = _varies(task)
    rows: list[dict[str, Any]] = []
    if tune is not None:
        how = tune if isinstance(tune, Tune) else Tune(tune)
        chosen, rows = tuned(task, chosen, how, _score(found), place, display, jobs)
    planned = [running.planned(task, each, seed) for seed in numbers for each in chosen]
    marks = {
        each.label: {"settings": plainly(each.settings), "fingerprint": fingerprint.of(each.make, each.settings)}
        for each in chosen
    }
    running.check(one for one in planned[: len(chosen)] if not running.result(place, one.key).finished)
    found.about = _about(name, planned[0], chosen)
    logged = loggers.tracked(display, track, name, place, {one.key: one.settings() for one in planned})
    failed = running.make(planned, place, logged, jobs)
    found.tuned, found.folder = rows, place
    found.runs = {each.label: {} for each in chosen}
    found.failed = {each.label: {} for each in chosen}
    for one in planned:
        found.runs[one.label][one.seed] = running.result(place, one.key)  # type: ignore[index]
        if one.key in failed:
            found.failed[one.label][one.seed] = failed[one.key]  # type: ignore[index]
    _record(found, planned, place, marks)
    known = {name for runs in found.runs.values() for run in runs.values() for name in run.rows}
    if known and judged not in known:
        raise UserError(f"metric = {judged!r}: no run measured it; known: {', '.join(sorted(known))}.")
    return found


def _record(found: Comparison, planned: Sequence[running.Planned], place: Path, marks: Mapping[str, Any]) -> None:
    """Enter the comparison into the store of its folder, so that `kasync report` and `kasync results` know it.

    `marks` has, by label, settings and fingerprint, which tell rules of one label apart.
    """
    if find_spec("pyarrow") is None:
        return
    about = found.experiment().about
    told = about.record()
    told["rules"] = [{**row, **marks[row["label"]]} for row in told["rules"]]
    (task,), way = about.tasks, str(planned[0].options["staleness"])
    made = {"device": planned[0].device_kind, "precision": planned[0].options["precision"]}
    labels = {rule.label: rule for rule in about.rules}
    cells = [cell_record(task, labels[one.label], way, one.seed, one.key) | made for one in planned]
    Store(place).record(f"{found.name}-{planned[0].task_digest}", told, cells)


def _check_labels(chosen: list[Entrant]) -> None:
    labels = [each.label for each in chosen]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UserError(f"two rules are called {twice[0]!r}: give labels with rules, {{'one': ..., 'two': ...}}.")


def _seeds(given: int | Iterable[int]) -> list[int]:
    if isinstance(given, int):
        checks.count("seeds", given)
        return list(range(given))
    numbers = list(given)
    for seed in numbers:
        checks.count("seed", seed, least=0)
    if not numbers or len(set(numbers)) < len(numbers):
        raise UserError(f"seeds = {numbers}: give at least one, each once.")
    return numbers


def _score(found: Comparison) -> Any:
    """What a try is judged by: higher is better."""
    sign = -1.0 if found.lower_is_better else 1.0

    def score(run: Run) -> float:
        curve = run.rows.get(found.metric, np.zeros(0))
        return sign * statistics.final(curve) if len(curve) else -np.inf

    return score


def _varies(task: running.Contest) -> list[str]:
    """What the seeds make different."""
    words = {"model": "initial parameters", "data": "data", "timeline": "arrivals"}
    return ["batches", *(word for name, word in words.items() if task.varies(name))]


def _about(name: str, one: running.Planned, chosen: list[Entrant]) -> Mapping[str, Any]:
    """The comparison in words."""
    data, timeline = one.ready.data, one.ready.timeline
    return {
        "name": name,
        "title": f"{data.name}, {timeline.k} of {timeline.population} clients at each of {timeline.steps} steps",
        "model": type(one.ready.model).__name__ if isinstance(one.ready.model, nn.Module) else "",
        "work": repr(one.ready.work),
        "settings": {each.label: each.words for each in chosen},
    }
