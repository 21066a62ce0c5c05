"""Algorithm 4 of the paper, its non-IID clients: a few labels per client, a random size, random proportions."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kasync.data.partition.draws import Purpose, bits, rounds_for, shuffled, uniforms
from kasync.data.partition.lists import Split, apportion, offsets_of
from kasync.errors import UserError

_SAMPLES_AT_ONCE = 1 << 20
_CLIENTS_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class ByLabels(Split):
    """Algorithm 4: `per_client` labels (L_num), a size in [D_min, D_max], shares size * weight / sum of weights.

    The labels are distinct, drawn from those that occur; both ends of the size are possible; the weights lie in (0, 1).
    Samples may be shared between clients, never within one. Shares are rounded so that they add up to the size, and
    each chosen label gets at least one sample whenever the size allows it: exactly `per_client` labels per client.
    Client c's samples depend on the seed and on c alone.
    """

    per_client: int
    size: tuple[int, int] = (10, 49)
    kind: ClassVar[str] = "labels"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", tuple(self.size))  # a list, from a file of settings
        if len(self.size) != 2 or not 0 <= self.size[0] <= self.size[1]:
            raise UserError(f"size is {self.size}, but must be (smallest, largest): (10, 49), say.")
        if self.per_client < 1:
            raise UserError(f"per_client is {self.per_client}, but a client needs at least 1 label.")

    @property
    def remedy(self) -> str:
        return "raise the smallest size, "

    def lists(
        self, labels: NDArray, clients: int | None, seed: int, groups: NDArray | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        count = self.needs_clients(clients)
        present, available = np.unique(labels, return_counts=True)  # [labels that occur], both
        if self.per_client > len(present):
            raise UserError(f"per_client is {self.per_client}, but only {len(present)} labels occur: lower it.")
        by_label = np.argsort(labels, kind="stable").astype(np.int32)  # [N] sample indices, label after label
        begins = offsets_of(available)
        rounds = rounds_for(int(available.min()))

        smallest, largest = self.size
        spread = uniforms(seed, Purpose.SIZES, np.arange(count)) * (largest - smallest + 1)
        offsets = offsets_of(smallest + spread.astype(np.int64))
        indices = np.empty(offsets[-1], np.int32)
        for begin, end in _stretches(offsets):
            ids = np.arange(begin, end)[:, None]  # [n, 1]
            chosen = self._chosen(seed, ids, len(present))  # [n, per_client] places in `present`
            weights = uniforms(seed, Purpose.WEIGHTS, ids, np.arange(self.per_client))  # [n, per_client]
            shares = apportion(np.diff(offsets[begin : end + 1]), weights, least=1)  # [n, per_client]
            _check_supply(shares, available[chosen], present[chosen], begin)

            keys = bits(seed, Purpose.SAMPLES, ids, chosen).ravel()  # [n * per_client]
            pair = np.repeat(np.arange(shares.size), shares.ravel())  # [samples] which (client, label) each belongs to
            place = np.arange(len(pair)) - offsets_of(shares.ravel())[pair]  # [samples] 0.. within its pair
            label = chosen.ravel()[pair]
            spot = shuffled(place, available[label], keys[pair], rounds)
            indices[offsets[begin] : offsets[end]] = by_label[begins[label] + spot]
        return indices, offsets

    def _chosen(self, seed: int, ids: NDArray[np.integer], present: int) -> NDArray[np.int64]:
        """`per_client` distinct places of `present` for each client, [n, per_client]."""
        lots = uniforms(seed, Purpose.LABELS, ids, np.arange(present))  # [n, present]
        return np.argsort(lots, axis=1, kind="stable")[:, : self.per_client]


def _stretches(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Runs of clients, short in clients and in samples, so that memory stays small."""
    clients = len(offsets) - 1
    by_samples = np.searchsorted(offsets, np.arange(0, offsets[-1] + 1, _SAMPLES_AT_ONCE))
    cuts = np.unique(np.concatenate([by_samples, np.arange(0, clients, _CLIENTS_AT_ONCE), [0, clients]]))
    cuts = cuts[cuts <= clients].tolist()
    return list(pairwise(cuts))


def _check_supply(shares: NDArray, available: NDArray, labels: NDArray, first_client: int) -> None:
    """Refuse to draw more of a label than there is; all [n, per_client]."""
    if (shares <= available).all():
        return
    row, column = np.argwhere(shares > available)[0]
    raise UserError(
        f"size asks client {first_client + row} to draw {shares[row, column]} samples of label {labels[row, column]}, "
        f"but there are {available[row, column]}: lower the largest size or raise per_client."
    )
