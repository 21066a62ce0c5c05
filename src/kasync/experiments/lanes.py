"""A pilot run advanced in virtual time, and dropped when memory is short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite

import numpy as np

from kasync.errors import UserError
from kasync.experiments.arrivals import timeline_of
from kasync.experiments.build import ready
from kasync.experiments.settings import RunSettings
from kasync.simulator import Record, simulate
from kasync.theory.planning import first_reached, smoothed
from kasync.theory.theorems import Floats
from kasync.timelines import Timeline

AHEAD = 8.2  # a timeline is made for so many times the seconds asked for; after three doublings the run is repeated
WINDOW = 5  # evaluations that the smoothed accuracy is a mean of


@dataclass(eq=False)
class Lane:
    """One run that can be led on from one virtual second to another."""

    settings: RunSettings
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
        timeline = _timeline(self.settings, seconds, self.piece)
        parts = ready(replace(self.settings, steps=1))  # the timeline of one step makes room for the real one
        pace = self.piece * self.settings.k / self.settings.clients  # the same whatever the timeline's length
        simulation = simulate(
            parts.model,
            parts.data,
            parts.rule,
            timeline,
            parts.work,
            seed=self.settings.seed,
            device=self.settings.device,
            hold=self.settings.hold,
            staleness=self.settings.staleness,
            evaluate_every=max(1, round(self.every / pace)),
            loss=parts.loss,
            faults=parts.faults,
        )
        if not parts.data.classes:
            raise UserError("pilots compare accuracies, which a regression has not: choose data with classes.")
        self.records = iter(simulation)
        self.size, self.available = simulation.memory.total, simulation.memory.available

    def _note(self, record: Record) -> None:
        assert record.accuracy is not None
        self.times.append(record.time)
        self.accuracies.append(record.accuracy)
        self.seconds = first_reached(self.times, self.curve, self.target)


def _timeline(settings: RunSettings, seconds: float, piece: float) -> Timeline:
    """The steps of this many virtual seconds."""
    steps = ceil(1.1 * seconds / piece * settings.clients / settings.k) + 1
    while True:
        made = timeline_of(replace(settings, steps=steps))
        if made.times[-1] >= seconds:
            return made.head(int(np.searchsorted(made.times, seconds)) + 1)
        steps *= 2
