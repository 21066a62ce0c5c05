"""Several clients at once on a GPU: streams side by side, and a local step captured once and replayed.

A client's work is many small kernels that take longer to launch than to run. So the forward and backward pass on a
mini-batch is captured in a CUDA graph, one for each of a few sizes, and clients take turns on several streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kasync.work.objective import Inputs, taken

if TYPE_CHECKING:
    from kasync.work.loop import Bench

LANES = 8  # streams; more than a few clients at once leave no room on a GPU even with small kernels
SIZES = 6  # of mini-batches that are captured; clients' last ones may have any
WARM_UP = 2  # plain passes before a capture, in which libraries choose their kernels
RETRIES = 1
NEAR = 1e-3  # a replay may differ from the plain pass by this share of the longest number, no more


class Repeatable:
    """Convolutions by algorithms that repeat to the bit, while anybody is inside; the switch is the process's."""

    def __init__(self) -> None:
        self.inside, self.before, self.changing = 0, False, Lock()

    def __enter__(self) -> None:
        with self.changing:
            if not self.inside:
                self.before, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.changing:
            self.inside -= 1
            if not self.inside:
                torch.backends.cudnn.deterministic = self.before


REPEATABLE = Repeatable()


@dataclass(eq=False)
class Lane:
    """A stream, and the bench of those who work on it."""

    stream: torch.cuda.Stream
    bench: Bench | None = None


@dataclass(eq=False)
class Lanes:
    """Streams that pieces of work take in turn; the stream that they leave waits for all of them at the end."""

    lanes: list[Lane]
    most: int
    turn: int = 0
    begun: torch.cuda.Event | None = None  # behind it lies everything that the pieces read
    now: Lane | None = None

    @classmethod
    def on(cls, device: torch.device, most: int = LANES) -> Lanes:
        return cls([Lane(torch.cuda.Stream(device)) for _ in range(most)], most)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Pieces given out inside run beside each other; afterwards the current stream sees what they did."""
        self.begun = torch.cuda.Event()
        self.begun.record()
        try:
            yield
        finally:
            self.begun = None
            for lane in self.lanes:
                torch.cuda.current_stream().wait_stream(lane.stream)

    @contextmanager
    def next(self) -> Iterator[None]:
        """The next stream, for one piece; outside `together` the current one."""
        if self.begun is None:
            yield
            return
        self.now = self.lanes[self.turn % self.most]
        self.turn += 1
        self.now.stream.wait_event(self.begun)
        try:
            with torch.cuda.stream(self.now.stream):
                yield
        finally:
            self.now = None

    def forget(self) -> None:
        """Give back what the benches hold, once memory ran out."""
        torch.cuda.synchronize()
        for lane in self.lanes:
            lane.bench = None


@dataclass(eq=False)
class Captured:
    """The pass of one size of mini-batch: which rows it reads, and where it leaves loss and gradient."""

    rows: Tensor  # [m]
    loss: Tensor  # []
    graph: torch.cuda.CUDAGraph


@dataclass(eq=False)
class Steps:
    """The captured passes of a bench. A model whose passes cannot be captured is computed plainly, as on a CPU."""

    bench: Bench
    stream: torch.cuda.Stream
    gradient: Tensor  # [D]
    passes: dict[int, Captured] = field(default_factory=dict)
    seen: Counter[int] = field(default_factory=Counter)
    failures: int = 0
    hopeless: bool = False
    pool: Any = None

    @classmethod
    def of(cls, bench: Bench) -> Steps:
        return cls(bench, torch.cuda.Stream(bench.flat.device), torch.empty_like(bench.flat))

    def prepare(self, batches: list[Tensor], inputs: Inputs, labels: Tensor | None) -> None:
        """Capture the passes of sizes that come often; it changes the model's statistics."""
        if self.hopeless:
            return
        self.seen.update(len(rows) for rows in batches)
        for rows in batches:
            size = len(rows)
            if size not in self.passes and self.seen[size] > WARM_UP and len(self.passes) < SIZES:
                try:
                    self._capture(rows, inputs, labels)
                except Exception:  # data decide what happens, memory is short, or another thread touched CUDA
                    self.failures += 1
                    self.hopeless = self.failures > RETRIES
                if self.hopeless:
                    self.passes.clear()
                    return

    def run(self, rows: Tensor) -> Tensor | None:
        """The loss of a mini-batch, its gradient left in `gradient`; None where this size was not captured."""
        one = self.passes.get(len(rows))
        if one is None:
            return None
        one.rows.copy_(rows)
        with self.bench.drawing():
            one.graph.replay()
        return one.loss.clone()

    def _capture(self, rows: Tensor, inputs: Inputs, labels: Tensor | None) -> None:
        bench, held = self.bench, rows.clone()
        places = bench.layout.split(self.gradient)
        loss = torch.zeros((), device=rows.device)
        calls = bench.calls
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                bench.derive((taken(inputs, held), None if labels is None else labels[held]), places)
            self.stream.synchronize()
            if bench.calls not in (calls, calls + WARM_UP):  # what a second call in one pass draws is not known here
                self.hopeless = True
                return
            graph = torch.cuda.CUDAGraph()
            with (
                bench.undrawn(),
                torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"),
            ):
                batch = taken(inputs, held), None if labels is None else labels[held]
                loss.copy_(bench.derive(batch, places))
            self.pool = graph.pool()
            self.stream.synchronize()
        self.passes[len(rows)] = Captured(held, loss, graph)
        count = len(inputs) if isinstance(inputs, Tensor) else len(next(iter(inputs.values())))
        self.hopeless = not all(self._same(each, inputs, labels) for each in (rows, (rows + 1) % count))

    def _same(self, rows: Tensor, inputs: Inputs, labels: Tensor | None) -> bool:
        """Whether a replay gives what the plain pass gives: Python that decides anew in every call does not."""
        bench = self.bench
        plainly = torch.empty_like(self.gradient)
        calls = bench.calls
        loss = bench.derive(
            (taken(inputs, rows), None if labels is None else labels[rows]), bench.layout.split(plainly)
        )
        bench.calls = calls
        again = self.run(rows)
        bench.calls = calls
        assert again is not None
        both = torch.stack([(self.gradient - plainly).abs().max(), NEAR * plainly.abs().max()]).tolist()
        near = torch.isclose(again, loss, rtol=NEAR, atol=1e-6).item()
        return bool(near) and not both[0] > both[1] + 1e-9
