"""Convergence of WKAFL once gradients are clipped to the estimate, however stale they are: Theorem 2."""

import numpy as np

from kasync.theory.bound import Bound, Condition
from kasync.theory.constants import Floats, StageTwo
from kasync.theory.sums import Momentum, blame_sums, decayed_ahead, drift_sums, momentum_sums


def theorem_two(constants: StageTwo) -> Bound:
    """Theorem 2: (1/J) sum_j V_j |grad F(w_j)|^2 <= variance + non_iid + staleness + initial_gap.

    C = sigma_c^2 + 2 M_e sigma_c^2 + sigma_e^2 is split: what the estimate misses is `variance`, what the selected
    gradients differ from it is `non_iid`.
    """
    rates = constants.rates()  # [J]
    # The model a gradient was computed on no longer matters, so each sum starts at its own step: staleness 0.
    sums = momentum_sums(constants.momentum, constants.steps, max_staleness=0)
    error = constants.estimate_error**2
    drift = 3 * constants.smoothness**2 * constants.clip_ratio**2
    weight = 1.5 * rates * sums.sizes
    per_step = {
        "variance": weight * error * (1 + 2 * constants.spread_growth),
        "non_iid": weight * constants.spread**2,
        "staleness": rates * error * drift * drift_sums(sums, (rates * sums.sizes) ** 2),
        "initial_gap": np.full(constants.steps, constants.initial_gap / constants.steps),
    }
    gained, lost = _gains_and_losses(constants, sums, rates, drift)
    conditions = (_rate_condition(constants, sums, rates), _weight_condition(gained, lost))
    return Bound("Theorem 2 (stage two)", per_step, gained - lost, conditions)


def _gains_and_losses(constants: StageTwo, sums: Momentum, rates: Floats, drift: float) -> tuple[Floats, Floats]:
    """The two halves of V_j = gained_j - lost_j, both [J].

    The k-sum of alpha^(l-k) (l-k) splits at t, so V_j's triple sum is one backward decay sum over t of the same H_t
    that stage one needs, taken at staleness 0.
    """
    gained = rates * sums.sizes / 2
    spread = 3 * constants.spread_growth * decayed_ahead(rates, constants.momentum)
    moves = rates**2 * sums.sizes * blame_sums(sums, rates, max_staleness=0)
    return gained, spread + drift * decayed_ahead(moves, constants.momentum)


def _rate_condition(constants: StageTwo, sums: Momentum, rates: Floats) -> Condition:
    step = int((rates * sums.sizes).argmax())
    slope = constants.smoothness * sums.sizes[step]
    limit = 1 / slope if slope > 0 else np.inf
    return Condition("rate", "eta_j <= 1 / (L s_j)", float(rates[step]), float(limit), step + 1)


def _weight_condition(gained: Floats, lost: Floats) -> Condition:
    share = lost / gained
    step = int(share.argmax())
    return Condition(
        "weights", "V_j >= 0, as (what V_j subtracts) / (eta_j s_j / 2)", float(share[step]), 1.0, step + 1
    )
