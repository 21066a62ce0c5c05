"""The progress of one run: a line that rewrites itself, on a terminal or below a cell of a notebook."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from kasync import notebook
from kasync.simulator.records import Record


class Progress:
    """Step, accuracy, staleness, client updates per second and time left, where somebody looks; silent elsewhere."""

    def __init__(self, steps: int, k: int, opening: str, stream: TextIO | None = None) -> None:
        self.steps, self.k = steps, k
        self.stream = stream if stream is not None else sys.stderr
        self.shown = self.began = time.monotonic()
        self.first: int | None = None
        self.accuracy = "-"
        self.watched = self.stream.isatty() or notebook.running()
        if self.watched:
            print(opening, file=self.stream)

    def show(self, record: Record) -> None:
        """Tell about this step, at most ten times a second and at the end."""
        self.first = record.step - 1 if self.first is None else self.first
        self.accuracy = f"{record.accuracy:.4f}" if record.accuracy is not None else self.accuracy
        now = time.monotonic()
        last = record.step == self.steps
        if not self.watched or (now - self.shown < 0.1 and not last):
            return
        self.shown = now
        pace = (record.step - self.first) / max(now - self.began, 1e-9)
        left = (self.steps - record.step) / max(pace, 1e-9)
        line = (
            f"step {record.step:,}/{self.steps:,}  accuracy {self.accuracy}  staleness {record.staleness.mean():.0f}  "
            f"{pace * self.k:,.0f} updates/s  {left:.0f} s left"
        )
        print(f"\r{line:<100}", end="\n" if last else "", file=self.stream, flush=True)
