"""The theorems' nested sums in one pass, by recursions that only ever add positive numbers.

Arrays hold step j at index j - 1. `momentum` is the paper's alpha, `decay sums` are sums over l of alpha^(j-l).
No difference of large numbers is formed except in the sliding windows, so J = 10,000 keeps about twelve digits.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def decayed(values: Floats, momentum: float) -> Floats:
    """D_j = sum_{l<=j} momentum^(j-l) values_l, through D_j = momentum D_{j-1} + values_j [J]."""
    fading = accumulate(values.tolist(), lambda total, value: momentum * total + value)
    return np.fromiter(fading, dtype=np.float64, count=len(values))


def decayed_ahead(values: Floats, momentum: float) -> Floats:
    """A_j = sum_{l>=j} momentum^(l-j) values_l, the same recursion run backwards [J]."""
    return decayed(values[::-1], momentum)[::-1]


def before(values: Floats) -> Floats:
    """The value of the step before, 0 at the first step [J]."""
    return np.concatenate(([0.0], values[:-1]))


def after(values: Floats) -> Floats:
    """The value of the step after, 0 at the last step [J]."""
    return np.concatenate((values[1:], [0.0]))


@dataclass(frozen=True)
class Momentum:
    """The decay sums that both theorems share, for one momentum, one staleness and J steps."""

    momentum: float
    sizes: Floats  # s_j = sum_{l<=j} momentum^(j-l)                        [J]
    reach: Floats  # j - tau_j = min(max_staleness, j - 1): how far a gradient of step j may look back [J]
    lags: Floats  # X_j = sum_{l<=j} momentum^(j-l) (j - tau_l)             [J]


def momentum_sums(momentum: float, steps: int, max_staleness: int) -> Momentum:
    """s_j, j - tau_j and X_j, with tau_l = max(1, l - max_staleness)."""
    sizes = decayed(np.ones(steps), momentum)
    reach = np.minimum(np.arange(steps), max_staleness).astype(np.float64)
    # From j - 1 to j every term of X grows by its weight, and the new term j - tau_j joins.
    lags = decayed(reach + momentum * before(sizes), momentum)
    return Momentum(momentum, sizes, reach, lags)


def drift_sums(sums: Momentum, moves: Floats) -> Floats:
    """D_j = sum_{l<=j} momentum^(j-l) (j - tau_l) sum_{t=tau_l}^{j-1} moves_t, for every j [J].

    With x_l = j - tau_l and y_l = sum_{t=tau_l}^{j-1} moves_t, going from j - 1 to j adds 1 to x_l and moves_{j-1} to
    y_l, so that sum x y, sum x, sum y and sum 1 (weighted by momentum^(j-l)) feed each other.
    """
    momentum, moved = sums.momentum, before(moves)
    windows = window_before(moves, sums.reach)  # y of the newest term l = j
    reached = decayed(windows + momentum * moved * before(sums.sizes), momentum)  # sum y
    carried = moved * before(sums.lags) + before(reached) + moved * before(sums.sizes)
    return decayed(sums.reach * windows + momentum * carried, momentum)


def window_before(values: Floats, reach: Floats) -> Floats:
    """sum of the reach_j values before step j [J]."""
    totals = np.concatenate(([0.0], np.cumsum(values)))
    ends = np.arange(len(values))
    return totals[ends] - totals[ends - reach.astype(np.int64)]


def blame_sums(sums: Momentum, rates: Floats, max_staleness: int) -> Floats:
    """H_t = sum_{j>t} rates_j sum_{l<=j, tau_l<=t} momentum^(j-l) (j - tau_l): how much later steps feel move t [J].

    Terms l <= t factor into (their decay up to t) times (the decay from t on); terms t < l <= t + max_staleness are
    each a backward decay sum of their own, and are added as a sliding window.
    """
    momentum = sums.momentum
    rate_ahead = decayed_ahead(rates, momentum)  # sum_{j>=l} rates_j momentum^(j-l)
    # sum_{j>=l} rates_j momentum^(j-l) (j-l): going one step back adds 1 to every distance.
    distance_ahead = decayed_ahead(momentum * after(rate_ahead), momentum)
    old = sums.sizes * distance_ahead + sums.lags * momentum * after(rate_ahead)
    new = distance_ahead + sums.reach * rate_ahead
    totals = np.concatenate(([0.0], np.cumsum(new)))
    steps = np.arange(1, len(rates) + 1)
    ends = np.minimum(steps + min(max_staleness, len(rates)), len(rates))
    return old + totals[ends] - totals[steps]
