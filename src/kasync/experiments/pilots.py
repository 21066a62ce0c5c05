"""Short paired runs that find the k that gets there first; the slower are stopped once they can hardly win.

Every candidate sees the same seeds: the same data and start, the same batches, the same durations of the n-th piece of
a client's work. All get the same virtual time, which doubles from turn to turn. After each turn those are stopped that
lag too far behind the leader; once somebody is at the target, those that can no longer be there nearly as soon.

A small k leads at first, since it makes more steps, and may come to a halt later, since its gradients are staler. So
the lag is counted in time (how long ago was the leader where the other is now?), and whoever moves less per gradient
than the leader (a larger k, a smaller learning rate) is given more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf, isfinite, log
from typing import Any

import numpy as np

from kasync.errors import UserError
from kasync.experiments.arrivals import timeline_of
from kasync.experiments.lanes import Lane
from kasync.experiments.settings import RunSettings
from kasync.theory.planning import Pilot, first_reached, geometric_mean

Describe = Callable[[int, float | None, int], RunSettings]  # k, learning rate, seed -> the run
FIRST = 4.0  # pieces of work per client in the first turn: before, hardly anything is stale yet
LONGEST = {True: 64.0, False: 16.0}  # pieces of work per client at most, with a target and without
LAG = 1.5  # times the leader's time that a hastier candidate may need to the same accuracy before it is stopped
PATIENCE = 4.0  # the same for a steadier one, which can still overtake a leader that comes to a halt
EVALUATIONS = 20  # in the first turn
MARGIN = 1.25  # times the best time to which others may go on, so that it can be told how close it was
MEMORY_SHARE = 0.4  # of what is available; beyond it, a waiting run is given up and repeated when its turn comes


@dataclass(eq=False)
class Candidate:
    """One k, at one learning rate, with its runs."""

    k: int
    lr: float | None
    lanes: list[Lane]
    until: float = 0.0

    @property
    def accuracy(self) -> float:
        """Mean over the seeds, where the runs stand."""
        return float(np.mean([lane.curve[-1] for lane in self.lanes]))

    @property
    def haste(self) -> float:
        """Learning rate per delivery: how far the model moves for each gradient that arrives."""
        return (1.0 if self.lr is None else self.lr) / self.k

    def when(self, accuracy: float) -> float:
        """Virtual second at which the mean over the seeds first had this accuracy; inf if it never had."""
        times = np.unique(np.concatenate([lane.times for lane in self.lanes]))
        curves = [np.interp(times, lane.times, lane.curve) for lane in self.lanes]
        return first_reached(times, np.mean(curves, axis=0), accuracy)

    @property
    def at_best(self) -> float:
        """Typical seconds to the target if every run that is not there yet arrived at once."""
        return geometric_mean([min(lane.seconds, self.until) for lane in self.lanes])

    def hopeless_after(self, seconds: float) -> float:
        """The second after which its typical time is above `seconds`, whatever the runs that are not there yet do."""
        arrived = [log(lane.seconds) for lane in self.lanes if isfinite(lane.seconds)]
        missing = len(self.lanes) - len(arrived)
        return exp((len(self.lanes) * log(seconds) - sum(arrived)) / missing) if missing and isfinite(seconds) else inf

    @property
    def arrived(self) -> bool:
        return all(isfinite(lane.seconds) for lane in self.lanes)

    def pilot(self) -> Pilot:
        ended = [float(lane.curve[-1]) for lane in self.lanes]
        return Pilot(self.k, [lane.seconds for lane in self.lanes], ended, self.lr, self.until)


def race(
    describe: Describe,
    ks: Sequence[int],
    lrs: Sequence[float | None] = (None,),
    target: float | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    limit: float | None = None,
    thorough: bool = False,
    memory: int | None = None,
    tell: Callable[[str], Any] = lambda words: None,
) -> tuple[Pilot, ...]:
    """One pilot for every k and learning rate; `kasync.theory.planning` chooses among them.

    describe   describe(k, lr, seed) is the run; its arrivals must have a clock, its steps do not matter
    target     the accuracy to be reached; without one, the accuracy after `limit` decides
    limit      virtual seconds at most; 64 pieces of work per client without it, 16 where there is no target
    thorough   stop nobody: every candidate runs to the target or the limit
    memory     bytes that waiting runs may hold together; what is beyond is simulated again, with the same numbers
    """
    _check(ks, seeds, target, limit)
    piece = _piece(describe(min(ks), lrs[0], seeds[0]).resolved())
    first = FIRST * piece
    end = LONGEST[target is not None] * piece if limit is None else limit
    goal = inf if target is None else target
    racing = []
    for k in sorted(set(ks)):
        for lr in lrs:
            runs = [describe(k, lr, seed).resolved() for seed in seeds]
            lanes = [Lane(run, piece, first / EVALUATIONS, end, goal) for run in runs]
            racing.append(Candidate(k, lr, lanes))
    alive, until = racing, end if thorough else min(first, end)
    while alive:
        for one in alive:
            close = inf if thorough else MARGIN * _best(racing)
            _lead(one, min(until, one.hopeless_after(close)), racing, memory)
        still = _survivors(alive, _best(racing), thorough)
        tell(f"after {until:.4g} virtual seconds: {_words(alive, still)}")
        for one in alive:
            if one not in still:
                for lane in one.lanes:
                    lane.give_up()
        if until >= end:
            break
        alive, until = still, min(2 * until, end)
    return tuple(one.pilot() for one in racing)


def _best(racing: Sequence[Candidate]) -> float:
    """Least typical seconds of those that are at the target with every seed."""
    return min((one.at_best for one in racing if one.arrived), default=inf)


def _survivors(alive: Sequence[Candidate], best: float, thorough: bool) -> list[Candidate]:
    """Who goes on, leader first: those not there yet that may still be nearly as soon as the `best` so far."""
    under_way = sorted((one for one in alive if not one.arrived), key=lambda one: -one.accuracy)
    if thorough or not under_way:
        return under_way
    if isfinite(best):
        return [one for one in under_way if one.at_best < (MARGIN - 1e-6) * best]  # rounding keeps nobody alive
    leader = under_way[0]

    def hopeful(one: Candidate) -> bool:
        lag = one.until / leader.when(one.accuracy)
        return one is leader or lag < (PATIENCE if one.haste < leader.haste else LAG)

    return [one for one in under_way if hopeful(one)]


def _lead(one: Candidate, until: float, racing: Sequence[Candidate], memory: int | None) -> None:
    """All runs of a candidate on to this second; a run is not kept waiting where memory is short."""
    for lane in one.lanes:
        lane.advance(until)
        allowed = MEMORY_SHARE * lane.available if memory is None else memory
        if sum(each.size for other in racing for each in other.lanes) > allowed:
            lane.give_up()
    one.until = max(one.until, until)


def _piece(settings: RunSettings) -> float:
    """Virtual seconds in which each client hands in one piece of work on average."""
    if settings.arrivals.kind not in ("clock", "phones", "traces"):
        raise UserError(f"arrivals = {settings.arrivals.kind!r}: pilots for another k need a clock, so use 'clock'.")
    steps = max(2, ceil(4 * settings.clients / settings.k))
    timeline = timeline_of(replace(settings, steps=steps))
    return float(timeline.times[-1]) * settings.clients / (steps * settings.k)


def _check(ks: Sequence[int], seeds: Sequence[int], target: float | None, limit: float | None) -> None:
    if not ks or not seeds:
        raise UserError("a pilot needs at least one k and one seed: name them.")
    if target is not None and not 0 < target <= 1:
        raise UserError(f"target = {target}: give an accuracy above 0 and at most 1, such as 0.8.")
    if limit is not None and not 0 < limit < inf:
        raise UserError(f"seconds = {limit}: give the pilots a finite virtual time above 0.")


def _words(alive: Sequence[Candidate], still: Sequence[Candidate]) -> str:
    """k=5 0.71, k=10 0.68 stopped"""
    told = []
    for one in alive:
        name = f"k={one.k}" + ("" if one.lr is None else f" lr={one.lr:g}")
        if one.arrived:
            told.append(f"{name} there after {one.at_best:.4g}")
        else:
            told.append(f"{name} {one.accuracy:.3f}" + ("" if one in still else " stopped"))
    return ", ".join(told)
