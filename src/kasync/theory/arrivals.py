"""What planning reads of a timeline: its arrays, and how long each piece of work took."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError
from kasync.theory.constants import Floats

Whole = NDArray[np.integer]


class TimelineLike(Protocol):
    """The arrays of a timeline; `kasync.timelines.Timeline` has them."""

    @property
    def clients(self) -> Whole: ...  # [J, k], each row in the order of arrival

    @property
    def versions(self) -> Whole: ...  # [J, k]

    @property
    def times(self) -> Floats: ...  # [J], when each update happened

    @property
    def population(self) -> int: ...


@dataclass(frozen=True)
class Observed:
    """Pieces of work: whose, how long, and whether they ended (False: it was still under way, so it takes longer)."""

    clients: Whole  # [n]
    seconds: Floats  # [n]
    ended: NDArray[np.bool_]  # [n]

    def __post_init__(self) -> None:
        if not (len(self.clients) == len(self.seconds) == len(self.ended)) or not np.any(self.ended):
            raise UserError(
                f"{len(self.seconds)} durations were observed; give at least one that ended, in equal columns."
            )
        if not (np.isfinite(self.seconds).all() and (self.seconds > 0).all()):
            raise UserError("an observed duration is not a finite number above 0; remove or repair those rows.")


def observed_pairs(clients: Whole, seconds: Floats) -> Observed:
    """Finished work given as (client, seconds) columns, for example from a trace or a live log."""
    return Observed(np.asarray(clients), np.asarray(seconds, dtype=np.float64), np.ones(len(seconds), dtype=bool))


def turnarounds(timeline: TimelineLike) -> Floats:
    """Seconds from the update that made the version a client worked on to the one that used its work [J, k]."""
    appeared = np.concatenate(([0.0], timeline.times))  # [J + 1]
    return timeline.times[:, None] - appeared[timeline.versions]


def waits(timeline: TimelineLike) -> Floats:
    """Seconds each upload lay at the server before its update [J, k].

    Only the last of a row is known exactly (0). An upload that had come earlier would have been used earlier, so the
    others came since the update before; they are taken as evenly spaced, in their order. That is close while k is a
    small part of the clients.
    """
    k = timeline.clients.shape[1]
    gaps = np.diff(timeline.times, prepend=0.0)  # [J]
    return gaps[:, None] * (1 - np.arange(1, k + 1) / k)


def observed_durations(timeline: TimelineLike) -> Observed:
    """The durations behind a K-async timeline, with the work that was still under way at its end."""
    seconds = turnarounds(timeline) - waits(timeline)  # [J, k]
    heard = np.zeros(timeline.population)  # [clients], when each one began its last piece of work
    heard[timeline.clients.ravel()] = np.repeat(timeline.times, timeline.clients.shape[1])  # the last row wins
    still = float(timeline.times[-1]) - heard  # [clients]
    open_clients = np.flatnonzero(still > 0)
    positive = seconds.ravel() > 0
    return Observed(
        clients=np.concatenate((timeline.clients.ravel()[positive], open_clients)),
        seconds=np.concatenate((seconds.ravel()[positive], still[open_clients])),
        ended=np.concatenate((np.ones(int(positive.sum()), dtype=bool), np.zeros(len(open_clients), dtype=bool))),
    )
