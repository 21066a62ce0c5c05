"""How far from IID is a partition? Three numbers over the clients' label counts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kasync.data.partition.draws import Purpose, bits

_ALL_PAIRS_UP_TO = 1000  # clients; beyond that pairs are sampled
_SAMPLED_PAIRS = 200_000


@dataclass(frozen=True)
class Measures:
    """Means over the clients that hold samples; see docs/partitions.md for how to read them."""

    entropy: float  # of a client's labels, in nats: 0 for one label, log(classes) for all alike
    jaccard: float  # distance 1 - |A and B| / |A or B| of two clients' label sets: 0 the same labels, 1 none in common
    movers_distance: float  # half the L1 distance from the whole set's label shares: 0 alike, 1 nothing in common


def measure(counts: NDArray[np.integer], overall: NDArray[np.integer]) -> Measures:
    """The measures of counts [clients, classes] against the label counts of the whole training set [classes]."""
    held = counts[counts.sum(1) > 0]  # [n, classes]
    shares = held / held.sum(1, keepdims=True)  # [n, classes]
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return Measures(
        entropy=float(-(shares * logs).sum(1).mean()) + 0.0,
        jaccard=_mean_jaccard(held > 0),
        # moving a sample from one label to any other costs 1, so the earth mover's distance is the total variation
        movers_distance=float(np.abs(shares - overall / overall.sum()).sum(1).mean() / 2),
    )


def _mean_jaccard(has: NDArray[np.bool_]) -> float:
    """The mean over pairs of different clients of has [n, classes], or over a fixed sample of them when many."""
    clients = len(has)
    if clients < 2:
        return 0.0
    if clients <= _ALL_PAIRS_UP_TO:
        first, second = np.triu_indices(clients, 1)
    else:
        lots = bits(0, Purpose.PAIRS, np.arange(_SAMPLED_PAIRS), [[0], [1]])  # [2, pairs]
        first = (lots[0] % np.uint64(clients)).astype(np.int64)
        gap = (lots[1] % np.uint64(clients - 1)).astype(np.int64)
        second = (first + 1 + gap) % clients  # never the client itself
    both = (has[first] & has[second]).sum(1)  # [pairs]
    either = (has[first] | has[second]).sum(1)
    return float(1 - (both / either).mean())
