"""Convergence of K-async SGD with momentum while staleness is bounded: Theorem 1 of the WKAFL paper."""

import numpy as np

from kasync.theory.bound import Bound, Condition
from kasync.theory.constants import Floats, StageOne
from kasync.theory.sums import Momentum, after, blame_sums, decayed, decayed_ahead, drift_sums, momentum_sums


def theorem_one(constants: StageOne) -> Bound:
    """Theorem 1: (1/J) sum_j (eta_j s_j / 2) E|grad F(w_j)|^2 <= variance + non_iid + staleness + initial_gap."""
    rates = constants.rates()  # [J]
    sums = momentum_sums(constants.momentum, constants.steps, constants.max_staleness)
    sizes = sums.sizes
    noise = constants.gradient_noise**2 / constants.batch_size
    # sigma_c^2/m sum_{k<=t} alpha^(t-k) sum_i p_ki^2, which A_j and B_t share   [J]
    fading_noise = noise * decayed(constants.squares(), constants.momentum)
    # eta_t^2 B_t: the index t of the printed B_j belongs to the sum it stands in   [J]
    moves = rates**2 * constants.smoothness**2 * sizes * fading_noise
    per_step = {
        "variance": rates**2 * constants.smoothness / 2 * sizes * fading_noise,
        "non_iid": rates * sizes * constants.heterogeneity**2,
        "staleness": rates * drift_sums(sums, moves),
        "initial_gap": np.full(constants.steps, constants.initial_gap / constants.steps),
    }
    conditions = (
        _rate_condition(constants, sums, rates),
        _staleness_condition(constants, sums, rates),
        _printed_condition(constants, sums, rates),
    )
    return Bound("Theorem 1 (stage one)", per_step, rates * sizes / 2, conditions)


def _rate_condition(constants: StageOne, sums: Momentum, rates: Floats) -> Condition:
    """eta_j <= 1 / (2 L s_j (1 + M_c/m)), the proof's; the theorem's text drops s_j and writes M_G."""
    growth = 1 + constants.noise_growth / constants.batch_size
    needed = rates * sums.sizes  # the limit is the same for all of these, so the largest decides
    step = int(needed.argmax())
    slope = 2 * constants.smoothness * growth * sums.sizes[step]
    limit = 1 / slope if slope > 0 else np.inf
    return Condition("rate", "eta_j <= 1 / (2 L s_j (1 + M_c/m))", float(rates[step]), float(limit), step + 1)


def _staleness_condition(constants: StageOne, sums: Momentum, rates: Floats) -> Condition:
    """What earlier moves cost later steps stays below what the steps themselves leave over, gradient by gradient.

    Summing the proof over j before comparing: for every k,
    L^2 (1 + M_c/m) sum_{t>=k} eta_t^2 s_t alpha^(t-k) H_t <= (1/4) sum_{j>=k} eta_j alpha^(j-k).
    """
    growth = 1 + constants.noise_growth / constants.batch_size
    blame = blame_sums(sums, rates, constants.max_staleness)
    cost = decayed_ahead(rates**2 * sums.sizes * blame, constants.momentum)
    spare = decayed_ahead(rates, constants.momentum)
    needed = constants.smoothness**2 * growth * cost / spare
    step = int(needed.argmax())
    formula = "L^2 (1 + M_c/m) sum_t eta_t^2 s_t alpha^(t-k) H_t / sum_j eta_j alpha^(j-k) <= 1/4"
    return Condition("staleness", formula, float(needed[step]), 0.25, step + 1)


def _printed_condition(constants: StageOne, sums: Momentum, rates: Floats) -> Condition:
    """The second condition as printed; its negative powers of alpha grow without limit, so it is only reported."""
    growth = 1 + constants.noise_growth / constants.batch_size
    needed = constants.smoothness**2 * growth * printed_sums(sums, rates)
    step = int(needed.argmax())
    formula = "L^2 (1 + M_c/m) sum_{t>=l} (J - tau_t) alpha^-t sum_{k=l}^t eta_k^2 s_k alpha^k < 1/4"
    return Condition("staleness as printed", formula, float(needed[step]), 0.25, step + 1, required=False)


def printed_sums(sums: Momentum, rates: Floats) -> Floats:
    """sum_{t=l}^J (J - tau_t) sum_{k=l}^t eta_k^2 s_k alpha^(k-t) for every l [J]; infinite where alpha is 0.

    Swapped, it is a running sum over k >= l of eta_k^2 s_k E_k with E_k = (J - tau_k) + E_{k+1} / alpha.
    """
    steps = len(rates)
    ahead = steps - np.arange(1, steps + 1) + sums.reach  # J - tau_t
    if sums.momentum > 0:
        expanding = decayed_ahead(ahead, 1 / sums.momentum)
    else:
        expanding = np.where(decayed_ahead(after(ahead), 1.0) > 0, np.inf, ahead)
    with np.errstate(over="ignore"):
        return np.cumsum((rates**2 * sums.sizes * expanding)[::-1])[::-1]
