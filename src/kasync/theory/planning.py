"""What each k costs and brings, with or without pilot runs: pace, staleness, time to accuracy, and which k to take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, isfinite, log

import numpy as np

from kasync.errors import UserError
from kasync.theory.fitting import TimelineLike, Whole, turnarounds, waits
from kasync.theory.remarks import at_rate, best_rate, constant_rate
from kasync.theory.theorems import Floats, StageOne

PROBE = 5  # steps to begin with where nothing is known of the pace
LONGEST = 50_000  # steps played when no virtual time is asked for
MakeTimeline = Callable[[int, int], TimelineLike]  # k, steps -> timeline


def over_one_horizon(
    timeline: MakeTimeline, ks: Sequence[int], seconds: float | None
) -> tuple[dict[int, TimelineLike], float]:
    """({k: timeline}, seconds): the same virtual time for every k, ascending; the smallest k chooses it."""
    smallest, *others = sorted(set(ks))
    first = _typical(timeline, smallest) if seconds is None else over(timeline, smallest, seconds, PROBE)
    horizon = float(first.times[-1])
    deliveries = smallest * len(first.times)
    # A fleet hands in about as much work whatever k is, so the steps can be guessed.
    return {smallest: first} | {k: over(timeline, k, horizon, deliveries // k + 1) for k in others}, horizon


def _typical(timeline: MakeTimeline, k: int) -> TimelineLike:
    """30 pieces of work per client in a fleet of up to 1,000, down to 3 in a large one, if that is not too long."""
    population = timeline(k, 1).population
    pieces = min(30.0, max(3.0, 30_000 / population))
    return timeline(k, max(1, min(LONGEST, round(pieces * population / k))))


def over(timeline: MakeTimeline, k: int, seconds: float, guess: int) -> TimelineLike:
    """The steps of the first `seconds` of virtual time, or all there are; `guess` is how many that may be."""
    steps = guess
    while True:
        made = timeline(k, steps)
        if made.clients.shape[1] != k:
            raise UserError(f"the timeline for k={k} delivers {made.clients.shape[1]} at a step; make it for that k.")
        reached = float(made.times[-1])
        if reached >= seconds or len(made.times) < steps:
            return _until(made, seconds)
        steps *= 2 if reached == 0 else min(64, max(2, int(1.1 * seconds / reached) + 1))


@dataclass(frozen=True)
class Cut:
    """The beginning of a timeline."""

    clients: Whole  # [J, k]
    versions: Whole  # [J, k]
    times: Floats  # [J]
    population: int


def _until(timeline: TimelineLike, seconds: float) -> TimelineLike:
    """The steps up to the first that ends at or after the given second."""
    stop = int(np.searchsorted(timeline.times, seconds)) + 1
    return Cut(timeline.clients[:stop], timeline.versions[:stop], timeline.times[:stop], timeline.population)


def smoothed(times: Sequence[float] | Floats, values: Sequence[float] | Floats, window: float) -> Floats:
    """[n] the mean of the values of the last `window` seconds, at each of the ascending times [n].

    The window is one of time, not of points: a curve with few points must not lag behind one with many.
    """
    at = np.asarray(times, dtype=np.float64)
    sums = np.concatenate(([0.0], np.cumsum(np.asarray(values, dtype=np.float64))))
    after = np.arange(1, len(at) + 1)
    first = np.minimum(np.searchsorted(at, at - window, side="right"), after - 1)  # its own value always counts
    return (sums[after] - sums[first]) / (after - first)


def first_reached(times: Sequence[float] | Floats, values: Sequence[float] | Floats, target: float) -> float:
    """The time at which the curve first reaches the target, between two points on a straight line; inf if never."""
    places = np.flatnonzero(np.asarray(values) >= target)
    if len(places) == 0:
        return inf
    place = int(places[0])
    if place == 0:
        return float(times[0])
    before, there = values[place - 1], values[place]
    share = (target - before) / (there - before)
    return float(times[place - 1] + share * (times[place] - times[place - 1]))


QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class PlanRow:
    """What one k means for a fleet."""

    k: int
    seconds_per_step: float
    mean_staleness: float
    staleness_quantiles: Mapping[float, float]
    max_staleness: int
    idle_share: float  # of a client's time between receiving a model and the update that uses its work
    fairness: float  # Jain's index of deliveries per client: 1 when all deliver equally often, 1/clients when one does
    fewest_deliveries: int
    median_deliveries: float
    most_deliveries: int
    sync_seconds_per_step: float | None = None  # waiting for all of k drawn clients
    sync_idle_share: float | None = None
    steps: int | None = None  # that fit into the virtual time
    rate: float | None = None  # the theory's best constant learning rate for them
    terms: Mapping[str, float] = field(default_factory=dict)  # of the bound on mean |grad F|^2 over it

    @property
    def gradients_per_second(self) -> float:
        return self.k / self.seconds_per_step

    @property
    def idle_saved(self) -> float | None:
        """Share of a client's time that no longer goes into waiting, against the synchronous server."""
        return None if self.sync_idle_share is None else self.sync_idle_share - self.idle_share

    @property
    def bound(self) -> float | None:
        """The theory's bound on mean |grad F|^2 over the virtual time; None without constants."""
        return sum(self.terms.values()) if self.terms else None


