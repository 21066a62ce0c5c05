"""How far a grid is: bars on a terminal or in a notebook, plain lines in a log, or nothing."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Protocol, TextIO

from kasync import notebook
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


class Cell(Silent):
    """One line and one bar below a cell of a notebook, renewed in place."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.now: dict[str, tuple[int, str]] = {}
        self.total = self.count = self.lost = 0
        self.began = self.shown = time.monotonic()
        self.handle: Any = None

    def begin(self, runs: int, finished: int) -> None:
        self.total, self.count, self.lost, self.began = runs, finished, 0, time.monotonic()
        self._show(at_once=True)

    def start(self, name: str, steps: int) -> None:
        self.steps[name], self.now[name] = steps, (0, "")

    def step(self, name: str, record: Record) -> None:
        accuracy = self.now[name][1] if record.accuracy is None else f", accuracy {record.accuracy:.4f}"
        self.now[name] = (record.step, accuracy)
        self._show()

    def done(self, name: str, summary: dict[str, Any]) -> None:
        self.count += 1
        self.now.pop(name, None)
        self._show(at_once=True)

    def failed(self, name: str, why: str) -> None:
        self.lost += 1
        self.done(name, {})

    def end(self) -> None:
        self.now = {}
        self._show(at_once=True)

    def words(self) -> str:
        """What the line says."""
        going = [f"{name}: step {step}/{self.steps[name]}{told}" for name, (step, told) in self.now.items()]
        lost = f", {self.lost} failed" if self.lost else ""
        passed = time.monotonic() - self.began
        return "; ".join([f"{self.count} of {self.total} runs{lost}, {passed:.0f} s", *going])

    def _show(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self.shown < 0.2:
            return
        self.shown = now
        from html import escape

        from IPython.display import HTML, display

        share = sum(step / max(1, self.steps[name]) for name, (step, _) in self.now.items())
        bar = f'<progress value="{self.count + share:.3f}" max="{max(1, self.total)}" style="width: 20em"></progress>'
        page = HTML(f"{bar} {escape(self.words())}")
        if self.handle is None:
            self.handle = display(page, display_id=True)
        else:
            self.handle.update(page)


def fitting(quiet: bool = False) -> Display:
    """Bars in a notebook or on a terminal, lines on a terminal without rich, nothing where nobody looks."""
    if quiet:
        return Silent()
    if notebook.running():
        return Cell()
    if not sys.stderr.isatty():
        return Silent()
    try:
        return Bars()
    except ImportError:
        return Lines()
