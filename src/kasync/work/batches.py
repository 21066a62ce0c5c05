"""Which samples a client draws on its n-th visit: a function of (seed, client, visit) and of nothing else."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kasync import counter
from kasync.data.federated import FederatedData
from kasync.work.protocol import Work

WIDE = 256  # samples of a batch up to which one is drawn as wide as asked for, whatever the clients hold
FEW = 8  # mini-batches up to which plain Python draws them sooner than numpy


@dataclass(frozen=True)
class Batches:
    """Draws mini-batches without replacement; a client with fewer samples than a batch uses all it has.

    A work of `steps` draws every batch anew; one of `epochs` goes through all of a client's samples in a new order
    each time, the last batch of an epoch being smaller.
    """

    indices: NDArray[np.integer]  # [total]
    offsets: NDArray[np.int64]  # [clients + 1]
    work: Work
    seed: int

    @classmethod
    def of(cls, data: FederatedData, work: Work, seed: int) -> Batches:
        return cls(data.indices, data.offsets, work, seed)

    @property
    def batch_size(self) -> int:
        return self.work.batch_size

    @cached_property
    def width(self) -> int:
        """Samples of a batch that are drawn and weighed: of a wide one no more than the largest client has."""
        return min(self.batch_size, max(WIDE, int(np.diff(self.offsets).max(initial=0))))

    def draw(self, clients: NDArray[np.integer], visits: NDArray[np.integer]) -> tuple[NDArray, NDArray]:
        """Samples [n, steps, m] int64 and their weights [n, steps, m] float32, which sum to one in every batch."""
        assert self.work.steps is not None
        return self._drawn(clients, visits, self.work.steps)

    def visit(self, client: int, visit: int, steps: int | None = None) -> list[NDArray[np.int64]]:
        """The samples of one visit, a mini-batch each; `steps` batches where the timeline says how many."""
        if self.work.steps is None:
            return self._epochs(client, visit, steps)
        mine = self.indices[self.offsets[client] : self.offsets[client + 1]].astype(np.int64)
        steps, used = self.work.steps if steps is None else steps, min(len(mine), self.batch_size)
        if steps > FEW:
            samples, _ = self._drawn(np.array([client]), np.array([visit]), steps)
            return list(samples[0, :, :used])
        draws = np.arange(steps)[:, None] * self.batch_size + np.arange(used)
        left = (len(mine) - np.arange(used)).astype(np.uint64)
        ranks = counter.bits(self.seed, counter.Stream.BATCHES, client, visit, draws) % left
        return [mine[_without_replacement(each)] for each in ranks.tolist()]

    def used(self, clients: NDArray[np.integer]) -> NDArray[np.int64]:
        """[...] samples that a delivery of each client rests on: a batch, or all of its own where it does epochs."""
        sizes = self.offsets[np.asarray(clients) + 1] - self.offsets[clients]
        return sizes if self.work.steps is None else np.minimum(sizes, self.work.batch_size)

    def smallest(self, clients: NDArray[np.integer]) -> NDArray[np.int64]:
        """[n] samples in the smallest mini-batch of each client."""
        sizes = self.offsets[clients + 1] - self.offsets[clients]
        if self.work.steps is not None:
            return np.minimum(sizes, self.batch_size)
        left = sizes % self.batch_size
        return np.where(left == 0, self.batch_size, left)

    def _epochs(self, client: int, visit: int, steps: int | None) -> list[NDArray[np.int64]]:
        mine = self.indices[self.offsets[client] : self.offsets[client + 1]].astype(np.int64)
        per_epoch = -(-len(mine) // self.batch_size)
        assert self.work.epochs is not None
        wanted = self.work.epochs * per_epoch if steps is None else steps
        cut = np.arange(self.batch_size, len(mine), self.batch_size)
        batches: list[NDArray[np.int64]] = []
        for epoch in range(-(-wanted // per_epoch)):
            places = np.arange(len(mine)) + epoch * len(mine)
            keys = counter.bits(self.seed, counter.Stream.EPOCHS, client, visit, places)
            batches += np.split(mine[np.argsort(keys, kind="stable")], cut)
        return batches[:wanted]

    def _drawn(self, clients: NDArray, visits: NDArray, steps: int) -> tuple[NDArray, NDArray]:
        start = self.offsets[clients][:, None]  # [n, 1]
        size = self.offsets[np.asarray(clients) + 1][:, None] - start
        places = np.arange(self.width)  # [m]
        left = np.maximum(size[..., None] - places, 1).astype(np.uint64)  # [n, 1, m]
        draws = (np.arange(steps)[:, None] * self.batch_size + places)[None]  # [1, steps, m]
        who, when = clients[:, None, None], visits[:, None, None]
        ranks = (counter.bits(self.seed, counter.Stream.BATCHES, who, when, draws) % left).astype(np.int64)
        picked = np.empty((self.width, len(ranks), steps), dtype=np.int64)  # [m, n, steps]
        for draw in range(self.width):
            free = np.sort(picked[:draw], axis=0) - np.arange(draw)[:, None, None]  # positions left before each picked
            picked[draw] = ranks[..., draw] + (free <= ranks[..., draw]).sum(0)  # the rank-th of those left
        positions = np.moveaxis(picked, 0, -1)  # [n, steps, m]
        used = np.minimum(size, self.batch_size)[..., None]  # [n, 1, 1]
        real = places < used
        samples = self.indices[np.where(real, start[..., None] + positions, start[..., None])].astype(np.int64)
        return samples, (real / used).astype(np.float32) * np.ones_like(positions, dtype=np.float32)


def _without_replacement(ranks: list[int]) -> list[int]:
    """Positions of which each is the rank-th of those that are left, as `Batches.draw` finds them for many visits."""
    taken: list[int] = []  # in order
    found = []
    for rank in ranks:
        before = bisect_right(range(len(taken)), rank, key=lambda place: taken[place] - place)
        taken.insert(before, rank + before)
        found.append(rank + before)
    return found
