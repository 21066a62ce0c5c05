"""What do several runs read in the next steps? Runs that differ in nothing that arrives read the same."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.simulator.graph import arrays_of
from kasync.simulator.inputs import Inputs, Workload
from kasync.simulator.run import Run


@dataclass(frozen=True, eq=False)
class Piece:
    """The inputs of a chunk of steps, for G different kinds of inputs."""

    arrays: dict[str, NDArray]  # name -> [steps, G, ...]
    late: list[list[Workload]]  # [G][steps] work beyond k pieces, mostly on the first model


class Pieces:
    """Prepares the next chunk while the device is busy with this one."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.k = runs[0].plan.timeline.k
        self.inputs: list[Inputs] = []  # [G]
        self.kinds: list[int] = []  # [R] -> G
        seen: dict[Any, int] = {}
        for run in runs:
            batches = run.inputs.batches
            key = (run.plan.timeline.fingerprint(), run.plan.semantics, id(batches.indices), batches.seed)
            if key not in seen:
                seen[key] = len(self.inputs)
                self.inputs.append(run.inputs)
            self.kinds.append(seen[key])
        self._pool = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[Piece]] | None = None

    def take(self, start: int, stop: int) -> Piece:
        """The inputs of the steps start..stop-1."""
        if self._next is not None and self._next[0] == start:
            return self._next[1].result()
        return self._prepare(start, stop)

    def prepare(self, start: int, stop: int) -> None:
        """Begin with those that will be taken next."""
        self._next = (start, self._pool.submit(self._prepare, start, stop))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _prepare(self, start: int, stop: int) -> Piece:
        everyone, late = [], []
        for inputs in self.inputs:
            works = inputs.work(start, stop)
            extra = [max(0, len(work) - self.k) for work in works]
            late.append([work[:more] for work, more in zip(works, extra, strict=True)])
            fitted = [work[more:].padded(self.k, -1) for work, more in zip(works, extra, strict=True)]
            everyone.append(arrays_of(inputs.deliveries(start, stop), fitted))
        return Piece({name: np.stack([each[name] for each in everyone], axis=1) for name in everyone[0]}, late)
