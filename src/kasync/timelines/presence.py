"""When is a client there to work: in windows that repeat, in given intervals, until it drops out?"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.counter import Stream, uniforms
from kasync.errors import UserError
from kasync.timelines import checks
from kasync.timelines.durations import Durations

Ints = NDArray[np.integer]
Reals = NDArray[np.float64]


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
        if self.phases is not None and np.shape(self.phases) != (clients,):
            raise UserError(f"phases has shape {np.shape(self.phases)}: give one number for each of {clients} clients.")

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
    """There during the given (client, begin, end) and at no other time; a client that is not listed never comes."""

    def __init__(self, rows: Iterable[tuple[int, float, float]]) -> None:
        table = np.asarray([tuple(row) for row in rows], dtype=np.float64).reshape(-1, 3)
        if np.isnan(table).any() or (table[:, 1] >= table[:, 2]).any() or (table[:, 0] < 0).any():
            raise UserError(
                "an availability interval is not (client, begin, end) with begin before end: repair the list."
            )
        table = table[np.lexsort((table[:, 1], table[:, 0]))]
        owner, begin, end = table[:, 0].astype(np.int64), table[:, 1], table[:, 2]
        if ((owner[1:] == owner[:-1]) & (begin[1:] < end[:-1])).any():
            raise UserError("two availability intervals of one client overlap: merge them into one.")
        self.owner, self.begin, self.end = owner, begin, end  # [rows] each, by client and time

    def __repr__(self) -> str:
        return f"Intervals({len(self.owner)} of {len(np.unique(self.owner))} clients)"

    def check(self, clients: int, k: int) -> None:
        listed = np.unique(self.owner)
        if len(listed) < k:
            raise UserError(f"availability lists {len(listed)} clients but k is {k}: list more clients or lower k.")
        if listed[-1] >= clients:
            raise UserError(f"availability lists client {listed[-1]} but clients go from 0 to {clients - 1}.")

    def opening(self, seed: int, client: Ints, time: Reals) -> tuple[Reals, Reals]:
        low = np.searchsorted(self.owner, client, side="left")  # [n]: the client's first interval
        stop = np.searchsorted(self.owner, client, side="right")  # [n]: one past its last
        high = stop.copy()
        while (low < high).any():  # bisect all clients at once for the first interval that ends after `time`
            middle = (low + high) // 2
            ended = (low < high) & (self.end[np.minimum(middle, len(self.end) - 1)] <= time)
            low, high = np.where(ended, middle + 1, low), np.where(ended, high, np.minimum(middle, high))
        comes = low < stop
        row = np.minimum(low, len(self.end) - 1)
        begin = np.where(comes, np.maximum(time, self.begin[row]), np.inf)
        return begin, np.where(comes, self.end[row], np.inf)


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
