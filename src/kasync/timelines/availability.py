"""Availability of clients, drop-outs, and the outcome of each piece of work of a fleet."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.counter import Stream, uniforms
from kasync.errors import UserError
from kasync.timelines import checks
from kasync.timelines.durations import Durations

Ints = NDArray[np.integer]
Reals = NDArray[np.float64]
Bools = NDArray[np.bool_]
Absences = tuple[tuple[Ints, Reals, Reals], ...]  # clients, from, until

FAILURES = 1000  # pieces of work in a row that come to nothing, after which a client counts as gone


class Availability(Protocol):
    """Windows of time in which a client works; work that a window's end interrupts is thrown away."""

    def check(self, clients: int, k: int) -> None:
        """Refuse what leaves fewer than k of the clients."""

    def opening(self, seed: int, client: Ints, time: Reals) -> tuple[Reals, Reals]:
        """([n], [n]): when each client is next there, at `time` or later (inf: never), and when that window ends."""


@dataclass(frozen=True)
class Always:
    """Every client is there all the time."""

    def check(self, clients: int, k: int) -> None:
        """Nothing to refuse."""

    def opening(self, seed: int, client: Ints, time: Reals) -> tuple[Reals, Reals]:
        return time, np.full(len(time), np.inf)


@dataclass(frozen=True)
class Repeating:
    """There for the first `length` of every `every` virtual seconds, shifted by the phase of the client.

    `phases` [clients] are in seconds; without them they are random.
    """

    length: float
    every: float
    phases: ArrayLike | None = None

    def __post_init__(self) -> None:
        checks.positive("every", self.every)
        if checks.positive("length", self.length) > self.every:
            raise UserError(f"length is {self.length} but the windows repeat every {self.every}: choose a shorter one.")

    def check(self, clients: int, k: int) -> None:
        if self.phases is None:
            return
        if np.shape(self.phases) != (clients,):
            raise UserError(f"phases has shape {np.shape(self.phases)}: give one number for each of {clients} clients.")
        if np.asarray(self.phases).dtype.kind not in "iuf" or not np.isfinite(self.phases).all():
            raise UserError("phases holds what is no finite number: give the seconds by which each client is shifted.")

    def opening(self, seed: int, client: Ints, time: Reals) -> tuple[Reals, Reals]:
        if self.length == self.every:
            return time, np.full(len(time), np.inf)
        if self.phases is None:
            phase = self.every * (uniforms(seed, Stream.PHASES, client) - 1.0)
        else:
            phase = np.asarray(self.phases, dtype=np.float64)[client]
        window = np.floor((time - phase) / self.every)
        # The same expression gives a window's end whenever it is asked for, so that its end is never inside it.
        over = time >= phase + window * self.every + self.length
        begin = phase + (window + over) * self.every
        return np.maximum(time, begin), begin + self.length


