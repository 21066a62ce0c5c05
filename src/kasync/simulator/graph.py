"""One whole step as a single launch on a GPU: captured once in a CUDA graph and replayed.

Gather the batches, compute the gradients, let them wait, take the delivered ones, apply the rule, log: some two hundred
small kernels. The graph reads the inputs of a chunk of steps from fixed buffers, with a step counter on the device.

What begins in a step is hardly ever delivered in it, and then its gradients and the rule do not need each other: a
second graph makes them side by side. The host, which knows the timeline, chooses between the two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync.arrivals import Arrivals
from kasync.faults.deliveries import damaged
from kasync.simulator.plan import CHUNK, Chunk
from kasync.simulator.run import Run, columns, server_step

WARM_UP = 3  # steps made one kernel at a time, so that libraries are loaded and all memory exists
CAPTURING = threading.Lock()  # several runs may share a GPU from several threads, but capture one after the other


@dataclass(eq=False)
class Buffers:
    """Fixed places on the device for the inputs and the log of a chunk of steps."""

    number: Tensor  # [1] int64, the step within the chunk
    inputs: dict[str, Tensor]  # name -> [steps, ...]
    log: Tensor  # [steps, 5 + 2 K]

    def now(self, name: str) -> Tensor:
        """The input of the current step."""
        return self.inputs[name].index_select(0, self.number)[0]

    def load(self, arrays: dict[str, NDArray]) -> None:
        for name, array in arrays.items():
            self.inputs[name][: len(array)].copy_(torch.from_numpy(np.ascontiguousarray(array)))


@dataclass(eq=False)
class CapturedRun(Run):
    """A run on CUDA: after a few plain steps, one graph launch a step."""

    warm: int = 0
    buffers: Buffers | None = None
    graphs: dict[bool, Any] = field(default_factory=dict)  # whether gradients and rule go side by side -> graph
    stream: Any = field(default_factory=lambda: own_stream())
    beside: Any = field(default_factory=lambda: side_stream())  # where clients compute while the rule is applied
    prepared: Chunk | None = None  # worked out by the host before the device reaches it

    @classmethod
    def begin(cls, *given: Any, **named: Any) -> Run:
        run = super().begin(*given, **named)
        torch.backends.cudnn.allow_tf32 = False  # convolutions in full float32, as on a CPU
        torch.cuda.current_stream().synchronize()
        return run

    def context(self) -> Any:
        return torch.cuda.stream(self.stream)

    def steps(self, start: int, stop: int) -> Iterator[dict[str, NDArray]]:
        """The first steps one by one, the others together: the device is not asked before a chunk is over."""
        plain = min(stop, start + max(0, WARM_UP - self.warm))
        if plain > start:
            with CAPTURING, torch.no_grad():
                pieces = list(super().steps(start, plain))
            self.warm += plain - start
            yield from pieces
        if stop > plain:
            with self.context(), torch.no_grad():
                rows = self._replayed(plain, stop)
            yield rows

    def _replayed(self, start: int, stop: int) -> dict[str, NDArray]:
        chunk = self.prepared
        if chunk is None or chunk.start != start or chunk.stop != stop:
            chunk = self._prepare(start, stop)
        if self.buffers is None:
            with CAPTURING:
                self._capture_surely(chunk)
        assert self.buffers is not None
        self.buffers.load(chunk.arrays)
        self.buffers.number.zero_()
        slots, begun = chunk.arrays["slots"], chunk.arrays["work_slots"]
        apart = ~(slots[:, :, None] == begun[:, None, :]).any((1, 2))  # [steps]
        for late, free in zip(chunk.late, apart.tolist(), strict=True):
            if len(late):
                self.work(late)
            self.graphs[free and self.inputs.early].replay()
        following = min(2 * stop - start, self.plan.timeline.steps)  # most likely as many steps again
        self.prepared = self._prepare(stop, following) if following > stop else None  # while the device is busy
        return columns(self.buffers.log[: stop - start])

    def _prepare(self, start: int, stop: int) -> Chunk:
        idle = len(self.store) - 1
        chunk = Chunk.of(self.inputs, start, stop, idle)
        versions = self.plan.version_slots[start:stop, None]
        chunk.arrays["version_slots"] = np.where(versions >= 0, versions, idle)
        return chunk

    def _capture_surely(self, chunk: Chunk) -> None:
        """Capture fails if another thread waits for the whole device meanwhile; then it is begun anew."""
        for last in (False, False, True):
            try:
                with self.context():
                    return self._capture(chunk)
            except RuntimeError:
                if last:
                    raise
                self.stream.synchronize()
                self.stream = torch.cuda.Stream()

    def _capture(self, chunk: Chunk) -> None:
        """Record one step on fixed buffers; nothing is executed."""
        k = self.plan.timeline.k
        inputs = {
            name: torch.from_numpy(array[:1]).to(self.device).repeat(CHUNK, *[1] * (array.ndim - 1))
            for name, array in chunk.arrays.items()
        }
        log = torch.zeros(CHUNK, 5 + 2 * k, dtype=torch.float64, device=self.device)
        self.buffers = Buffers(torch.zeros(1, dtype=torch.int64, device=self.device), inputs, log)
        memory = {name: value.clone() for name, value in self.server.memory.items()}
        self.server = replace(
            self.server, params=self.server.params.clone(), step=self.server.step.clone(), memory=memory
        )
        buffers = self.buffers
        kinds = (False, True) if self.inputs.early else (False,)
        self.graphs = {apart: recorded(self.stream, partial(self._body, buffers, apart)) for apart in kinds}

    def _body(self, buffers: Buffers, apart: bool) -> None:
        before, slots, starts = self.server, buffers.now("slots"), None
        if self.inputs.early:
            if apart:
                self.beside.wait_stream(self.stream)
            with torch.cuda.stream(self.beside if apart else self.stream):
                self._begin(buffers)
            rows, losses = self.store.index_select(0, slots), self.losses.index_select(0, slots)
        else:
            samples, weights = buffers.now("samples"), buffers.now("sample_weights")
            self.store.index_copy_(0, buffers.now("version_slots"), before.params[None])
            starts = self.store.index_select(0, slots)
            rows = torch.empty_like(starts)
            losses = self.clients.compute(starts, samples, weights, rows)
        if "damage_times" in buffers.inputs:
            rows = damaged(rows, {name: buffers.now(name) for name in buffers.inputs if name.startswith("damage_")})
        arrivals = Arrivals(
            rows,
            buffers.now("staleness"),
            losses,
            buffers.now("batch_sizes"),
            buffers.now("clients"),
            starts if self.rule.needs_starts else None,
        )
        after, _, log = server_step(self.rule, before, arrivals)
        if apart:
            self.stream.wait_stream(self.beside)  # gradients are taken on the parameters as they were
        for name, value in after.state_dict().items():
            place = before.state_dict()[name]
            if place.data_ptr() != value.data_ptr():
                place.copy_(value)
        buffers.log.index_copy_(0, buffers.number, log[None])
        buffers.number.add_(1)

    def _begin(self, buffers: Buffers) -> None:
        """Compute the gradients of those that start in this step and let them wait."""
        places = buffers.now("work_slots")
        samples, weights = buffers.now("samples"), buffers.now("sample_weights")
        losses = self.clients.compute(self.server.params, samples, weights, self.store, places)
        self.losses.index_copy_(0, places, losses)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        super().restore(tensors)
        self.graphs, self.buffers = {}, None


def recorded(stream: Any, body: Callable[[], None]) -> Any:
    """The graph of what the body does; nothing is executed."""
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        body()
    return graph


def own_stream() -> Any:
    """The stream of this thread. PyTorch hands out 32 in turn, so that one for each run would soon be shared."""
    current = torch.cuda.current_stream()
    return torch.cuda.Stream() if current == torch.cuda.default_stream() else current


def side_stream() -> Any:
    """A second stream for a run's own thread, from the other 32 that PyTorch hands out."""
    return torch.cuda.Stream(priority=-1)
