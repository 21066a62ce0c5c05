"""How do records reach the loggers that people already use? They pass through, one line around the loop.

    for record in tensorboard(simulate(...), "logs/wkafl"):
        ...

Each function hands every record on unchanged; it opens its log when the loop begins and closes it when the loop ends,
however it ends.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kasync.errors import UserError
from kasync.simulator import Record

COLUMNS = (
    "step",
    "time",
    "loss",
    "lr",
    "stage",
    "staleness",
    "max_staleness",
    "selected",
    "largest_weight",
    "similarity",
    "dropped",
    "accuracy",
    "test_loss",
)


def scalars(record: Record) -> dict[str, float]:
    """What a logger can draw of one step: its numbers, and means over its k deliveries; only those there are."""
    weights = np.maximum(np.nan_to_num(record.weights), 0.0)  # [k]
    known: dict[str, Any] = {
        "time": record.time,
        "loss": record.loss,
        "lr": record.lr,
        "stage": record.stage,
        "staleness": record.staleness.mean(),
        "max_staleness": record.staleness.max(),
        "selected": (weights > 0).sum(),
        "largest_weight": weights.max() / max(weights.sum(), 1e-12),
        "similarity": None if record.similarities is None else np.nanmean(record.similarities),
        "dropped": record.dropped,
        "accuracy": record.accuracy,
        "test_loss": record.test_loss,
    }
    return {name: float(value) for name, value in known.items() if value is not None and np.isfinite(value)}


def csv_file(records: Iterable[Record], path: str | Path) -> Iterator[Record]:
    """One row per step; the file can be read while it grows."""
    try:
        file = open(path, "w", newline="", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed in _passing)
    except OSError as problem:
        raise UserError(f"{path} cannot be written ({problem.strerror}): choose another file.") from None
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    yield from _passing(records, lambda step, values: writer.writerow({"step": step, **values}), file.close)


def tensorboard(records: Iterable[Record], folder: str | Path) -> Iterator[Record]:
    """Scalars for `tensorboard --logdir FOLDER`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as problem:
        raise UserError("TensorBoard is not installed: pip install 'kasync[loggers]'.") from problem
    board = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]

    def put(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            board.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    yield from _passing(records, put, board.close)


def mlflow(
    records: Iterable[Record], settings: Mapping[str, Any] | None = None, every: int = 1, **run: Any
) -> Iterator[Record]:
    """Metrics of every `every`-th step and of every evaluation, in a run of its own: mlflow(..., run_name="wkafl")."""
    try:
        import mlflow as flow
    except ImportError as problem:
        raise UserError("MLflow is not installed: pip install 'kasync[loggers]'.") from problem
    if every < 1:
        raise UserError(f"every = {every}: give 1 to log each step, or more to log fewer.")
    active = flow.start_run(**run)
    flow.log_params(dict(settings or {}))

    def put(step: int, values: Mapping[str, float]) -> None:
        if step % every == 0 or "accuracy" in values:
            flow.log_metrics(dict(values), step=step, run_id=active.info.run_id)

    yield from _passing(records, put, flow.end_run)


def _passing(
    records: Iterable[Record], put: Callable[[int, Mapping[str, float]], None], close: Callable[[], None]
) -> Iterator[Record]:
    try:
        for record in records:
            put(record.step, scalars(record))
            yield record
    finally:
        close()
