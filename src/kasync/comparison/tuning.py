"""Equal tuning: every rule gets the same number of tries, its rate first and then its main knob, coarse to fine.

Tries are judged on samples held out from training, under seeds of their own; the test set is never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kasync import checks
from kasync.comparison import running
from kasync.comparison.contenders import FIRST_RATE, Entrant
from kasync.errors import UserError, unknown
from kasync.experiments.display import Display
from kasync.experiments.tune import FIRST_SEED, HELD_OUT

Place = tuple[tuple[str, float], ...]  # settings in the order of their names
WORST = -math.inf


@dataclass(frozen=True)
class Tune:
    """`budget` settings for every rule, each judged by its mean over `seeds` on the share `held_out` of the samples.

    knobs    rule or label -> (name of a setting, values to begin with), for rules of one's own, or instead of ours
    """

    budget: int = 8
    seeds: int = 3
    held_out: float = HELD_OUT
    spacing: float = 10.0  # factor between the first rates
    knobs: Mapping[str, tuple[str, Sequence[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.count("budget", self.budget)
        checks.count("seeds of tune", self.seeds)
        if not 0.0 < self.held_out < 1.0:
            raise UserError(f"held_out = {self.held_out}: give a share between 0 and 1, such as 0.1.")
        if not self.spacing > 1.0:
            raise UserError(f"spacing = {self.spacing}: give a factor above 1 between neighbouring rates.")

    @property
    def numbers(self) -> range:
        """The seeds, which are not those of comparisons."""
        return range(FIRST_SEED, FIRST_SEED + self.seeds)


class Search:
    """The tries of one rule: proposes the next settings and remembers the score of each; higher is better."""

    def __init__(self, contender: Entrant, how: Tune) -> None:
        self.contender, self.how = contender, how
        self.rate = contender.rate
        self.knob, self.grid = _knob(contender, how)
        self.scores: dict[Place, float] = {}
        first = (
            {} if self.rate is None else {self.rate: contender.value(self.rate) or contender.facts.start or FIRST_RATE}
        )
        if self.knob is not None and contender.value(self.knob) is not None:
            first[self.knob] = contender.value(self.knob)
        self.first = first
        knob_tries = 0 if self.knob is None else how.budget if self.rate is None else how.budget // 3
        self.rate_tries = how.budget - knob_tries

    def propose(self) -> dict[str, float] | None:
        """The settings to try next; None when the tries are used up, or there is nothing else to try."""
        if not self.scores:
            return self.first
        if len(self.scores) >= self.how.budget:
            return None
        ways = [self._next_rates, self._next_knobs]
        for way in ways if len(self.scores) < self.rate_tries else ways[::-1]:
            for found in way():
                if _place(found) not in self.scores:
                    return found
        return None

    def tell(self, settings: Mapping[str, float], score: float) -> None:
        self.scores[_place(settings)] = score if math.isfinite(score) else WORST

    @property
    def best(self) -> dict[str, float]:
        """The settings with the highest score; of equal ones those with the smaller rate."""
        return min(
            map(dict, self.scores), key=lambda each: (-self.scores[_place(each)], each.get(self.rate or "", 0.0))
        )

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest of those tried, so that one beyond may be better."""
        rates = self._rates()
        return len(rates) > 1 and self.best[self.rate or ""] in (rates[0], rates[-1])

    def _rates(self) -> list[float]:
        """The rates tried with the best knob."""
        if self.rate is None:
            return []
        best = {name: value for name, value in self.best.items() if name != self.rate}
        alike = (dict(each) for each in self.scores)
        return sorted(each[self.rate] for each in alike if {n: v for n, v in each.items() if n != self.rate} == best)

    def _next_rates(self) -> Iterator[dict[str, float]]:
        """One beyond the end where that was best, then halfway (in the logarithm) to the better neighbour."""
        if self.rate is None:
            return
        rate, rates, best = self.rate, self._rates(), self.best
        place, most = rates.index(best[rate]), self.contender.facts.rate_most
        found = []
        if place == len(rates) - 1 and rates[place] < most:
            found.append(min(most, rates[place] * self.how.spacing))
        if place == 0:
            found.append(rates[0] / self.how.spacing)
        neighbours = [rates[each] for each in (place - 1, place + 1) if 0 <= each < len(rates)]
        neighbours.sort(key=lambda value: -self.scores[_place({**best, rate: value})])
        found += [math.sqrt(best[rate] * value) for value in neighbours]
        yield from ({**best, rate: float(f"{value:.6g}")} for value in found)

    def _next_knobs(self) -> Iterator[dict[str, float]]:
        """The values of the grid, the nearest to the best one first; after them halfway to the neighbours."""
        if self.knob is None:
            return
        knob, best = self.knob, self.best
        here = best.get(knob, self.grid[0])
        yield from ({**best, knob: value} for value in sorted(self.grid, key=lambda value: abs(value - here)))
        tried = sorted(each[knob] for each in map(dict, self.scores) if each == {**best, knob: each.get(knob)})
        if not any(isinstance(value, int) for value in self.grid):
            place = tried.index(here) if here in tried else 0
            for other in tried[place + 1 : place + 2] + tried[max(0, place - 1) : place]:
                yield {**best, knob: (here + other) / 2}


