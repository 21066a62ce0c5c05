"""What a run records of each step, how it is kept, and the line that shows how far the run is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from kasync import notebook
from kasync.timelines import Timeline

FIELDS = ("loss", "lr", "stage", "dropped", "skipped", "evaluated", "accuracy", "test_loss")  # [steps]
WIDE = ("weights", "similarities")  # [steps, k] each
METRIC = "metric."  # before the name of a metric of the user's


@dataclass(frozen=True, eq=False)
class Record:
    """One server step. `accuracy` and `test_loss` are None where the model was not evaluated after it.

    The accuracy of a regression is None, and the test loss of a model that has diverged is not a number.
    """

    step: int  # updates made so far: the first record has step 1
    time: float  # virtual seconds
    loss: float  # mean training loss of the deliveries used
    lr: float
    stage: int
    dropped: int  # deliveries that were not usable
    skipped: bool  # nothing usable arrived
    clients: NDArray[np.int32]  # [k]
    staleness: NDArray[np.int32]  # [k]
    weights: NDArray[np.float32]  # [k]
    similarities: NDArray[np.float32] | None  # [k] where the rule has them
    accuracy: float | None  # on the test set
    test_loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)  # the user's, where the model was evaluated


@dataclass(frozen=True, eq=False)
class History:
    """Everything recorded so far, as arrays; part of a checkpoint, so that a resumed run tells the same story."""

    columns: dict[str, NDArray]  # name -> [steps] or [steps, k]

    @classmethod
    def empty(cls, steps: int, k: int, metrics: Sequence[str] = ()) -> History:
        names = (*FIELDS, *(METRIC + name for name in metrics))
        narrow = {name: np.full(steps, np.nan) for name in names}
        return cls(narrow | {name: np.full((steps, k), np.nan, dtype=np.float32) for name in WIDE})

    def put(self, start: int, values: dict[str, NDArray]) -> None:
        """Write the rows of some steps from `start` on."""
        for name, rows in values.items():
            self.columns[name][start : start + len(rows)] = rows

    def records(self, start: int, stop: int, timeline: Timeline, staleness: NDArray) -> Iterator[Record]:
        """The records of the steps start..stop-1."""
        get = self.columns
        own = [name for name in get if name.startswith(METRIC)]
        for s in range(start, stop):
            accuracy, test_loss, evaluated = get["accuracy"][s], get["test_loss"][s], get["evaluated"][s] == 1
            similar = get["similarities"][s]
            yield Record(
                step=s + 1,
                time=float(timeline.times[s]),
                loss=float(get["loss"][s]),
                lr=float(get["lr"][s]),
                stage=int(get["stage"][s]),
                dropped=int(get["dropped"][s]),
                skipped=bool(get["skipped"][s]),
                clients=timeline.clients[s],
                staleness=staleness[s],
                weights=get["weights"][s],
                similarities=None if np.isnan(similar).all() else similar,
                accuracy=None if np.isnan(accuracy) else float(accuracy),
                test_loss=float(test_loss) if evaluated else None,
                metrics={n.removeprefix(METRIC): float(get[n][s]) for n in own} if evaluated else {},
            )


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
