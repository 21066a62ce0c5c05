"""Which samples does a client draw on its n-th visit? A function of (seed, client, visit) and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kasync import counter
from kasync.data.federated import FederatedData
from kasync.work import Work


@dataclass(frozen=True)
class Batches:
    """Draws mini-batches without replacement; a client with fewer samples than a batch uses all it has."""

    indices: NDArray[np.integer]  # [total]
    offsets: NDArray[np.int64]  # [clients + 1]
    batch_size: int
    batches: int  # per piece of work
    seed: int

    @classmethod
    def of(cls, data: FederatedData, work: Work, seed: int) -> Batches:
        return cls(data.indices, data.offsets, work.batch_size, work.batches, seed)

    def draw(self, clients: NDArray[np.integer], visits: NDArray[np.integer]) -> tuple[NDArray, NDArray]:
        """Samples [n, batches, m] int64 and their weights [n, batches, m] float32, which sum to one in every batch."""
        start = self.offsets[clients][:, None]  # [n, 1]
        size = self.offsets[np.asarray(clients) + 1][:, None] - start
        left = np.maximum(size[..., None] - np.arange(self.batch_size), 1).astype(np.uint64)  # [n, 1, m]
        draws = np.arange(self.batches * self.batch_size).reshape(1, self.batches, self.batch_size)
        who, when = clients[:, None, None], visits[:, None, None]
        ranks = (counter.bits(self.seed, counter.Stream.BATCHES, who, when, draws) % left).astype(np.int64)
        picked = np.empty((self.batch_size, len(ranks), self.batches), dtype=np.int64)  # [m, n, batches]
        for draw in range(self.batch_size):
            free = np.sort(picked[:draw], axis=0) - np.arange(draw)[:, None, None]  # positions left before each picked
            picked[draw] = ranks[..., draw] + (free <= ranks[..., draw]).sum(0)  # the rank-th of those left
        positions = np.moveaxis(picked, 0, -1)  # [n, batches, m]
        used = np.minimum(size, self.batch_size)[..., None]  # [n, 1, 1]
        real = np.arange(self.batch_size) < used
        samples = self.indices[np.where(real, start[..., None] + positions, start[..., None])].astype(np.int64)
        return samples, (real / used).astype(np.float32) * np.ones_like(positions, dtype=np.float32)
