"""How far is the grid? A live display where somebody looks at a terminal, plain lines in a log, or nothing."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Protocol, TextIO

from kasync.simulator import Record


class Display(Protocol):
    """What a grid tells while it is made; called from several threads."""

    def begin(self, runs: int, finished: int) -> None: ...

    def start(self, name: str, steps: int) -> None: ...

    def step(self, name: str, record: Record) -> None: ...

    def done(self, name: str, summary: dict[str, Any]) -> None: ...

    def failed(self, name: str, why: str) -> None: ...

    def end(self) -> None: ...


class Silent:
    """Says nothing."""

    def begin(self, runs: int, finished: int) -> None:
        """Nothing."""

    def start(self, name: str, steps: int) -> None:
        """Nothing."""

    def step(self, name: str, record: Record) -> None:
        """Nothing."""

    def done(self, name: str, summary: dict[str, Any]) -> None:
        """Nothing."""

    def failed(self, name: str, why: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Lines(Silent):
    """One line for each run that ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.total = self.count = 0
        self.began = time.monotonic()
        self.guard = threading.Lock()

    def begin(self, runs: int, finished: int) -> None:
        self.total, self.count = runs, finished
        print(f"{runs} runs, {finished} of them finished already", file=self.stream, flush=True)

    def done(self, name: str, summary: dict[str, Any]) -> None:
        with self.guard:
            self.count += 1
            accuracy = summary.get("final_accuracy")
            told = "" if accuracy is None else f"  accuracy {accuracy:.4f}"
            passed = time.monotonic() - self.began
            line = f"[{self.count}/{self.total}] {name}{told}  {summary['seconds']:.1f} s ({passed:.0f} s in all)"
            print(line, file=self.stream, flush=True)

    def failed(self, name: str, why: str) -> None:
        with self.guard:
            self.count += 1
            print(f"[{self.count}/{self.total}] {name}  failed: {why}", file=self.stream, flush=True)


class Bars(Silent):
    """A bar over the grid and one for each run that is going on; needs rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.tasks: dict[str, Any] = {}
        self.accuracy: dict[str, str] = {}
        self.shown: dict[str, float] = {}

    def begin(self, runs: int, finished: int) -> None:
        self.all = self.progress.add_task("runs", total=runs, completed=finished, told="")
        self.progress.start()

    def start(self, name: str, steps: int) -> None:
        if name in self.tasks:  # its stack failed, now it is made by itself
            self.progress.remove_task(self.tasks[name])
        self.tasks[name] = self.progress.add_task(name, total=steps, told="")
        self.accuracy[name], self.shown[name] = "", 0.0

    def step(self, name: str, record: Record) -> None:
        if record.accuracy is not None:
            self.accuracy[name] = f"accuracy {record.accuracy:.4f}"
        now = time.monotonic()
        if now - self.shown[name] > 0.1:
            self.shown[name] = now
            self.progress.update(self.tasks[name], completed=record.step, told=self.accuracy[name])

    def done(self, name: str, summary: dict[str, Any]) -> None:
        self._gone(name)

    def failed(self, name: str, why: str) -> None:
        self._gone(name)
        self.progress.console.print(f"{name} failed: {why}", markup=False)

    def end(self) -> None:
        self.progress.stop()

    def _gone(self, name: str) -> None:
        if name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))
        self.progress.advance(self.all)


def fitting(quiet: bool = False) -> Display:
    """Bars on a terminal if rich is there, lines on a terminal without it, nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        return Silent()
    try:
        return Bars()
    except ImportError:
        return Lines()