class Intervals:
    """There during the given (client, begin, end) and at no other time; a client that is not listed never comes.

    repeat   seconds after which everything comes again, one number or one for each client 0, 1, ...; the intervals of a
             client lie within one period, but the last may reach into the next
    cycle    with more clients than are listed, client c has the intervals of client c modulo their number
    """

    def __init__(self, rows: Iterable[tuple[float, ...]], repeat: ArrayLike | None = None, cycle: bool = False) -> None:
        try:
            table = np.asarray(rows if isinstance(rows, np.ndarray) else [tuple(row) for row in rows], dtype=np.float64)
            table = table.reshape(0, 3) if not table.size else table
            wrong = table.ndim != 2 or table.shape[1] != 3 or np.isnan(table).any() or (table[:, 0] % 1 != 0).any()
        except (TypeError, ValueError):
            wrong = True
        if wrong or (table[:, 1] >= table[:, 2]).any() or (table[:, 0] < 0).any():
            raise UserError(
                "an availability interval is not (client, begin, end) with begin before end: repair the list."
            )
        table = table[np.lexsort((table[:, 1], table[:, 0]))]
        owner = table[:, 0].astype(np.int64)
        listed = int(owner[-1]) + 1 if len(owner) else 0
        self.begin, self.end = table[:, 1].copy(), table[:, 2].copy()  # [rows] each, by client and time
        self.first: Ints = np.searchsorted(owner, np.arange(listed + 1))  # [listed + 1]: where each client's rows begin
        self._complete(repeat, cycle, None)

    @classmethod
    def of_rows(cls, begin: Reals, end: Reals, first: Ints, repeat: ArrayLike, shift: Reals | None = None) -> Self:
        """Of rows that are in order already: client c has rows first[c] to first[c + 1], moved by shift[c]; a cycle."""
        made = cls.__new__(cls)
        made.begin, made.end, made.first = begin, end, first
        made._complete(repeat, True, shift)
        return made

    def _complete(self, repeat: ArrayLike | None, cycle: bool, shift: Reals | None) -> None:
        inner = np.ones(max(len(self.begin) - 1, 0), dtype=bool)  # whether the next row is of the same client
        inner[self.first[(self.first > 0) & (self.first < len(self.begin))] - 1] = False
        if (inner & (self.begin[1:] < self.end[:-1])).any():
            raise UserError("two availability intervals of one client overlap: merge them into one.")
        self.bounds = np.append(self.first, [self.first[-1]])  # [listed + 2]: a client beyond the list has no rows
        self.cycle = cycle
        self.shift = None if shift is None else np.append(shift, 0.0)  # [listed + 1]
        self.period: Reals | None = None  # [listed + 1]
        if repeat is not None:
            period = checks.positives("repeat", repeat)
            if period.ndim and len(period) != self.listed:
                raise UserError(
                    f"repeat has {len(period)} numbers: give one, or one for each of {self.listed} clients."
                )
            self.period = np.append(np.broadcast_to(period, (self.listed,)), 1.0)
            self._check_period(self.period)

    def _check_period(self, period: Reals) -> None:
        there = np.flatnonzero(np.diff(self.first))
        head, tail = self.first[there], self.first[there + 1] - 1
        outside = (self.begin[head] < 0) | (self.begin[tail] >= period[there])
        if (outside | (self.end[tail] - period[there] > self.begin[head])).any():
            raise UserError("availability intervals do not fit into repeat: give a longer one, or shift the intervals.")

    @property
    def listed(self) -> int:
        """How many clients the list speaks of, 0 up to the last one named."""
        return len(self.first) - 1

    def __repr__(self) -> str:
        return f"Intervals({len(self.begin)} of {np.count_nonzero(np.diff(self.first))} clients)"

    def check(self, clients: int, k: int) -> None:
        there = np.count_nonzero(np.diff(self.first))
        if there < k and not (self.cycle and there):
            raise UserError(f"availability lists {there} clients but k is {k}: list more clients or lower k.")
        if self.listed > clients and not self.cycle:
            raise UserError(f"availability lists client {self.listed - 1} but clients go from 0 to {clients - 1}.")

    def opening(self, seed: int, client: Ints, time: Reals) -> tuple[Reals, Reals]:
        who = np.asarray(client) % self.listed if self.cycle else np.minimum(client, self.listed)
        begins, stop = self.bounds[who], self.bounds[who + 1]
        low, offset = begins, np.zeros(len(time))  # offset [n]: when the period began that the rows are read in
        if self.period is not None:
            period = self.period[who]
            shift = 0.0 if self.shift is None else self.shift[who]
            offset = np.floor((np.where(np.isfinite(time), time, 0.0) - shift) / period) * period + shift
            last = np.maximum(stop - 1, 0)
            reaches = (low < stop) & (self.end[last] + (offset - period) > time)  # still in the last period's last one
            offset = offset - reaches * period
        high = stop.copy()
        while (low < high).any():  # bisect all clients at once for the first interval that ends after `time`
            middle = np.minimum((low + high) // 2, len(self.end) - 1)
            # The end is formed as it is given back below, so that the end of an interval is never inside it.
            ended = (low < high) & (self.end[middle] + offset <= time)
            low, high = np.where(ended, middle + 1, low), np.where(ended, high, np.minimum(middle, high))
        over = low >= stop
        if self.period is not None:
            low, offset = np.where(over, begins, low), offset + over * period
            over = (begins >= stop) | ~np.isfinite(time)
        row = np.minimum(low, len(self.end) - 1)
        begin = np.where(over, np.inf, np.maximum(time, self.begin[row] + offset))
        return begin, np.where(over, np.inf, self.end[row] + offset)


@dataclass(frozen=True)
class Dropouts:
    """With this chance a client leaves in the middle of a piece of work, for `away` seconds or, without them, for good.

    It takes the model that is current when it returns.
    """

    chance: float
    away: Durations | None = None

    def __post_init__(self) -> None:
        checks.share("chance", self.chance)
        if self.away is not None and not isinstance(self.away, Durations):
            raise UserError(
                f"away is {self.away!r}: give durations such as durations.exponential(60), or None for good."
            )

    def leaving(self, seed: int, client: Ints, piece: Ints) -> tuple[NDArray[np.bool_], Reals, Reals]:
        """([n], [n], [n]): who leaves, after which share of the work (1: all of it), and for how many seconds."""
        leaves, share, away = np.zeros(len(client), dtype=bool), np.ones(len(client)), np.full(len(client), np.inf)
        if self.chance == 0:
            return leaves, share, away
        leaves = uniforms(seed, Stream.DROPOUTS, client, piece) < self.chance
        who, number = client[leaves], piece[leaves]
        share[leaves] = uniforms(seed, Stream.DROPOUTS, who, number, 1)
        if self.away is not None:
            away[leaves] = self.away.seconds(seed, who, number, Stream.ABSENCES)
        return leaves, share, away


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
class Fleet:
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
