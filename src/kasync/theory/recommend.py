"""Which k should I use? The one that reached the target soonest in pilot runs, or, without pilots, the theory's."""

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
    accuracies: Sequence[float] = ()  # [seeds], after the same virtual time for every k

    def __post_init__(self) -> None:
        if len(self.seconds) == 0 or any(not second > 0 for second in self.seconds):
            raise UserError(f"the pilot of k={self.k} has seconds {list(self.seconds)}; give one above 0 per seed.")

    @property
    def typical_seconds(self) -> float:
        """Geometric mean over the seeds; infinite when one of them did not get there."""
        return exp(float(np.mean([log(second) for second in self.seconds]))) if self.reached else inf

    @property
    def reached(self) -> bool:
        return all(isfinite(second) for second in self.seconds)


@dataclass(frozen=True)
class Recommendation:
    """A k, why, and the score of every candidate (smaller is better)."""

    k: int
    reason: str
    scores: dict[int, float]


def recommend(rows: Sequence[PlanRow], pilots: Sequence[Pilot] | None = None) -> Recommendation:
    """From pilots if given: least time to the target, or most accuracy where no k reaches it; else the least bound."""
    if not rows:
        raise UserError("there are no rows to choose from; plan at least one k.")
    if not pilots:
        return _by_theory(rows)
    unknown = sorted({pilot.k for pilot in pilots} - {row.k for row in rows})
    if unknown:
        raise UserError(f"pilots were run for k={unknown}, which the plan does not have; plan those k as well.")
    if any(pilot.reached for pilot in pilots):
        return _by_time(rows, pilots)
    return _by_accuracy(pilots)


def _by_time(rows: Sequence[PlanRow], pilots: Sequence[Pilot]) -> Recommendation:
    scores = {pilot.k: pilot.typical_seconds for pilot in pilots}
    best, *others = sorted(scores, key=lambda k: scores[k])
    row = next(row for row in rows if row.k == best)
    reason = (
        f"k={best} reached the target in {scores[best]:.4g} virtual seconds, sooner than the others; a step takes "
        f"{row.seconds_per_step:.4g} s and the mean staleness is {row.mean_staleness:.3g}"
    )
    if others:
        reason += f". Next is k={others[0]} with {scores[others[0]]:.4g} s"
    return Recommendation(best, reason + ".", scores)


def _by_accuracy(pilots: Sequence[Pilot]) -> Recommendation:
    if not all(len(pilot.accuracies) for pilot in pilots):
        raise UserError(
            "no k reached the target in its pilot; lower the target, lengthen the pilots or pass accuracies."
        )
    scores = {pilot.k: -float(np.mean(pilot.accuracies)) for pilot in pilots}
    best = min(scores, key=lambda k: scores[k])
    return Recommendation(
        best,
        f"no k reached the target in the pilots; k={best} was the most accurate after the same virtual time, "
        f"with {-scores[best]:.4f}.",
        scores,
    )


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
    )
