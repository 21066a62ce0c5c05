"""Training on wrong labels: copies of a client's samples, with other labels, are appended to the training set.

A batch is a list of places in the training set, so a piece of work that is hit reads the copies instead; the engine
that computes gradients knows nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kasync.data.columns import class_labels
from kasync.data.federated import FederatedData
from kasync.errors import UserError
from kasync.faults.draws import chances, hit
from kasync.faults.kinds import FlipLabels


@dataclass(frozen=True, eq=False)
class Flips:
    """Which pieces of work are done on flipped labels, and where those lie."""

    fault: FlipLabels
    chances: NDArray[np.float64]  # [clients]
    moved: NDArray[np.int64]  # [samples] the place of each sample's copy; of a sample without one, its own
    seed: int

    @classmethod
    def of(cls, fault: FlipLabels, data: FederatedData, population: int, seed: int) -> tuple[Flips, FederatedData]:
        """The flips, and the data with the copies behind its training set."""
        if data.classes < 2:
            raise UserError(f"flip_labels needs classes, and the data has {data.classes}: leave it out.")
        labels = class_labels(data.train.labels, "flip_labels", "leave it out")
        likely = chances(fault, population, seed)
        theirs = [data.of(client) for client in np.flatnonzero(likely).tolist()]
        copied = np.unique(np.concatenate([*theirs, np.empty(0, dtype=np.int64)]).astype(np.int64))
        moved = np.arange(len(labels))
        moved[copied] = len(moved) + np.arange(len(copied))
        copies = replace(data.train.subset(copied), labels=data.classes - 1 - labels[copied])
        return cls(fault, likely, moved, seed), replace(data, train=data.train.followed_by(copies))

    def applied(
        self, samples: NDArray[np.int64], clients: NDArray[np.integer], visits: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """[n, batches, m] the places that the work of clients [n] reads."""
        hits = hit(self.fault, self.chances, self.seed, clients, visits)  # [n]
        return np.where(hits[:, None, None], self.moved[samples], samples)
