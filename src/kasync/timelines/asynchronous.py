"""K-async by the clock: the server updates with the first k uploads, and only their clients get the new model."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kasync.timelines.pieces import Outcome, Pieces

Reals = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """What happened, up to the last step that k clients reached."""

    clients: NDArray[np.int32]  # [steps, k], each row in the order of arrival
    versions: NDArray[np.int32]  # [steps, k]
    times: Reals  # [steps]

    def head(self, steps: int) -> "Recorded":
        """The first steps only."""
        return Recorded(self.clients[:steps], self.versions[:steps], self.times[:steps])


class Queue:
    """The uploads under way, by (finish, order of handing out): take the first k, put new ones in.

    Only the `near` ones, about sqrt(2 clients k) of them, are looked at for each step; the others wait in an array
    until the near ones run out. So a step costs far less than one look at every client.
    """

    def __init__(self, finish: Reals, k: int) -> None:
        self.finish = finish  # [clients]; inf: not under way
        self.order = np.arange(len(finish))  # [clients]: breaks ties of equal finish
        self.handed_out = len(finish)
        self.k = k
        self.near = np.empty(0, dtype=np.int64)  # clients
        self.horizon = -math.inf  # whoever finishes before it is near
        self.size = max(64, 4 * k, math.isqrt(2 * len(finish) * k))

    def take(self) -> tuple[Places, float] | None:
        """The k clients [k] that finish first and the moment the last of them does; None when k never will."""
        if len(self.near) < self.k:
            self._look_further()
            if len(self.near) < self.k:
                return None
        finish = self.finish[self.near]
        moment = float(np.partition(finish, self.k - 1)[self.k - 1])
        places = self._first(self.near, finish, self.k, moment)
        places = places[np.lexsort((self.order[self.near[places]], finish[places]))]
        taken = self.near[places]
        self.near = np.delete(self.near, places)
        self.finish[taken] = math.inf
        return taken, moment

    def put(self, clients: Places, finish: Reals) -> None:
        """Clients [n] that begin again, in this order."""
        self.finish[clients] = finish
        self.order[clients] = np.arange(self.handed_out, self.handed_out + len(clients))
        self.handed_out += len(clients)
        self.near = np.concatenate([self.near, clients[finish < self.horizon]])

    def _look_further(self) -> None:
        """Make the first `size` of all near; among equal finishes, those handed out first."""
        if self.size >= len(self.finish):
            self.horizon = math.inf
            self.near = np.flatnonzero(np.isfinite(self.finish))
            return
        self.horizon = float(np.partition(self.finish, self.size - 1)[self.size - 1])
        if math.isinf(self.horizon):
            self.near = np.flatnonzero(np.isfinite(self.finish))
        else:
            self.near = self._first(np.arange(len(self.finish)), self.finish, self.size, self.horizon)

    def _first(self, clients: Places, finish: Reals, count: int, moment: float) -> Places:
        """[count]: places of the first by (finish, order), themselves in any order; the last finishes at `moment`."""
        before = np.flatnonzero(finish < moment)
        ties = np.flatnonzero(finish == moment)
        room = count - len(before)
        if len(ties) > room:
            ties = ties[np.argpartition(self.order[clients[ties]], room - 1)[:room]]
        return np.concatenate([before, ties])


def run_async(clients: int, k: int, steps: int, pieces: Pieces) -> Recorded:
    """Play the clock for the given steps, or until fewer than k clients will ever deliver again."""
    everyone = np.arange(clients)
    outcome = pieces.deliver(everyone, np.zeros(clients, dtype=np.int64), np.zeros(clients))
    piece, pulled = outcome.piece, outcome.pulled  # [clients]
    version = np.where(pulled == 0, 0, -1)  # [clients]; -1: to be found from the moment of the pull
    queue = Queue(outcome.finish, k)
    out = Recorded(np.empty((steps, k), np.int32), np.empty((steps, k), np.int32), np.empty(steps))
    for step in range(steps):
        first = queue.take()
        if first is None:
            return out.head(step)
        who, moment = first
        held = version[who]
        if not pieces.reliable:
            # A version is current from its update on; an update at the very moment of the pull comes before it.
            found = np.searchsorted(out.times[:step], pulled[who], side="right")
            held = np.where(held < 0, found, held)
        out.clients[step], out.versions[step], out.times[step] = who, held, moment
        outcome = pieces.deliver(who, piece[who], np.full(k, moment))
        piece[who], pulled[who] = outcome.piece, outcome.pulled
        version[who] = _version_after(step, moment, outcome)
        queue.put(who, outcome.finish)
    return out


def _version_after(step: int, moment: float, outcome: Outcome) -> NDArray[np.int64]:
    """[k]: the new model for those that went on with it at once, -1 for those that pulled later."""
    return np.where(outcome.pulled == moment, step + 1, -1)
