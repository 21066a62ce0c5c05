"""The constants of the two theorems, one frozen value for each, checked where they enter."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError

Floats = NDArray[np.float64]
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
