"""What each k costs and brings before anything is trained: pace, staleness, waiting, fairness, theory's terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kasync.errors import UserError
from kasync.theory.arrivals import TimelineLike, Whole, turnarounds, waits
from kasync.theory.constants import Floats, StageOne
from kasync.theory.horizon import PROBE, MakeTimeline, over, over_one_horizon
from kasync.theory.remarks import at_rate, best_rate, constant_rate

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