Tries = Sequence[tuple[Entrant, Mapping[str, float]]]
Attempt = Callable[[Tries], Sequence[tuple[Sequence[float], str]]]  # the scores of each try, one for each seed, and why


def searched(contenders: Sequence[Entrant], how: Tune, attempt: Attempt) -> tuple[list[Entrant], list[dict[str, Any]]]:
    """The contenders with the settings that were best, and a row for everything that was tried.

    `attempt` makes the runs of some tries, one of each rule, and gives their scores: higher is better, and a run that
    failed or diverged has minus infinity.
    """
    for name in how.knobs:
        if name not in {each.label for each in contenders} | {each.facts.name for each in contenders}:
            raise unknown("rule in knobs", name, [each.label for each in contenders])
    searches = [Search(each, how) for each in contenders]
    rows: list[dict[str, Any]] = []
    while tries := [(search, found) for search in searches if (found := search.propose()) is not None]:
        made = attempt([(search.contender, settings) for search, settings in tries])
        for (search, settings), (scores, why) in zip(tries, made, strict=True):
            lost = sum(not math.isfinite(each) for each in scores)
            mean = None if lost else sum(scores) / len(scores)
            search.tell(settings, WORST if mean is None else mean)
            about = {"score": mean, "lost": lost, "why": why}
            rows.append({"rule": search.contender.label, "settings": dict(settings), **about})
    for search in searches:
        for row in rows:
            if row["rule"] == search.contender.label:
                row["chosen"] = row["settings"] == search.best
                row["at_edge"] = row["chosen"] and search.at_edge
    return [search.contender.having(**search.best) for search in searches], rows


def tuned(
    task: running.Contest,
    contenders: Sequence[Entrant],
    how: Tune,
    score: Callable[[Any], float],
    folder: Path,
    display: Display,
    jobs: int,
) -> tuple[list[Entrant], list[dict[str, Any]]]:
    """`searched` with runs of the task on held-out samples."""
    held = replace(task, held_out=how.held_out)

    def attempt(tries: Tries) -> list[tuple[list[float], str]]:
        runs = [
            [running.planned(held, one.having(**settings), seed) for seed in how.numbers] for one, settings in tries
        ]
        failed = running.make([one for each in runs for one in each], folder, display, jobs)
        told = []
        for planned in runs:
            made = [running.result(folder, one.key) for one in planned]
            scores = [score(run) if run.finished else WORST for run in made]
            told.append((scores, next((failed[one.key] for one in planned if one.key in failed), "")))
        return told

    return searched(contenders, how, attempt)


def _knob(contender: Entrant, how: Tune) -> tuple[str | None, tuple[float, ...]]:
    """The main knob of a rule and the values to begin with."""
    facts = contender.facts
    name, values = how.knobs.get(contender.label) or how.knobs.get(facts.name) or (facts.knob, facts.grid)
    return (name, tuple(values)) if name is not None and contender.knows(name) else (None, ())


def _place(settings: Mapping[str, float]) -> Place:
    return tuple(sorted(settings.items()))
