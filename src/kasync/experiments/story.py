"""What has a run told so far? A column for everything recorded, and a row of metrics.csv for each evaluation."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.simulator import Simulation

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
        }
        for i, end in enumerate(ends)
    ]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of metrics.csv; empty where there is no number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
