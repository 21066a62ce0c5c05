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

    Only the `near` ones, about sqrt(8 clients k) of them, are kept sorted; the others wait in an array until the near
    ones run out. So a step costs far less than one look at every client.
    """

    def __init__(self, finish: Reals, k: int) -> None:
        self.finish = finish  # [clients]; inf: not under way
        self.order = np.arange(len(finish))  # [clients]: breaks ties of equal finish
        self.handed_out = len(finish)
        self.k = k
        self.near = np.empty(0, dtype=np.int64)  # [near]: clients, sorted
        self.near_finish = np.empty(0)  # [near]: theirs
        self.horizon = -math.inf  # whoever finishes before it is near
        self.size = min(len(finish), max(64, 4 * k, math.isqrt(8 * len(finish) * k)))

    def take(self) -> tuple[Places, float] | None:
        """The k clients [k] that finish first and the moment the last of them does; None when k never will."""
        if len(self.near) < self.k:
            self._look_further()
            if len(self.near) < self.k:
                return None
        taken, moment = self.near[: self.k], float(self.near_finish[self.k - 1])
        self.near, self.near_finish = self.near[self.k :], self.near_finish[self.k :]
        self.finish[taken] = math.inf
        return taken, moment

    def put(self, clients: Places, finish: Reals) -> None:
        """Clients [n] that begin again, in this order."""
        self.finish[clients] = finish
        self.order[clients] = np.arange(self.handed_out, self.handed_out + len(clients))
        self.handed_out += len(clients)
        soon = np.flatnonzero(finish < self.horizon)
        soon = soon[np.argsort(finish[soon], kind="stable")]
        # To the right of equal finishes, because those were handed out before.
        places = np.searchsorted(self.near_finish, finish[soon], side="right")
        self.near = np.insert(self.near, places, clients[soon])
        self.near_finish = np.insert(self.near_finish, places, finish[soon])

    def _look_further(self) -> None:
        """Make the first `size` of all near; among equal finishes, those handed out first."""
        self.horizon = float(np.partition(self.finish, self.size - 1)[self.size - 1])
        before = np.flatnonzero(self.finish < self.horizon)
        ties = np.flatnonzero(self.finish == self.horizon) if math.isfinite(self.horizon) else before[:0]
        room = self.size - len(before)
        if len(ties) > room:
            ties = ties[np.argpartition(self.order[ties], room - 1)[:room]]
        near = np.concatenate([before, ties])
        self.near = near[np.lexsort((self.order[near], self.finish[near]))]
        self.near_finish = self.finish[self.near]


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
