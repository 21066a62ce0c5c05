"""Convergence bounds of the WKAFL paper: Theorem 1 (stage one) and Theorem 2 (stage two), with their constants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kasync.errors import UserError
from kasync.theory.sums import Floats, Momentum, after, blame_sums, decayed, decayed_ahead, drift_sums, momentum_sums

PerStep = float | Sequence[float] | Floats  # one number for every step, or one per step


@dataclass(frozen=True)
class StageOne:
    """The constants of Theorem 1 (bounded staleness, no clipping); docs/theory.md maps them to the paper's letters."""

    smoothness: float  # L, of every client's objective: the proof moves along F_i, not only along F
    gradient_noise: float  # sigma_c, standard deviation of one sample's gradient at one client
    noise_growth: float  # M_c, how the variance grows with |grad F_i|^2
    heterogeneity: float  # G, largest |grad F - grad F_i|
    batch_size: int  # m
    k: int
    steps: int  # J
    max_staleness: int  # tau_max, a fresh gradient has 0
    learning_rates: PerStep  # eta_j
    initial_gap: float  # F(w_1) - F(w*)
    momentum: float = 0.0  # alpha
    squared_weights: PerStep | None = None  # sum_i p_ji^2 of a step; None means equal weights, 1/k

    def __post_init__(self) -> None:
        _at_least_one(batch_size=self.batch_size, k=self.k, steps=self.steps)
        _not_negative(
            smoothness=self.smoothness,
            gradient_noise=self.gradient_noise,
            noise_growth=self.noise_growth,
            heterogeneity=self.heterogeneity,
            max_staleness=self.max_staleness,
            initial_gap=self.initial_gap,
        )
        _momentum(self.momentum)
        _rates(self.learning_rates, self.steps)
        squares = self.squares()
        # Weights that sum to one have a sum of squares between 1/k and 1; the slack forgives float32 weights.
        if squares.min() < (1 - 1e-4) / self.k or squares.max() > 1 + 1e-4:
            raise UserError(
                f"squared_weights runs from {squares.min():.4g} to {squares.max():.4g}; weights of {self.k} "
                f"gradients that sum to 1 have squares that sum to between 1/{self.k} and 1, so normalise the weights."
            )

    def rates(self) -> Floats:
        """The learning rates, one per step [J]."""
        return per_step(self.learning_rates, self.steps, "learning_rates")

    def squares(self) -> Floats:
        """The sum of squared weights of each step [J]."""
        given = 1.0 / self.k if self.squared_weights is None else self.squared_weights
        return per_step(given, self.steps, "squared_weights")


@dataclass(frozen=True)
class StageTwo:
    """The constants of Theorem 2 (any staleness, clipped and selected gradients)."""

    smoothness: float  # L
    estimate_error: float  # the sigma_c of stage two: largest |estimate - grad F|
    spread: float  # sigma_e, how far the selected gradients lie from the estimate
    spread_growth: float  # M_e, how that grows with |estimate|^2
    clip_ratio: float  # B, a clipped gradient is at most B times as long as the estimate
    steps: int  # J
    learning_rates: PerStep  # eta_j
    initial_gap: float  # F(w_1) - F(w*)
    momentum: float = 0.0  # alpha

    def __post_init__(self) -> None:
        _at_least_one(steps=self.steps)
        _not_negative(
            smoothness=self.smoothness,
            estimate_error=self.estimate_error,
            spread=self.spread,
            spread_growth=self.spread_growth,
            clip_ratio=self.clip_ratio,
            initial_gap=self.initial_gap,
        )
        _momentum(self.momentum)
        _rates(self.learning_rates, self.steps)

    def rates(self) -> Floats:
        """The learning rates, one per step [J]."""
        return per_step(self.learning_rates, self.steps, "learning_rates")


def per_step(given: PerStep, steps: int, name: str) -> Floats:
    """One float64 per step [J], whether one number or J of them were given."""
    values = np.asarray(given, dtype=np.float64)
    if values.ndim == 0:
        return np.full(steps, float(values))
    if values.shape != (steps,):
        raise UserError(f"{name} has shape {values.shape}; give one number or one for each of the {steps} steps.")
    return values


def squared_weights(weights: Floats) -> Floats:
    """sum_i p_ji^2 of each step [J], from the weights [J, k] that a run really used."""
    return np.square(np.asarray(weights, dtype=np.float64)).sum(axis=-1)


