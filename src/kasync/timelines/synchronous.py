"""Synchronous training by the clock: every step begins with a fresh broadcast, so nothing is ever stale."""

import numpy as np
from numpy.typing import NDArray

from kasync.timelines.asynchronous import Recorded
from kasync.timelines.draws import subsets
from kasync.timelines.pieces import Outcome, Pieces

Reals = NDArray[np.float64]


class _Clients:
    """Where the clients are between two broadcasts: the number of their next piece, and until when they are away."""

    def __init__(self, clients: int, pieces: Pieces) -> None:
        self.pieces = pieces
        self.piece = np.zeros(clients, dtype=np.int64)  # [clients]
        self.back = np.zeros(clients)  # [clients]: away until then

    def begin(self, who: NDArray[np.int64], now: float) -> Outcome:
        """Send the model to some clients; those that are away take it when they are back."""
        outcome = self.pieces.deliver(who, self.piece[who], np.maximum(self.back[who], now))
        self.piece[who] = outcome.piece
        return outcome

    def settle(self, outcome: Outcome, moment: float) -> None:
        """Remember the absences that had begun when the step ended; later ones never came about."""
        for who, left, back in outcome.left:
            begun = left <= moment
            np.maximum.at(self.back, who[begun], back[begun])


def run_sync(clients: int, k: int, steps: int, pieces: Pieces) -> Recorded:
    """K-sync: everybody gets the model, the k fastest are used, the others' work is thrown away."""
    out = Recorded(np.empty((steps, k), np.int32), _fresh(steps, k), np.empty(steps))
    state, everyone, now = _Clients(clients, pieces), np.arange(clients), 0.0
    for step in range(steps):
        outcome = state.begin(everyone, now)
        now = float(np.partition(outcome.finish, k - 1)[k - 1])
        if not np.isfinite(now):
            return out.head(step)
        places = np.flatnonzero(outcome.finish <= now)
        places = places[np.argsort(outcome.finish[places], kind="stable")][:k]
        out.clients[step], out.times[step] = places, now
        state.settle(outcome, now)
    return out


def run_full(clients: int, k: int, steps: int, pieces: Pieces) -> Recorded:
    """FedAvg: k clients are drawn, whether they are there or not, and the server waits for all of them.

    Who turns out to have left for good is replaced by another draw, which gets the model at the same moment.
    """
    out = Recorded(np.empty((steps, k), np.int32), _fresh(steps, k), np.empty(steps))
    state, present, now = _Clients(clients, pieces), np.arange(clients), 0.0  # present: not known to be gone
    for step in range(steps):
        who, finish, draw = present[:0], np.empty(0), 0
        while len(who) < k:
            rest = np.setdiff1d(present, who, assume_unique=True) if len(who) else present
            missing = k - len(who)
            if len(rest) < missing:
                return out.head(step)
            drawn = rest[subsets(len(rest), missing, np.asarray([step + (draw << 32)]), pieces.seed)[0]]
            outcome = state.begin(drawn, now)
            state.settle(outcome, np.inf)
            arrives = np.isfinite(outcome.finish)
            who, finish = np.concatenate([who, drawn[arrives]]), np.concatenate([finish, outcome.finish[arrives]])
            draw += 1
            if not arrives.all():
                present = np.setdiff1d(present, drawn[~arrives], assume_unique=True)
        now = float(finish.max())
        out.clients[step], out.times[step] = who[np.argsort(finish, kind="stable")], now
    return out


def _fresh(steps: int, k: int) -> NDArray[np.int32]:
    """[steps, k]: the version of every delivery is the step's own."""
    return np.repeat(np.arange(steps, dtype=np.int32), k).reshape(steps, k)
