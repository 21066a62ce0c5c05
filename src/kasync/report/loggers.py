"""Logs that people already use: CSV, TensorBoard, MLflow and Weights & Biases, for single runs and for grids.

    for record in tensorboard(simulate(...), "logs/wkafl"):
        ...

Each of the four functions hands every record on unchanged; it opens its log when the loop begins and closes it when
the loop ends, however it ends. `Tracked` does the same for every run of a grid or a comparison.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kasync import checks, components
from kasync.errors import UserError
from kasync.experiments.display import Display
from kasync.simulator import Record
from kasync.tracking import Log, open_mlflow, open_tensorboard, open_wandb

POINTS = 500  # steps of a run that a grid logs, beside all evaluations
NUMBERS = (
    *("time", "loss", "lr", "stage", "staleness", "max_staleness", "selected", "largest_weight", "similarity"),
    *("dropped", "accuracy", "test_loss"),
)


def scalars(record: Record) -> dict[str, float]:
    """What a logger can draw of one step: its numbers, and means over its k deliveries; only those there are."""
    weights = np.maximum(np.nan_to_num(record.weights), 0.0)  # [k]
    of_deliveries = {
        "staleness": record.staleness.mean(),
        "max_staleness": record.staleness.max(),
        "selected": (weights > 0).sum(),
        "largest_weight": weights.max() / max(weights.sum(), 1e-12),
        "similarity": None if record.similarities is None else np.nanmean(record.similarities),
    }
    own = {name: of_deliveries[name] if name in of_deliveries else getattr(record, name) for name in NUMBERS}
    known: dict[str, Any] = {**own, **record.metrics}
    return {name: float(value) for name, value in known.items() if value is not None and np.isfinite(value)}


# ---- one run


def csv_file(records: Iterable[Record], path: str | Path) -> Iterator[Record]:
    """One row per step; the file can be read while it grows."""
    try:
        file = open(path, "w", newline="", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed in _passing)
    except OSError as problem:
        raise UserError(f"{path} cannot be written ({problem.strerror}): choose another file.") from None
    writer = csv.DictWriter(file, ("step", *NUMBERS), extrasaction="ignore")
    writer.writeheader()
    log = Log(lambda step, values: writer.writerow({"step": step, **values}), lambda well: file.close())
    yield from _passing(records, lambda: log)


def tensorboard(records: Iterable[Record], folder: str | Path, every: int = 1) -> Iterator[Record]:
    """Scalars of every `every`-th step and of every evaluation for `tensorboard --logdir FOLDER`."""
    yield from _passing(records, lambda: open_tensorboard(folder), every)


def mlflow(
    records: Iterable[Record],
    settings: Mapping[str, Any] | None = None,
    every: int = 1,
    *,
    run_name: str | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Iterator[Record]:
    """A run of its own at the tracking address that is set; the experiment is made if it is not there."""
    yield from _passing(records, lambda: open_mlflow(settings, run_name, experiment, tags), every)


def wandb(
    records: Iterable[Record], settings: Mapping[str, Any] | None = None, every: int = 1, **init: Any
) -> Iterator[Record]:
    """A run of Weights & Biases; `init` as `wandb.init` takes it: project, name, group, mode="offline" ..."""
    yield from _passing(records, lambda: open_wandb(settings, **init), every)


# ---- many runs


@dataclass(eq=False)
class Tracked(Display):
    """A grid's display that also logs every run, by itself and under one group; `settings` by the name of a run."""

    display: Display
    open_log: Callable[[str, Mapping[str, Any]], Log]
    settings: Mapping[str, Mapping[str, Any]]
    open: dict[str, tuple[Log, int]] = field(default_factory=dict)  # and every how many steps it is told

    def begin(self, runs: int, finished: int) -> None:
        self.display.begin(runs, finished)

    def start(self, name: str, steps: int) -> None:
        self._close(name, False)  # its stack failed, now it is made by itself
        self.open[name] = self.open_log(name, self.settings.get(name, {})), max(1, steps // POINTS)
        self.display.start(name, steps)

    def step(self, name: str, record: Record) -> None:
        _put(record, *self.open[name])
        self.display.step(name, record)

    def done(self, name: str, summary: dict[str, Any]) -> None:
        if name in self.open:
            numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
            self.open[name][0].conclude({key: float(value) for key, value in numbers.items() if np.isfinite(value)})
        self._close(name, True)
        self.display.done(name, summary)

    def failed(self, name: str, why: str) -> None:
        self._close(name, False)
        self.display.failed(name, why)

    def end(self) -> None:
        for name in list(self.open):
            self._close(name, False)
        self.display.end()

    def _close(self, name: str, well: bool) -> None:
        if name in self.open:
            self.open.pop(name)[0].close(well)


TRACKERS: dict[str, Callable[[str, Path], Callable[[str, Mapping[str, Any]], Log]]] = {
    "tensorboard": lambda group, folder: lambda name, settings: open_tensorboard(folder / "tensorboard" / name),
    "mlflow": lambda group, folder: lambda name, settings: open_mlflow(settings, name, group),
    "wandb": lambda group, folder: (
        lambda name, settings: open_wandb(
            settings, name=name, project=os.environ.get("WANDB_PROJECT", "kasync"), group=group, dir=str(folder)
        )
    ),
}


def tracked(
    display: Display, track: str | None, group: str, folder: Path, settings: Mapping[str, Mapping[str, Any]]
) -> Display:
    """The display, logging too if somebody asks: "tensorboard", "mlflow", "wandb", or a function of one's own.

    module:name is a function (group, folder) -> (name, settings) -> Log.
    """
    if track is None:
        return display
    return Tracked(display, components.find(track, "tracker", TRACKERS)(group, folder), settings)


def _put(record: Record, log: Log, every: int) -> None:
    if record.step % every == 0 or record.test_loss is not None:
        log.put(record.step, scalars(record))


def _passing(records: Iterable[Record], opened: Callable[[], Log], every: int = 1) -> Iterator[Record]:
    checks.count("every", every)
    log, well = opened(), False
    try:
        for record in records:
            _put(record, log, every)
            yield record
        well = True
    except GeneratorExit:  # the loop was left early, which is no failure
        well = True
        raise
    finally:
        log.close(well)