def _at_least_one(**settings: int) -> None:
    for name, value in settings.items():
        if int(value) != value or value < 1:
            raise UserError(f"{name}={value!r} must be a whole number of at least 1.")


def _not_negative(**settings: float) -> None:
    for name, value in settings.items():
        if not (np.isfinite(value) and value >= 0):
            raise UserError(f"{name}={value!r} must be a finite number of at least 0.")


def _momentum(value: float) -> None:
    if not 0 <= value < 1:
        raise UserError(f"momentum={value!r} must lie in [0, 1): at 1 the accumulated gradients never fade.")


def _rates(given: PerStep, steps: int) -> None:
    rates = per_step(given, steps, "learning_rates")
    if not (np.isfinite(rates).all() and (rates > 0).all()):
        raise UserError(f"learning_rates contains {rates.min():.4g}; every step needs a finite rate above 0.")


@dataclass(frozen=True)
class Condition:
    """One demand on the learning rates, value <= limit, at the step where it comes closest to failing."""

    name: str
    formula: str
    value: float
    limit: float
    step: int  # counted from 1, as in the paper
    required: bool = True  # False: reported beside the others, `holds` of the bound does not wait for it

    @property
    def holds(self) -> bool:
        return bool(self.value <= self.limit)

    @property
    def excess(self) -> float:
        """value / limit: above 1 the condition fails by this factor."""
        if self.limit > 0:
            return self.value / self.limit
        return 0.0 if self.value <= self.limit else np.inf

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        return (
            f"{self.name} {verdict}: {self.formula}; {self.value:.4g} against {self.limit:.4g} "
            f"({self.excess:.3g} times the limit) at step {self.step}"
        )


@dataclass(frozen=True)
class Bound:
    """(1/J) sum_j weights_j E|grad F(w_j)|^2 <= total, and total is the sum of the terms."""

    theorem: str
    per_step: Mapping[str, Floats]  # each term before the mean over steps, {name: [J]}
    weights: Floats  # [J]: eta_j s_j / 2 in stage one, V_j in stage two
    conditions: tuple[Condition, ...]

    @property
    def terms(self) -> dict[str, float]:
        """The right-hand side by name."""
        return {name: float(values.mean()) for name, values in self.per_step.items()}

    @property
    def total(self) -> float:
        return float(sum(self.terms.values()))

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        terms = self.terms
        return max(terms, key=lambda name: terms[name])

    @property
    def holds(self) -> bool:
        """Whether every required condition is met, so that the theorem says anything at all."""
        return all(condition.holds for condition in self.conditions if condition.required)

    @property
    def failing(self) -> tuple[Condition, ...]:
        return tuple(condition for condition in self.conditions if condition.required and not condition.holds)

    @property
    def scale(self) -> float:
        """Turns a share of `total` into a share of `mean_squared_gradient`: 1 / mean weight, infinite below 0."""
        mean = float(self.weights.mean())
        return 1.0 / mean if mean > 0 else np.inf

    @property
    def mean_squared_gradient(self) -> float:
        """The bound on the weighted mean of E|grad F(w_j)|^2."""
        return self.total * self.scale if self.total > 0 else 0.0

    def left_side(self, squared_norms: Floats) -> float:
        """(1/J) sum_j weights_j |grad F(w_j)|^2 of a run whose squared gradient norms are [J]."""
        measured = np.asarray(squared_norms, dtype=np.float64)
        if measured.shape != self.weights.shape:
            raise UserError(
                f"squared_norms has shape {measured.shape}; give |grad F|^2 at each of the {len(self.weights)} steps."
            )
        return float((self.weights * measured).mean())

    def looseness(self, squared_norms: Floats) -> float:
        """total / left side: how many times the theorem overstates what the run did."""
        left = self.left_side(squared_norms)
        return self.total / left if left > 0 else np.inf

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        lines = [
            f"{self.theorem}: total {self.total:.4g} ({terms}); mean |grad F|^2 <= {self.mean_squared_gradient:.4g}"
        ]
        return "\n  ".join(lines + [str(condition) for condition in self.conditions])


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
    conditions = (_stage_two_rate(constants, sums, rates), _weight_condition(gained, lost))
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


def _stage_two_rate(constants: StageTwo, sums: Momentum, rates: Floats) -> Condition:
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
