"""A table of the rules while they run, drawn again several times a second."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kasync.experiments.display import Silent
from kasync.simulator import Record


class LiveTable(Silent):
    """A row for each run: how far it is, its accuracy, its staleness."""

    def __init__(self, labels: Mapping[str, tuple[str, str, int]]) -> None:
        self.labels = labels  # run -> rule, staleness, seed
        self.told: dict[str, tuple[str, str, str]] = {}  # run -> progress, accuracy, staleness
        self.steps: dict[str, int] = {}
        self.guard = threading.Lock()
        self.live = Live(get_renderable=self._drawn, console=Console(stderr=True), refresh_per_second=5, transient=True)

    def begin(self, runs: int, finished: int) -> None:
        self.live.start()

    def start(self, name: str, steps: int) -> None:
        with self.guard:
            self.steps[name] = steps
            self.told[name] = ("0%", "", "")

    def step(self, name: str, record: Record) -> None:
        with self.guard:
            _, accuracy, _ = self.told[name]
            accuracy = accuracy if record.accuracy is None else f"{record.accuracy:.4f}"
            self.told[name] = (f"{record.step / self.steps[name]:.0%}", accuracy, f"{record.staleness.mean():.0f}")

    def done(self, name: str, summary: dict[str, Any]) -> None:
        accuracy = summary.get("final_accuracy")
        with self.guard:
            self.told[name] = (
                "done",
                "" if accuracy is None else f"{accuracy:.4f}",
                self.told.get(name, ("", "", ""))[2],
            )

    def failed(self, name: str, why: str) -> None:
        with self.guard:
            self.told[name] = ("failed", "", "")

    def end(self) -> None:
        self.live.stop()

    def _drawn(self) -> Table:
        table = Table("rule", "semantics", "seed", "progress", "accuracy", "staleness")
        with self.guard:
            for name, (rule, semantics, seed) in self.labels.items():
                table.add_row(rule, semantics, str(seed), *self.told.get(name, ("waits", "", "")))
        return table
