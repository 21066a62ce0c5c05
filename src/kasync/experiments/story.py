"""What has a run told so far? Its records, and a row of metrics.csv for each evaluation."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kasync.simulator import Record

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


@dataclass
class Story:
    """Grows record by record."""

    records: list[Record] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    since: int = 0  # records that are in a row already
    updates: int = 0

    def add(self, record: Record, is_evaluation: bool) -> None:
        self.records.append(record)
        if is_evaluation:
            self.rows.append(self._row(record))
            self.since = len(self.records)

    def _row(self, last: Record) -> dict[str, Any]:
        new = self.records[self.since :]
        self.updates += sum(len(record.clients) - record.dropped for record in new)
        losses = [record.loss for record in new if not record.skipped]
        return {
            "step": last.step,
            "time": last.time,
            "updates": self.updates,
            "accuracy": last.accuracy,
            "test_loss": last.test_loss,
            "train_loss": float(np.mean(losses)) if losses else None,
            "lr": last.lr,
            "stage": last.stage,
            "staleness": float(np.mean([record.staleness.mean() for record in new])),
            "selected": float(np.mean([(record.weights > 0).sum() for record in new])),
            "dropped": sum(record.dropped for record in new),
        }


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of metrics.csv; empty where there is no number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
