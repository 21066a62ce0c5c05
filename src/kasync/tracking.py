"""TensorBoard, MLflow and Weights & Biases, opened for one run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kasync.errors import UserError
from kasync.files import flat


@dataclass(frozen=True)
class Log:
    """An open log: `put` takes the numbers of a step, `close` says whether the run ended well."""

    put: Callable[[int, Mapping[str, float]], None]
    close: Callable[[bool], None]
    conclude: Callable[[Mapping[str, float]], None] = lambda summary: None  # the numbers of the whole run
    key: str = ""  # what the tracker calls the run


def open_tensorboard(folder: str | os.PathLike[str]) -> Log:
    """Event files in this folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as problem:
        raise UserError("TensorBoard is not installed: pip install 'kasync[loggers]'.") from problem
    board = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]
    last = [0]

    def put(step: int, values: Mapping[str, float]) -> None:
        last[0] = step
        for name, value in values.items():
            board.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    def conclude(summary: Mapping[str, float]) -> None:
        for name, value in summary.items():
            board.add_scalar(f"summary/{name}", value, last[0])  # type: ignore[no-untyped-call]

    return Log(put, lambda well: board.close(), conclude)  # type: ignore[no-untyped-call]


def open_mlflow(
    settings: Mapping[str, Any] | None = None,
    run_name: str | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Log:
    """A run of its own beside any that is active; several may be open at once."""
    try:
        import mlflow as flow
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
    except ImportError as problem:
        raise UserError("MLflow is not installed: pip install 'kasync[loggers]'.") from problem
    address = flow.get_tracking_uri()
    if address.startswith("file:") or "://" not in address:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3.7 refuses folders unless told so
    try:
        client = flow.MlflowClient()
        place = client.get_experiment_by_name(experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default")
        number = place.experiment_id if place is not None else client.create_experiment(experiment or "Default")
        run = client.create_run(number, run_name=run_name, tags=dict(tags or {}))
    except (MlflowException, ImportError) as problem:
        first = str(problem).partition("\n")[0]
        raise UserError(
            f"MLflow cannot write to {address} ({first}): set another address, mlflow.set_tracking_uri('sqlite:///"
            f"mlflow.db'), say; a database needs pip install 'kasync[loggers]'."
        ) from problem
    key = run.info.run_id
    given = [Param(name, str(value)[:6000]) for name, value in flat(settings or {})]
    for start in range(0, len(given), 100):
        client.log_batch(key, params=given[start : start + 100])

    def put(step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        client.log_batch(key, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def conclude(summary: Mapping[str, float]) -> None:
        put(0, {f"summary.{name}": value for name, value in summary.items()})

    return Log(put, lambda well: client.set_terminated(key, "FINISHED" if well else "FAILED"), conclude, key)


def open_wandb(settings: Mapping[str, Any] | None = None, **init: Any) -> Log:
    """A run of its own; several may be open at once."""
    try:
        import wandb as weights
    except ImportError as problem:
        raise UserError("Weights & Biases is not installed: pip install 'kasync[loggers]'.") from problem
    run = weights.init(config=dict(flat(settings or {})), reinit="create_new", **init)

    def conclude(summary: Mapping[str, float]) -> None:
        for name, value in summary.items():
            run.summary[name] = value

    return Log(
        lambda step, values: run.log(dict(values), step=step),
        lambda well: run.finish(exit_code=0 if well else 1),
        conclude,
    )
