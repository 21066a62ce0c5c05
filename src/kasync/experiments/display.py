"""Progress of runs: bars in a terminal or a notebook, plain lines in a log, or nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from html import escape
from typing import Any

from kasync import notebook
from kasync.simulator import Record


class Display:
    """What runs tell while they are made, perhaps from several threads; this one says nothing."""

    def begin(self, runs: int, finished: int) -> None:
        """So many runs there are, and so many of them were finished before."""

    def start(self, name: str, steps: int) -> None:
        """A run begins, or begins again."""

    def step(self, name: str, record: Record) -> None:
        """A step of a run."""

    def done(self, name: str, summary: dict[str, Any]) -> None:
        """A run is finished."""

    def failed(self, name: str, why: str) -> None:
        """A run broke."""

    def end(self) -> None:
        """Nothing more will come."""


class Lines(Display):
    """One line for each run that ends."""

    def __init__(self) -> None:
        self.began, self.guard = time.monotonic(), threading.Lock()

    def begin(self, runs: int, finished: int) -> None:
        self.total, self.count = runs, finished
        print(f"{runs} runs, {finished} of them finished already", file=sys.stderr, flush=True)

    def done(self, name: str, summary: dict[str, Any]) -> None:
        passed = time.monotonic() - self.began
        self._say(f"{name}{_accuracy(summary, '  ')}  {summary['seconds']:.1f} s ({passed:.0f} s in all)")

    def failed(self, name: str, why: str) -> None:
        self._say(f"{name}  failed: {why}")

    def _say(self, words: str) -> None:
        with self.guard:
            self.count += 1
            print(f"[{self.count}/{self.total}] {words}", file=sys.stderr, flush=True)


class Bars(Display):
    """A bar over all runs and one for each that is going on; needs rich.

    Runs that have a label (name of a run -> words) are in sight from the beginning, and stay when they are finished.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        from rich import progress
        from rich.console import Console

        self.progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=16),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[told]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.labels = dict(labels or {})
        self.tasks = {name: self.progress.add_task(words, start=False, told="") for name, words in self.labels.items()}
        self.shown: dict[str, float] = {}

    def begin(self, runs: int, finished: int) -> None:
        self.all = self.progress.add_task("runs", total=runs, completed=finished, told="")
        self.progress.start()

    def start(self, name: str, steps: int) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, told="")
        self.progress.reset(self.tasks[name], total=steps, told="")  # its stack may have failed before

    def step(self, name: str, record: Record) -> None:
        now, told = time.monotonic(), dict[str, Any]()
        if record.accuracy is not None:
            told = {"told": f"accuracy {record.accuracy:.4f}, staleness {record.staleness.mean():.0f}"}
        if told or now - self.shown.get(name, 0.0) > 0.1:
            self.shown[name] = now
            self.progress.update(self.tasks[name], completed=record.step, **told)

    def done(self, name: str, summary: dict[str, Any]) -> None:
        self._ended(name, _accuracy(summary) or "done")

    def failed(self, name: str, why: str) -> None:
        self._ended(name, "failed")
        self.progress.console.print(f"{name} failed: {why}", markup=False)

    def end(self) -> None:
        self.progress.stop()

    def _ended(self, name: str, words: str) -> None:
        if name in self.labels:
            steps = {task.id: task.total for task in self.progress.tasks}
            self.progress.update(self.tasks[name], completed=steps[self.tasks[name]], told=words)
        elif name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))
        self.progress.advance(self.all)


class Cell(Display):
    """One line and one bar below a cell of a notebook, renewed in place."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.now: dict[str, tuple[int, str]] = {}
        self.handle: Any = None

    def begin(self, runs: int, finished: int) -> None:
        self.total, self.count, self.lost, self.began = runs, finished, 0, time.monotonic()
        self._show()

    def start(self, name: str, steps: int) -> None:
        self.steps[name], self.now[name] = steps, (0, "")

    def step(self, name: str, record: Record) -> None:
        accuracy = self.now[name][1] if record.accuracy is None else f", accuracy {record.accuracy:.4f}"
        self.now[name] = (record.step, accuracy)
        if time.monotonic() - self.shown > 0.2:
            self._show()

    def done(self, name: str, summary: dict[str, Any]) -> None:
        self.count += 1
        self.now.pop(name, None)
        self._show()

    def failed(self, name: str, why: str) -> None:
        self.lost += 1
        self.done(name, {})

    def end(self) -> None:
        self.now = {}
        self._show()

    def _show(self) -> None:
        from IPython.display import HTML, display

        self.shown = time.monotonic()
        lost = f", {self.lost} failed" if self.lost else ""
        words = [f"{self.count} of {self.total} runs{lost}, {self.shown - self.began:.0f} s"]
        words += [f"{name}: step {step}/{self.steps[name]}{told}" for name, (step, told) in self.now.items()]
        share = sum(step / max(1, self.steps[name]) for name, (step, _) in self.now.items())
        bar = f'<progress value="{self.count + share:.3f}" max="{max(1, self.total)}" style="width: 20em"></progress>'
        page = HTML(f"{bar} {escape('; '.join(words))}")  # type: ignore[no-untyped-call]
        if self.handle is None:
            self.handle = display(page, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.handle.update(page)


def _accuracy(summary: Mapping[str, Any], before: str = "") -> str:
    accuracy = summary.get("final_accuracy")
    return "" if accuracy is None else f"{before}accuracy {accuracy:.4f}"


def fitting(quiet: bool = False, labels: Mapping[str, str] | None = None) -> Display:
    """Bars in a notebook or on a terminal, lines on a terminal without rich, nothing where nobody looks."""
    if notebook.running() and not quiet:
        return Cell()
    if quiet or not sys.stderr.isatty():
        return Display()
    try:
        return Bars(labels)
    except ImportError:
        return Lines()
