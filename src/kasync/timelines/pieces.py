"""A client takes a model now: when does the server get something back, and from which pull?"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, uniforms
from kasync.timelines.durations import Durations
from kasync.timelines.presence import Always, Availability, Dropouts

Ints = NDArray[np.integer]
Reals = NDArray[np.float64]

FAILURES = 1000  # pieces of work in a row that come to nothing, after which a client counts as gone


@dataclass(frozen=True)
class Outcome:
    """What becomes of clients that were handed a model."""

    finish: Reals  # [n]: when the upload is with the server; inf: never
    pulled: Reals  # [n]: when the client took the model it delivers on; later than asked after a failure or an absence
    piece: Ints  # [n]: the number of the client's next piece of work
    left: tuple[tuple[Ints, Reals, Reals], ...] = ()  # (clients, from, until) of every absence met on the way


@dataclass(frozen=True)
class Pieces:
    """Everything that decides how long work takes and whether it arrives."""

    durations: Durations
    seed: int
    speeds: Reals | None = None  # [clients]
    availability: Availability = field(default_factory=Always)
    dropouts: Dropouts = field(default_factory=lambda: Dropouts(0.0))
    lost: float = 0.0

    @property
    def reliable(self) -> bool:
        """Whether every piece of work arrives and every client is always there."""
        return isinstance(self.availability, Always) and self.dropouts.chance == 0 and self.lost == 0

    def seconds(self, client: Ints, piece: Ints) -> Reals:
        """[n]: the time of the work itself."""
        seconds = self.durations.seconds(self.seed, client, piece)
        return seconds if self.speeds is None else seconds / self.speeds[client]

    def deliver(self, client: Ints, piece: Ints, time: Reals) -> Outcome:
        """Clients [n] may pull from `time` [n] on; follow each through its failures to the upload that arrives.

        An upload that is lost, a window that closes and a drop-out all end the piece of work; the client takes the
        model that is current when it can go on, and begins its next piece.
        """
        if self.reliable:
            return Outcome(time + self.seconds(client, piece), time, piece + 1)
        finish, pulled, piece = np.full(len(client), np.inf), time.copy(), piece.copy()
        left: list[tuple[Ints, Reals, Reals]] = []
        trying = np.flatnonzero(np.isfinite(time))
        now = time[trying]  # [trying]
        for _ in range(FAILURES):
            if not len(trying):
                break
            who, number = client[trying], piece[trying]
            start, closing = self.availability.opening(self.seed, who, now)
            seconds = self.seconds(who, number)
            done = start + seconds
            leaves, share, away = self.dropouts.leaving(self.seed, who, number)
            leaving = start + share * seconds
            leaves = leaves & (leaving < closing)
            closed = ~leaves & (done > closing)
            missed = ~leaves & ~closed & (uniforms(self.seed, Stream.LOSSES, who, number) < self.lost)
            again = np.where(leaves, leaving + away, np.where(closed, closing, done))
            arrived = ~(leaves | closed | missed)

            finish[trying[arrived]] = done[arrived]
            pulled[trying] = start
            piece[trying] += 1
            left.append((who[leaves], leaving[leaves], again[leaves]))
            goes_on = ~arrived & np.isfinite(again)
            trying, now = trying[goes_on], again[goes_on]
        return Outcome(finish, pulled, piece, tuple(left))
