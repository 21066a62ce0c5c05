"""What a run has recorded so far: a column for everything, and a row of metrics.csv for each evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.simulator import Simulation
from kasync.simulator.records import METRIC

COLUMNS = (
    "step",
    "time",
    "updates",
    "accuracy",
    "test_loss",
    "train_loss",
    "lr",
    "stage",
    "staleness",
    "selected",
    "dropped",
)


def told(simulation: Simulation) -> dict[str, NDArray]:
    """All steps so far as columns: [J] each, or [J, K] for weights, staleness, similarities and clients."""
    done, timeline = simulation.done, simulation.timeline
    rest: dict[str, NDArray] = {
        "clients": timeline.clients,
        "staleness": simulation.run.plan.reported,
        "time": timeline.times,
    }
    return {name: values[:done] for name, values in (simulation.history.columns | rest).items()}


def rows_of(columns: Mapping[str, NDArray]) -> list[dict[str, Any]]:
    """A row for each evaluation, about the steps since the one before; what comes after the last is not told yet."""
    ends = np.flatnonzero(columns["evaluated"] == 1)  # [rows]
    own = {name.removeprefix(METRIC): values for name, values in columns.items() if name.startswith(METRIC)}
    if not len(ends):
        return []
    starts = np.concatenate([[0], ends[:-1] + 1])
    stop = ends[-1] + 1

    def sums(values: NDArray) -> NDArray:
        return np.add.reduceat(np.asarray(values[:stop], np.float64), starts)

    counts = ends - starts + 1
    used = columns["skipped"] == 0
    losses, trained = sums(np.where(used, columns["loss"], 0.0)), sums(used)
    stale = sums(columns["staleness"].mean(1)) / counts
    selected = sums((columns["weights"] > 0).sum(1)) / counts
    dropped = sums(columns["dropped"])
    updates = np.cumsum(counts * columns["clients"].shape[1] - dropped)
    return [
        {
            "step": int(end) + 1,
            "time": float(columns["time"][end]),
            "updates": int(updates[i]),
            "accuracy": _number(columns["accuracy"][end]),
            "test_loss": float(columns["test_loss"][end]),
            "train_loss": float(losses[i] / trained[i]) if trained[i] else None,
            "lr": float(columns["lr"][end]),
            "stage": int(columns["stage"][end]),
            "staleness": float(stale[i]),
            "selected": float(selected[i]),
            "dropped": int(dropped[i]),
            **{name: _number(values[end]) for name, values in own.items()},
        }
        for i, end in enumerate(ends)
    ]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
