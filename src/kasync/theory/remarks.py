"""The theorems at a constant learning rate: the paper's orders, and closed forms with constants."""

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from kasync.errors import UserError
from kasync.theory.theorems import Floats, StageOne


def lemma_one(
    weights: Floats, squared_norms: Floats, gradient_noise: float, noise_growth: float, batch_size: int
) -> float:
    """Lemma 1: E|sum_i p_i g_i|^2 <= sigma_c^2/m sum p_i^2 + sum p_i (1 + p_i M_c/m) |grad F_i|^2.

    weights [k] sum to 1; squared_norms [k] are |grad F_i|^2 at the models the gradients were computed on.
    """
    p = np.asarray(weights, dtype=np.float64)
    norms = np.asarray(squared_norms, dtype=np.float64)
    if abs(p.sum() - 1) > 1e-4:
        raise UserError(f"weights sum to {p.sum():.6g}; Lemma 1 is about weights that sum to 1, so normalise them.")
    noise = gradient_noise**2 / batch_size * np.square(p).sum()
    return float(noise + (p * (1 + p * noise_growth / batch_size) * norms).sum())


def remark_one(rate: float, k: int, steps: int, heterogeneity: float, momentum: float) -> dict[str, float]:
    """Orders of Theorem 1's right side at one rate, equal weights: eta^2/K, eta G^2, eta^3 (1 + J^2 alpha^J)/K, 1/J."""
    return {
        "variance": rate**2 / k,
        "non_iid": rate * heterogeneity**2,
        "staleness": rate**3 * (1 + steps**2 * momentum**steps) / k,
        "initial_gap": 1 / steps,
    }


def remark_one_rate(k: int, steps: int, heterogeneity: float) -> dict[str, float]:
    """Orders of mean |grad F|^2 at eta = sqrt(K/J): O(1/sqrt(KJ) + 1/J + G^2), a linear speed-up in K when G = 0."""
    speedup = 1 / sqrt(k * steps)
    return {"variance": speedup, "non_iid": heterogeneity**2, "staleness": 1 / steps, "initial_gap": speedup}


def remark_two(rate: float, steps: int, estimate_error: float, spread: float, spread_growth: float) -> dict[str, float]:
    """Orders of Theorem 2's right side at one rate: eta C, split as Theorem 2 splits it, eta^3 and 1/J."""
    return {
        "variance": rate * estimate_error**2 * (1 + 2 * spread_growth),
        "non_iid": rate * spread**2,
        "staleness": rate**3,
        "initial_gap": 1 / steps,
    }


def remark_two_rate(steps: int, estimate_error: float, spread: float, spread_growth: float) -> dict[str, float]:
    """Orders of mean |grad F|^2 at eta = 1/sqrt(J): O(1/sqrt(J) + C)."""
    return {
        "variance": estimate_error**2 * (1 + 2 * spread_growth),
        "non_iid": spread**2,
        "staleness": 1 / steps,
        "initial_gap": 1 / sqrt(steps),
    }


@dataclass(frozen=True)
class ConstantRate:
    """Theorem 1 at one rate and equal weights, in closed form; never below the full sums of `theorem_one`."""

    rate: float
    terms: dict[str, float]  # of the bound on mean |grad F|^2
    largest_rate: float  # up to here both conditions hold

    @property
    def mean_squared_gradient(self) -> float:
        return sum(self.terms.values())

    @property
    def holds(self) -> bool:
        return self.rate <= self.largest_rate


def constant_rate(constants: StageOne) -> ConstantRate:
    """Theorem 1 for a constant rate and equal weights, with s = 1/(1-alpha) and W = sum_d alpha^d (d + tau_max)^2.

    variance L sigma^2 eta^2 s^2 / (2 m K), staleness eta^3 L^2 sigma^2 s^2 W / (m K), and so on, over mean eta s_j / 2.
    """
    if np.ndim(constants.learning_rates) or constants.squared_weights is not None:
        raise UserError("constant_rate needs one learning rate and equal weights; use theorem_one for anything else.")
    rate, smooth, steps = float(constants.rates()[0]), constants.smoothness, constants.steps
    size, window = _limits(constants)
    momentum = constants.momentum
    mean_size = size * (1 - momentum * size * (1 - momentum**steps) / steps)
    weight = rate * mean_size / 2
    noise = constants.gradient_noise**2 / (constants.batch_size * constants.k)
    terms = {
        "variance": smooth * noise * (rate * size) ** 2 / 2 / weight,
        "non_iid": 2 * constants.heterogeneity**2,
        "staleness": rate**3 * smooth**2 * noise * size**2 * window / weight,
        "initial_gap": constants.initial_gap / steps / weight,
    }
    return ConstantRate(rate, terms, largest_rate(constants))


def largest_rate(constants: StageOne) -> float:
    """The largest constant rate that meets both conditions of Theorem 1 for every J.

    eta <= 1 / (2 L s (1 + M_c/m)) and, from the staleness condition, L^2 (1 + M_c/m) eta^2 s W <= 1/4.
    """
    size, window = _limits(constants)
    growth = 1 + constants.noise_growth / constants.batch_size
    slope = 2 * constants.smoothness * max(size * growth, sqrt(growth * size * window))
    return 1 / slope if slope > 0 else np.inf


def best_rate(constants: StageOne) -> float:
    """The allowed constant rate with the least bound; the given one where any rate does (no noise and no gap).

    The bound is a eta + b eta^2 + c / eta + 2 G^2, least at the one positive root of 2 b eta^3 + a eta^2 = c.
    """
    terms = constant_rate(at_rate(constants, 1.0)).terms
    roots = np.roots([2 * terms["staleness"], terms["variance"], 0.0, -terms["initial_gap"]])
    positive = roots[(np.abs(roots.imag) <= 1e-9 * np.abs(roots)) & (roots.real > 0)].real
    rate = min(positive.min(initial=np.inf), largest_rate(constants))
    return float(rate) if rate < np.inf else float(constants.rates()[0])


def at_rate(constants: StageOne, rate: float) -> StageOne:
    """The same constants at one rate and equal weights."""
    return replace(constants, learning_rates=rate, squared_weights=None)


def _limits(constants: StageOne) -> tuple[float, float]:
    """s_j and sum_{l<=j} alpha^(j-l) (j - tau_l)^2 in the limit of large j, with a staleness no longer than the run."""
    momentum, lag = constants.momentum, min(constants.max_staleness, constants.steps - 1)
    size = 1 / (1 - momentum)
    window = lag**2 * size + 2 * lag * momentum * size**2 + momentum * (1 + momentum) * size**3
    return size, window
