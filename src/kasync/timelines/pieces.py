"""Outcome of a piece of work: when a client begins it, when it ends, and whether the server gets it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, uniforms
from kasync.timelines.durations import Durations
from kasync.timelines.presence import Always, Availability, Dropouts

Ints = NDArray[np.integer]
Reals = NDArray[np.float64]
Bools = NDArray[np.bool_]
Absences = tuple[tuple[Ints, Reals, Reals], ...]  # clients, from, until

FAILURES = 1000  # pieces of work in a row that come to nothing, after which a client counts as gone


@dataclass(frozen=True)
class Attempt:
    """One piece of work of each of n clients."""

    start: Reals  # [n]: when the client takes the model; inf: it never comes
    end: Reals  # [n]: when the upload is with the server, or when the work has come to nothing
    arrives: Bools  # [n]
    again: Reals  # [n]: when the client could begin another piece after a failure; inf: it is gone for good
    absent: Absences = ()


@dataclass(frozen=True)
class Outcome:
    """What becomes of clients that try until an upload of theirs arrives."""

    finish: Reals  # [n]: when the upload is with the server; inf: never
    pulled: Reals  # [n]: when the client took the model it delivers on; later than asked after a failure or an absence
    piece: Ints  # [n]: the number of the client's next piece of work
    left: Absences = ()  # every absence met on the way


@dataclass(frozen=True)
class Pieces:
    """Everything that decides how long work takes and whether it arrives."""

    durations: Durations
    seed: int
    speeds: Reals | None = None  # [clients]
    availability: Availability = field(default_factory=Always)
    dropouts: Dropouts = field(default_factory=lambda: Dropouts(0.0))
    lost: float = 0.0
    transfer: Durations | None = None  # download and upload, beside the work itself
    size: Reals | None = None  # [clients]: the client's work as a multiple of what `durations` speaks of
    resumed: bool = False  # what a window's end or an absence interrupts goes on afterwards, instead of being lost

    @property
    def reliable(self) -> bool:
        """Whether every piece of work arrives and every client is always there."""
        return isinstance(self.availability, Always) and self.dropouts.chance == 0 and self.lost == 0

    def seconds(self, client: Ints, piece: Ints) -> Reals:
        """[n]: download, compute and upload."""
        seconds = self.durations.seconds(self.seed, client, piece)
        if self.size is not None:
            seconds = seconds * self.size[client]
        if self.speeds is not None:
            seconds = seconds / self.speeds[client]
        if self.transfer is not None:
            seconds = seconds + self.transfer.seconds(self.seed, client, piece, Stream.TRANSFERS)
        return seconds

    def attempt(self, client: Ints, piece: Ints, time: Reals) -> Attempt:
        """One piece of work of clients [n] that may take the model from `time` [n] on."""
        seconds = self.seconds(client, piece)
        if self.reliable:
            return Attempt(time, time + seconds, np.ones(len(client), dtype=bool), time + seconds)
        start, closing = self.availability.opening(self.seed, client, time)
        if self.resumed:
            return self._with_pauses(client, piece, time, start, seconds)
        leaves, share, away = self.dropouts.leaving(self.seed, client, piece)
        missed = self._missed(client, piece)
        done, leaving = start + seconds, start + share * seconds
        leaves = leaves & (leaving < closing)
        closed = ~leaves & (done > closing)
        end = np.where(leaves, leaving, np.where(closed, closing, done))
        again = np.where(leaves, leaving + away, end)
        comes = np.isfinite(start)
        absent = ((client[leaves], leaving[leaves], again[leaves]),)
        arrives = comes & ~(leaves | closed | missed)
        return Attempt(start, np.where(comes, end, time), arrives, again, absent)

    def _with_pauses(self, client: Ints, piece: Ints, time: Reals, start: Reals, seconds: Reals) -> Attempt:
        """The work goes on when the client is there again; a drop-out for good still ends it."""
        leaves, share, away = self.dropouts.leaving(self.seed, client, piece)
        before = np.where(leaves, share * seconds, seconds)
        left, stopped = self._worked(client, start, before)
        leaves = leaves & np.isfinite(left)
        returns = leaves & np.isfinite(away)
        done = left.copy()
        done[leaves] = np.inf
        done[returns], after = self._worked(client[returns], left[returns] + away[returns], (seconds - before)[returns])
        stopped[leaves] = left[leaves]
        stopped[returns] = after
        comes, finished = np.isfinite(start), np.isfinite(done)
        end = np.where(finished, done, np.where(comes, stopped, time))
        absent = ((client[leaves], left[leaves], left[leaves] + away[leaves]),)
        return Attempt(start, end, finished & ~self._missed(client, piece), np.where(finished, done, np.inf), absent)

    def _missed(self, client: Ints, piece: Ints) -> Bools:
        """[n]: whose upload is lost on its way."""
        return uniforms(self.seed, Stream.LOSSES, client, piece) < self.lost

    def _worked(self, client: Ints, start: Reals, seconds: Reals) -> tuple[Reals, Reals]:
        """([n], [n]): when so many seconds of presence are over (inf: never), and when the client was last there."""
        now, closing = self.availability.opening(self.seed, client, start)
        rest, done, stopped = seconds.copy(), np.full(len(client), np.inf), np.where(np.isfinite(now), now, start)
        going = np.flatnonzero(np.isfinite(now))
        for _ in range(FAILURES):
            if not len(going):
                break
            fits = now[going] + rest[going] <= closing[going]
            done[going[fits]] = now[going[fits]] + rest[going[fits]]
            going = going[~fits]
            rest[going] -= closing[going] - now[going]
            stopped[going] = closing[going]
            now[going], closing[going] = self.availability.opening(self.seed, client[going], closing[going])
            going = going[np.isfinite(now[going])]
        return done, stopped

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
            one = self.attempt(client[trying], piece[trying], now)
            finish[trying[one.arrives]] = one.end[one.arrives]
            pulled[trying] = one.start
            piece[trying] += 1
            left.extend(one.absent)
            goes_on = ~one.arrives & np.isfinite(one.again)
            trying, now = trying[goes_on], one.again[goes_on]
        return Outcome(finish, pulled, piece, tuple(left))
