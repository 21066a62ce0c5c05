"""Recommends a k: the one that reached the target soonest in pilot runs or, without pilots, the theory's."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log

import numpy as np

from kasync.errors import UserError
from kasync.theory.planning import PlanRow


@dataclass(frozen=True)
class Pilot:
    """Short paired runs with one k: virtual seconds to the target per seed (inf: not reached), accuracy at the end."""

    k: int
    seconds: Sequence[float]  # [seeds]
    accuracies: Sequence[float] = ()  # [seeds], after `until` virtual seconds, or where the target was reached
    lr: float | None = None  # where several learning rates were tried
    until: float = inf  # how long it ran; pilots that ran longest are compared where none reached the target

    def __post_init__(self) -> None:
        if len(self.seconds) == 0 or any(not second > 0 for second in self.seconds):
            raise UserError(f"the pilot of k={self.k} has seconds {list(self.seconds)}; give one above 0 per seed.")

    @property
    def typical_seconds(self) -> float:
        """Geometric mean over the seeds; infinite when one of them did not get there."""
        return geometric_mean(self.seconds) if self.reached else inf

    @property
    def reached(self) -> bool:
        return all(isfinite(second) for second in self.seconds)


@dataclass(frozen=True)
class Recommendation:
    """A k, why, and the score of every candidate (smaller is better)."""

    k: int
    reason: str
    scores: dict[int, float]
    lr: float | None = None  # the best for this k of those that were tried


def geometric_mean(values: Sequence[float]) -> float:
    return exp(float(np.mean([log(value) for value in values])))


def recommend(
    rows: Sequence[PlanRow], pilots: Sequence[Pilot] | None = None, target: float | None = None
) -> Recommendation:
    """From pilots if given: least time to the target, or most accuracy where no k reaches it; else the least bound.

    Several pilots of one k are several learning rates; a k is judged by its best. `target` is for the reason's words.
    """
    if not rows:
        raise UserError("there are no rows to choose from; plan at least one k.")
    if not pilots:
        return _by_theory(rows)
    unknown = sorted({pilot.k for pilot in pilots} - {row.k for row in rows})
    if unknown:
        raise UserError(f"pilots were run for k={unknown}, which the plan does not have; plan those k as well.")
    if any(pilot.reached for pilot in pilots):
        return _by_time(rows, pilots, "the target" if target is None else f"accuracy {target:g}")
    return _by_accuracy(pilots, None if target is None else f"accuracy {target:g}")


def told_apart(first: Pilot, second: Pilot) -> bool:
    """Whether the paired ratios of the two times lie on one side of 1 by two standard errors; one seed says nothing."""
    ratios = np.log(second.seconds) - np.log(first.seconds)  # [seeds]
    if len(ratios) < 2:
        return False
    return bool(abs(ratios.mean()) > 2 * ratios.std(ddof=1) / np.sqrt(len(ratios)))


def best_of(pilots: Sequence[Pilot]) -> dict[int, Pilot]:
    """For each k, ascending, its best pilot: soonest at the target, then longest in the race, then most accurate."""
    found: dict[int, Pilot] = {}
    for pilot in sorted(pilots, key=lambda one: (one.k, one.typical_seconds, -one.until, -_accuracy(one))):
        found.setdefault(pilot.k, pilot)
    return found


def _by_time(rows: Sequence[PlanRow], pilots: Sequence[Pilot], target: str) -> Recommendation:
    best = best_of(pilots)
    scores = {k: pilot.typical_seconds for k, pilot in best.items()}
    first, *others = sorted(scores, key=lambda k: scores[k])
    row = next(row for row in rows if row.k == first)
    if not others:
        lead = "as the only one tried"
    elif isfinite(scores[others[0]]):
        lead = f"{_sooner(scores[first], scores[others[0]])} k={others[0]} ({scores[others[0]]:.4g} s"
        lead += ")" if told_apart(best[first], best[others[0]]) else ", which the seeds cannot tell apart)"
    else:
        lead = "before any other did"
    rate = best[first].lr
    reason = (
        f"k={first}{'' if rate is None else f' at learning rate {rate:g}'} reached {target} in {scores[first]:.4g} "
        f"virtual seconds, {lead}; a step takes {row.seconds_per_step:.3g} s and its gradients are "
        f"{row.mean_staleness:.3g} steps stale on average."
    )
    return Recommendation(first, reason, scores, rate)


def _sooner(first: float, second: float) -> str:
    return "as soon as" if first == second else f"{1 - first / second:.1%} sooner than"


def _by_accuracy(pilots: Sequence[Pilot], target: str | None) -> Recommendation:
    if not all(len(pilot.accuracies) for pilot in pilots):
        raise UserError(
            "no k reached the target in its pilot; lower the target, lengthen the pilots or pass accuracies."
        )
    longest = max(pilot.until for pilot in pilots)
    best = best_of(pilots)  # of the rates of one k, those that were stopped early come last
    scores = {k: -_accuracy(pilot) if pilot.until == longest else inf for k, pilot in best.items()}
    first = min(scores, key=lambda k: scores[k])
    rate = best[first].lr
    missed = "" if target is None else f" (none reached {target}; give the pilots more --seconds or lower the target)"
    time = "the same virtual time" if longest == inf else f"the same {longest:.4g} virtual seconds"
    reason = (
        f"k={first}{'' if rate is None else f' at learning rate {rate:g}'} was the most accurate after {time}, "
        f"with {-scores[first]:.4f}{missed}."
    )
    return Recommendation(first, reason, scores, rate)


def _accuracy(pilot: Pilot) -> float:
    return float(np.mean(pilot.accuracies)) if len(pilot.accuracies) else -inf


def _by_theory(rows: Sequence[PlanRow]) -> Recommendation:
    scores = {row.k: row.bound for row in rows if row.bound is not None}
    if not scores:
        raise UserError("nothing to judge k by: pass pilots, or plan with the constants of the problem.")
    best = min(rows, key=lambda row: scores.get(row.k, inf))
    dominant = max(best.terms, key=lambda name: best.terms[name])
    return Recommendation(
        best.k,
        f"k={best.k} has the smallest bound on mean |grad F|^2 ({scores[best.k]:.4g}, mostly {dominant}) after the "
        f"{best.steps} steps that fit into the time, at learning rate {best.rate:.3g}.",
        scores,
        best.rate,
    )
