"""The faults that change what clients bring, and where each of them enters a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kasync.data.federated import FederatedData
from kasync.faults.deliveries import Damage, Damages
from kasync.faults.kinds import DeliveryFault, Fault, FlipLabels
from kasync.faults.labels import Flips

Ints = NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class WorkFaults:
    """Flipped labels enter with the batch, everything else between the work and the rule."""

    damages: Damages | None
    flips: Flips | None

    @classmethod
    def of(
        cls, faults: tuple[Fault, ...], data: FederatedData, population: int, seed: int
    ) -> tuple[WorkFaults | None, FederatedData]:
        """What is to be done to the work, None where no fault concerns it, and the data that work then reads."""
        sent = tuple(fault for fault in faults if isinstance(fault, DeliveryFault))
        damages = Damages.of(sent, population, seed) if sent else None
        flips = None
        for fault in faults:
            if isinstance(fault, FlipLabels):
                flips, data = Flips.of(fault, data, population, seed)
        return (cls(damages, flips) if damages or flips else None), data

    def samples(self, samples: NDArray[np.int64], clients: Ints, visits: Ints) -> NDArray[np.int64]:
        """[n, batches, m] the samples that clients [n] really work on."""
        return samples if self.flips is None else self.flips.applied(samples, clients, visits)

    def damage(self, clients: Ints, visits: Ints) -> Damage | None:
        """What happens to the deliveries [steps, k]."""
        return None if self.damages is None else self.damages.drawn(clients, visits)
