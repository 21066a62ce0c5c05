"""Pilots: short paired runs that find the fastest k; candidates that can hardly win are stopped early.

Every candidate sees the same seeds: the same data and start, the same batches, the same durations of the n-th piece of
a client's work. All get the same virtual time, which doubles from turn to turn. After each turn those are stopped that
lag too far behind the leader; once somebody is at the target, those that can no longer be there nearly as soon.

A small k leads at first, since it makes more steps, and may come to a halt later, since its gradients are staler. So
the lag is counted in time (how long ago was the leader where the other is now?), and whoever moves less per gradient
than the leader (a larger k, a smaller learning rate) is given more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, inf, isfinite, log
from typing import Any, Protocol

import numpy as np

from kasync.errors import UserError
from kasync.simulator import Record, Simulation
from kasync.theory.planning import Pilot, first_reached, geometric_mean, smoothed
from kasync.theory.theorems import Floats
from kasync.timelines import Timeline


class Runnable(Protocol):
    """A run whose length is not decided yet."""

    @property
    def clients(self) -> int: ...

    @property
    def k(self) -> int: ...

    def timeline(self, steps: int) -> Timeline:
        """The first so many steps, with a time for each."""

    def simulate(self, timeline: Timeline, evaluate_every: int) -> Simulation:
        """The run on this timeline."""


Describe = Callable[[int, float | None, int], Runnable]  # k, learning rate, seed -> the run
FIRST = 4.0  # pieces of work per client in the first turn: before, hardly anything is stale yet
LONGEST = {True: 64.0, False: 16.0}  # pieces of work per client at most, with a target and without
LAG = 1.5  # times the leader's time that a hastier candidate may need to the same accuracy before it is stopped
PATIENCE = 4.0  # the same for a steadier one, which can still overtake a leader that comes to a halt
EVALUATIONS = 20  # in the first turn
MARGIN = 1.25  # times the best time to which others may go on, so that it can be told how close it was
AHEAD = 8.2  # a timeline is made for so many times the seconds asked for; after three doublings the run is repeated
WINDOW = 5  # evaluations that the smoothed accuracy is a mean of
MEMORY_SHARE = 0.4  # of what is available; beyond it, a waiting run is given up and repeated when its turn comes


@dataclass(eq=False)
class Lane:
    """One run that can be led on from one virtual second to another, and dropped when memory is short."""

    run: Runnable
    piece: float  # virtual seconds in which each client hands in one piece of work on average
    every: float  # virtual seconds between evaluations
    end: float  # virtual seconds at most
    target: float
    times: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    records: Iterator[Record] | None = None
    size: int = 0  # bytes that the waiting run holds
    available: int = 0
    played: float = 0.0  # virtual seconds that the timeline of the waiting run has
    now: float = 0.0  # the virtual second it stands at, also where the run was given up
    seconds: float = inf  # to the target

    @property
    def curve(self) -> Floats:
        """[evaluations] the smoothed accuracies at `times`."""
        return smoothed(self.times, self.accuracies, WINDOW * self.every)

    def advance(self, until: float) -> None:
        """Go on to this virtual second, or to the target; begin anew where the run was given up."""
        if isfinite(self.seconds) or until <= self.now:
            return
        if self.records is None or until > self.played:
            self._begin(min(self.end, AHEAD * until))
        assert self.records is not None
        for record in self.records:
            self.now = record.time
            if record.accuracy is not None:
                self._note(record)
            if isfinite(self.seconds):
                self.give_up()
                return
            if record.time >= until:
                return

    def give_up(self) -> None:
        """Hold nothing any more; what was noted stays."""
        self.records, self.size = None, 0

    def _begin(self, seconds: float) -> None:
        self.times, self.accuracies, self.played = [], [], seconds
        pace = self.piece * self.run.k / self.run.clients  # the same whatever the timeline's length
        simulation = self.run.simulate(self._timeline(seconds), max(1, round(self.every / pace)))
        if not simulation.data.classes:
            raise UserError("pilots compare accuracies, which a regression has not: choose data with classes.")
        self.records = iter(simulation)
        self.size, self.available = simulation.memory.total, simulation.memory.available

    def _note(self, record: Record) -> None:
        assert record.accuracy is not None
        self.times.append(record.time)
        self.accuracies.append(record.accuracy)
        self.seconds = first_reached(self.times, self.curve, self.target)

    def _timeline(self, seconds: float) -> Timeline:
        """The steps of this many virtual seconds."""
        steps = ceil(1.1 * seconds / self.piece * self.run.clients / self.run.k) + 1
        while (made := self.run.timeline(steps)).times[-1] < seconds and made.steps >= steps:
            steps *= 2  # fewer than asked for are all there are
        return made.head(min(made.steps, int(np.searchsorted(made.times, seconds)) + 1))


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

    describe   describe(k, lr, seed) is the run; its timeline must have a clock
    target     the accuracy to be reached; without one, the accuracy after `limit` decides
    limit      virtual seconds at most; 64 pieces of work per client without it, 16 where there is no target
    thorough   stop nobody: every candidate runs to the target or the limit
    memory     bytes that waiting runs may hold together; what is beyond is simulated again, with the same numbers
    """
    _check(ks, seeds, target, limit)
    piece = _piece(describe(min(ks), lrs[0], seeds[0]))
    first = FIRST * piece
    end = LONGEST[target is not None] * piece if limit is None else limit
    goal = inf if target is None else target
    racing = []
    for k in sorted(set(ks)):
        for lr in lrs:
            lanes = [Lane(describe(k, lr, seed), piece, first / EVALUATIONS, end, goal) for seed in seeds]
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


def _piece(run: Runnable) -> float:
    """Virtual seconds in which each client hands in one piece of work on average."""
    steps = max(2, ceil(4 * run.clients / run.k))
    made = run.timeline(steps)
    return float(made.times[-1]) * run.clients / (made.steps * run.k)


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