def plan(
    ks: Sequence[int],
    timeline: MakeTimeline,
    sync_timeline: MakeTimeline | None = None,
    constants: StageOne | None = None,
    horizon_seconds: float | None = None,
    budget_seconds: float | None = None,
    staleness_share: float = 0.9,
) -> tuple[PlanRow, ...]:
    """One row per k, all over the same virtual time, each from a K-async timeline `timeline(k, steps)`.

    sync_timeline    the synchronous server's, for what is saved against it
    constants        the problem's, measured or guessed; k, steps, staleness and rate in them are replaced for each row
    horizon_seconds  the virtual time; without it, 30 pieces of work per client, fewer in a fleet above 1,000
    budget_seconds   the virtual time that training may take, for the theory's steps; without it, the horizon
    staleness_share  the quantile of staleness that stands for the largest in the theorem: at 1.0 it is the theorem,
                     whose worst case speaks for full synchrony wherever one client is slow; below, a rule of thumb
    """
    if not ks:
        raise UserError("ks is empty; name at least one k to plan for.")
    for name, seconds in (("horizon_seconds", horizon_seconds), ("budget_seconds", budget_seconds)):
        if seconds is not None and not 0 < seconds < np.inf:
            raise UserError(f"{name}={seconds} must be a finite number above 0.")
    if not 0 <= staleness_share <= 1:
        raise UserError(f"staleness_share={staleness_share} must lie between 0 and 1.")
    made, horizon = over_one_horizon(timeline, ks, horizon_seconds)
    work = work_seconds(made[min(ks)])  # uploads wait least where k is smallest, so durations show best there
    rows = []
    for k, one in made.items():
        row = _row(k, one, work)
        if sync_timeline is not None:
            sync = over(sync_timeline, k, horizon, PROBE)
            row = replace(row, sync_seconds_per_step=_pace(sync), sync_idle_share=idle_share(sync, work))
        rows.append(
            row if constants is None else _with_theory(row, constants, budget_seconds or horizon, one, staleness_share)
        )
    return tuple(rows)


def fairness(deliveries: Floats) -> float:
    """Jain's index (sum n)^2 / (clients sum n^2) of deliveries per client [clients]."""
    counts = np.asarray(deliveries, dtype=np.float64)
    return float(counts.sum() ** 2 / (len(counts) * np.square(counts).sum()))


def work_seconds(timeline: TimelineLike) -> Floats:
    """Each client's mean seconds per piece of work [clients]; the mean of the others for one that never delivered."""
    seconds = (turnarounds(timeline) - waits(timeline)).ravel()
    owners = np.asarray(timeline.clients).ravel()
    counts = np.bincount(owners, minlength=timeline.population)
    sums = np.bincount(owners, weights=seconds, minlength=timeline.population)
    seen = counts > 0
    means = sums[seen] / counts[seen]
    out = np.full(timeline.population, means.mean())
    out[seen] = means
    return out


def idle_share(timeline: TimelineLike, work: Floats) -> float:
    """1 - (time the deliverers worked) / (time from their model to the update that used the work); work [clients]."""
    whole = float(turnarounds(timeline).sum())
    return max(0.0, 1 - float(work[timeline.clients].sum()) / whole) if whole > 0 else 0.0


def _row(k: int, timeline: TimelineLike, work: Floats) -> PlanRow:
    staleness = _staleness(timeline)
    deliveries = np.bincount(timeline.clients.ravel(), minlength=timeline.population)  # [clients]
    return PlanRow(
        k=k,
        seconds_per_step=_pace(timeline),
        mean_staleness=float(staleness.mean()),
        staleness_quantiles={share: float(np.quantile(staleness, share)) for share in QUANTILES},
        max_staleness=int(staleness.max()),
        idle_share=idle_share(timeline, work),
        fairness=fairness(deliveries.astype(np.float64)),
        fewest_deliveries=int(deliveries.min()),
        median_deliveries=float(np.median(deliveries)),
        most_deliveries=int(deliveries.max()),
    )


def _staleness(timeline: TimelineLike) -> Whole:
    return np.arange(len(timeline.times))[:, None] - timeline.versions  # [J, k]


def _pace(timeline: TimelineLike) -> float:
    return float(timeline.times[-1]) / len(timeline.times)


def _with_theory(row: PlanRow, constants: StageOne, seconds: float, timeline: TimelineLike, share: float) -> PlanRow:
    """Theorem 1 at its own best constant rate for the steps that fit into the time."""
    steps = max(1, int(seconds / row.seconds_per_step))
    largest = int(np.ceil(np.quantile(_staleness(timeline), share)))
    here = replace(constants, k=row.k, steps=steps, max_staleness=largest, learning_rates=1.0, squared_weights=None)
    rate = best_rate(here)
    return replace(row, steps=steps, rate=rate, terms=constant_rate(at_rate(here, rate)).terms)


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
