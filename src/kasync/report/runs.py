"""What does one run folder say? Its settings, its evaluations, what its rule did and, at the end, its summary."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError
from kasync.experiments import files, toml

PARTS = ("run.toml", "metrics.csv", "steps.npz", "summary.json")


@dataclass(frozen=True, eq=False)
class Run:
    """One run, as far as it has come: everything is empty before it begins, `summary` is empty until it is finished."""

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, NDArray[np.float64]] = field(
        default_factory=dict, repr=False
    )  # column of metrics.csv -> [evaluations]
    steps: Mapping[str, NDArray] = field(default_factory=dict, repr=False)  # array of steps.npz
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def begun(self) -> bool:
        return bool(self.settings)

    @property
    def step(self) -> int:
        """Steps made so far, as of the last evaluation."""
        steps = (self.rows or self.steps).get("step")
        return int(steps[-1]) if steps is not None and len(steps) else 0

    def reached(self, accuracy: float) -> Mapping[str, float] | None:
        """Step, virtual time and client updates of the first evaluation at or above this accuracy."""
        high_enough = self.rows["accuracy"] >= accuracy if self.rows else np.zeros(0, bool)
        if not high_enough.any():
            return None
        first = int(high_enough.argmax())
        return {name: float(self.rows[name][first]) for name in ("step", "time", "updates")}

    def aggregated(self, ratio: float) -> float | None:
        """N_ave of the summary for this mu."""
        found = [row["number"] for row in self.summary.get("aggregated", ()) if row["mu"] == ratio]
        return found[0] if found else None


def read(folder: Path) -> Run:
    """The run of this folder; what has not changed since it was last read is not read again."""
    changed = tuple(_changed(folder / name) for name in PARTS)
    return _read(folder, changed)


@lru_cache(maxsize=4096)
def _read(folder: Path, changed: tuple[int | None, ...]) -> Run:
    settings, rows, steps, summary = (when is not None for when in changed)
    return Run(
        folder,
        toml.read(folder / "run.toml") if settings else {},
        _rows(folder / "metrics.csv") if rows else {},
        _arrays(folder / "steps.npz") if steps else {},
        files.read_json(folder / "summary.json") if summary else {},
    )


def _changed(path: Path) -> int | None:
    """When the file was last written, None when it is not there."""
    try:
        return path.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


def _rows(path: Path) -> dict[str, NDArray[np.float64]]:
    try:
        table = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        columns = {name: np.array([float(row[name] or "nan") for row in table]) for name in (table[0] if table else ())}
    except (OSError, ValueError, TypeError) as problem:
        raise _damaged(path, problem) from None
    if columns and not {"step", "time", "updates", "accuracy"} <= columns.keys():
        raise _damaged(path, "columns are missing")
    return columns


def _arrays(path: Path) -> dict[str, NDArray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, ValueError, zipfile.BadZipFile) as problem:
        raise _damaged(path, problem) from None


def _damaged(path: Path, problem: object) -> UserError:
    return UserError(f"{path} cannot be read ({problem}): delete its folder and run the command again.")
