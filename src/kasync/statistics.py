"""Means over seeds with their intervals, paired differences, and p-values corrected for many comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
FEW = 5  # seeds from which on an interval is drawn and not their range
LAST = 10  # evaluations that count as the end of a run, the paper's A_num
METHOD = (
    "Mean over seeds ± half width of the two-sided 95% interval of Student's t with (seeds - 1) degrees of freedom: "
    "12.7 standard errors for 2 seeds, 4.3 for 3, 2.8 for 5."
)

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values and the half width of its interval, which a single value does not have."""

    mean: float
    half: float | None
    count: int

    @property
    def low(self) -> float | None:
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        return None if self.half is None else self.mean + self.half

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of zero."""
        return self.half is not None and abs(self.mean) > self.half


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """The mean of the values that are numbers, or None when there is none."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)], np.float64)
    if not len(known):
        return None
    half = None if len(known) < 2 else t_quantile(len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))
    return Estimate(float(known.mean()), half, len(known))


def differences(ours: Mapping[int, float | None], theirs: Mapping[int, float | None]) -> list[float]:
    """Ours minus theirs for every seed that has both, in the order of the seeds."""
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    return [one - other for one, other in pairs if one is not None and other is not None]


def paired(ours: Mapping[int, float | None], theirs: Mapping[int, float | None]) -> Estimate | None:
    """Ours minus theirs, seed by seed: what the seeds have in common (data, arrivals, start) cancels out."""
    return estimate(differences(ours, theirs))


def ratios(ours: Mapping[int, float | None], theirs: Mapping[int, float | None]) -> list[float]:
    """Ours divided by theirs for every seed that has both, in the order of the seeds."""
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    return [one / other for one, other in pairs if one is not None and other]


def p_value(differences: Sequence[float]) -> float | None:
    """Two-sided p of the paired t-test: so large a mean difference by chance alone. None for fewer than two.

    It is below 1 - LEVEL exactly where the interval of `estimate` excludes zero.
    """
    from scipy.special import stdtr

    known = np.array([value for value in differences if math.isfinite(value)], np.float64)
    if len(known) < 2:
        return None
    error = float(known.std(ddof=1)) / math.sqrt(len(known))
    if error == 0:
        return 1.0 if known[0] == 0 else 0.0  # the same difference every time
    return float(2.0 * stdtr(len(known) - 1, -abs(float(known.mean())) / error))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: reject where the result is below 0.05, and the chance of any false one is below 5%.

    Those that are None are not counted as tests. Holm: A Simple Sequentially Rejective Multiple Test Procedure (1979).
    """
    places = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(places):
        largest = max(largest, min(1.0, (len(places) - rank) * p))
        adjusted[place] = largest
    return adjusted


def bands(values: ArrayLike) -> tuple[Reals, Reals, Reals]:
    """Mean, low and high end [points] of rows by seed [seeds, points], to be drawn; NaN is left out.

    The ends of the interval; of fewer than FEW numbers, whose interval would fill any picture, the smallest and the
    largest; of one, NaN.
    """
    rows = np.asarray(values, np.float64)
    known = np.isfinite(rows)
    count = known.sum(0)  # [points]
    divisor = np.where(count > 0, count, np.nan)
    mean = np.where(known, rows, 0.0).sum(0) / divisor
    squares = np.where(known, np.square(rows - mean), 0.0).sum(0)
    errors = np.sqrt(squares / np.where(count > 1, (count - 1) * divisor, np.nan))
    factors = np.array([np.nan, np.nan, *(t_quantile(n - 1) for n in range(2, len(rows) + 1))])
    half = factors[count] * errors
    least, most = np.where(known, rows, np.inf).min(0), np.where(known, rows, -np.inf).max(0)
    ranged = (count > 1) & (count < FEW)
    return mean, np.where(ranged, least, mean - half), np.where(ranged, most, mean + half)


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t with P(|T| < t) = level."""
    from scipy.special import stdtrit  # what scipy.stats.t calls; scipy.stats itself takes long to import

    return float(stdtrit(freedom, (1.0 + level) / 2.0))


def window(evaluations: int) -> int:
    """How many evaluations count as the end of a run: LAST, but never more than half of them, and one at least."""
    return max(1, min(LAST, evaluations // 2))


def reached(accuracies: ArrayLike, target: float) -> int | None:
    """The place of the first evaluation at or above the target."""
    places = np.flatnonzero(np.asarray(accuracies, np.float64) >= target)
    return int(places[0]) if len(places) else None


def final(values: ArrayLike) -> float:
    """Mean of the last evaluations [evaluations]."""
    curve = np.asarray(values, np.float64)
    return float(curve[-window(len(curve)) :].mean())


def stability(accuracies: ArrayLike) -> float:
    """Standard deviation of the natural logarithm of the last accuracies; NaN when one of them is 0.

    The population's (divided by n): the ten values are described, nothing is estimated from them, and it is what numpy
    computes by default. The sample's would be larger by the factor sqrt(10/9), 5%.
    """
    curve = np.asarray(accuracies, np.float64)
    ending = curve[-window(len(curve)) :]
    return float(np.std(np.log(ending))) if (ending > 0).all() else float("nan")
