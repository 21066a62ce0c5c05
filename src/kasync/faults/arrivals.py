"""Arrival faults: a timeline in, and out comes the timeline in which clients leave, stall and send things twice.

The given timeline is the order in which uploads would arrive. Faults remove some, delay some and repeat some; the
server goes on taking k at a time, of k different clients, so that fewer uploads make fewer steps. The clock of all this
is the place of an upload in that order: a delay of one step is k places.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError
from kasync.faults.draws import chances, hit
from kasync.faults.kinds import ArrivalFault, DeliverTwice, Fault, Late, Leave, LeaveAndReturn, Stall, listed
from kasync.timelines import Timeline
from kasync.timelines.checks import seed_of

UPLOAD = np.dtype(  # what reaches the server
    [
        ("place", np.int64),  # when it arrives
        ("copy", np.bool_),
        ("client", np.int32),
        ("pulled", np.int64),  # when the client took the model it worked on; 0: at once, after its last delivery
        ("planned", np.int64),  # when it would have arrived without faults
    ]
)
TAKEN = np.dtype(  # a delivery as the server uses it
    [("client", np.int32), ("version", np.int32), ("copy", np.bool_), ("place", np.int64), ("planned", np.int64)]
)
CHUNK = 1 << 16  # uploads that are plain tuples at the same time


def inject(timeline: Timeline, faults: Fault | Iterable[Fault] | None, seed: int = 0) -> Timeline:
    """The timeline with the faults that concern arrivals: leave, return, stall, twice; the others are left to simulate.

    Without any it is the same timeline. What a longer timeline becomes begins with what the shorter one does.
    """
    given = [fault for fault in listed(faults) if isinstance(fault, ArrivalFault)]
    if not given:
        return timeline
    if timeline.copies is not None:
        raise UserError("the timeline holds deliveries that came twice already: take the one it was made from.")
    taken = np.fromiter(_taken(_happened(timeline, given, seed_of(seed)), timeline.k), TAKEN)
    steps = len(taken) // timeline.k
    if steps == 0:
        raise UserError(
            f"after these faults fewer than k = {timeline.k} clients deliver: lower k, or the shares and chances."
        )
    rows = taken[: steps * timeline.k].reshape(steps, timeline.k)
    return replace(
        timeline,
        clients=rows["client"],
        versions=rows["version"],
        times=timeline.times[rows["place"][:, -1] // timeline.k],
        kind=f"{timeline.kind}, with faults",
        settings={**timeline.settings, "faults": [repr(fault) for fault in given], "faults_seed": int(seed)},
        copies=rows["copy"] if rows["copy"].any() else None,
        local_steps=None if timeline.local_steps is None else timeline.local_steps.ravel()[rows["planned"]],
    )


def _happened(timeline: Timeline, given: list[ArrivalFault], seed: int) -> NDArray[np.void]:
    """The uploads that arrive before the timeline is over, in the order of their arrival."""
    likely = [chances(fault, timeline.population, seed) for fault in given]  # [population] each
    faulty = np.any(likely, axis=0)  # [population]
    at_once = timeline.versions == timeline.previous_step + 1  # [steps, k]
    pulled = np.where(at_once, 0, timeline.versions * np.int64(timeline.k)).ravel()  # [steps * k]
    clients = timeline.clients.ravel()  # [steps * k]
    sound = np.flatnonzero(~faulty[clients])
    uploads = np.zeros(len(sound), UPLOAD)
    uploads["place"], uploads["client"], uploads["pulled"] = sound, clients[sound], pulled[sound]
    uploads["planned"] = sound
    rows = np.flatnonzero(faulty[clients])
    rows = rows[np.argsort(clients[rows], kind="stable")]  # by client, then in time
    who, pieces = clients[rows], timeline.visits.ravel()[rows]
    hits = [
        hit(fault, of, seed, who, pieces).astype(np.int64) * _places(fault, timeline.k)
        for fault, of in zip(given, likely, strict=True)
    ]
    by_kind = {type(fault): column for fault, column in zip(given, hits, strict=True)}
    none = np.zeros(len(rows), dtype=np.int64)
    missed = (by_kind.get(kind, none).tolist() for kind in (Leave, LeaveAndReturn, Stall, DeliverTwice))
    table = zip(who.tolist(), rows.tolist(), pulled[rows].tolist(), *missed, strict=True)
    theirs = (upload for client, plans in groupby(table, key=itemgetter(0)) for upload in _of_one(client, plans))
    uploads = np.concatenate([uploads, np.fromiter(theirs, UPLOAD)])
    uploads = uploads[uploads["place"] < clients.size]
    return uploads[np.lexsort((uploads["client"], uploads["copy"], uploads["place"]))]


def _places(fault: ArrivalFault, k: int) -> int:
    """How many places a hit of this fault takes."""
    return k * (fault.away if isinstance(fault, LeaveAndReturn) else fault.delay if isinstance(fault, Late) else 1)


def _of_one(client: int, plans: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, bool, int, int, int]]:
    """What one client uploads, in order; a piece of work that was never begun is hit by nothing."""
    shift, back = 0, 0  # how far it is behind its plan, and when it comes back
    for _, planned, pulled, leaves, away, stall, repeat in plans:
        if planned + shift < back:
            continue
        if leaves:
            return
        if away:
            back = planned + shift + away
            continue
        begun = max(pulled + shift if pulled else 0, back)
        shift += stall
        yield planned + shift, False, client, begun, planned
        if repeat:
            shift += repeat
            yield planned + shift, True, client, begun, planned


def _taken(uploads: NDArray[np.void], k: int) -> Iterator[tuple[int, int, bool, int, int]]:
    """The deliveries of one step after the other, k of different clients each; the last step may be incomplete.

    A client whose upload waits for its step to be full has no new model to work on: what it would have sent meanwhile
    comes after that step.
    """
    closed: list[int] = []  # when each step was full
    last: dict[int, tuple[int, int]] = {}  # client -> step and version of its last delivery
    present: set[int] = set()
    waiting: list[tuple[int, int, bool, int]] = []  # client, pulled, copy, planned of those already in this step
    pieces = (uploads[start : start + CHUNK].tolist() for start in range(0, len(uploads), CHUNK))
    for place, copy, client, pulled, planned in chain.from_iterable(pieces):
        candidates = [*waiting, (client, pulled, copy, planned)] if waiting else [(client, pulled, copy, planned)]
        waiting = []
        while candidates:
            client, pulled, copy, planned = candidates.pop(0)
            if client in present:
                waiting.append((client, pulled, copy, planned))
                continue
            step, held = last.get(client, (-1, 0))
            version = held if copy else max(step + 1, bisect_left(closed, pulled))
            last[client] = (len(closed), version)
            present.add(client)
            yield client, version, copy, place, planned
            if len(present) == k:
                closed.append(place)
                present = set()
                candidates, waiting = waiting + candidates, []
