"""What is left of a normal distribution above a level? Its share and its first two moments, without scipy."""

from math import erfc, pi, sqrt

import numpy as np

from kasync.theory.constants import Floats

_erfc = np.vectorize(erfc, otypes=[np.float64])
FAR = 25.0  # standard deviations beyond which the tail's expansion is exact to rounding


def log_survival(z: Floats) -> Floats:
    """log P(Z > z) for a standard normal Z."""
    near = np.minimum(z, FAR)
    far = np.maximum(z, FAR)
    tail = -0.5 * far**2 - np.log(far * sqrt(2 * pi)) + np.log1p(-1 / far**2)
    return np.where(z <= FAR, np.log(0.5 * _erfc(near / sqrt(2))), tail)


def hazard(z: Floats) -> Floats:
    """density(z) / P(Z > z), which is about z far out."""
    return np.exp(-0.5 * z**2 - 0.5 * np.log(2 * pi) - log_survival(z))


def mean_above(level: Floats, mean: Floats | float, width: float) -> Floats:
    """E[X | X > level] for X normal with the given mean and standard deviation."""
    return mean + width * hazard((level - mean) / width)


def square_above(level: Floats, mean: Floats | float, width: float) -> Floats:
    """E[X^2 | X > level]."""
    z = (level - mean) / width
    return mean**2 + width**2 + width * (mean + level) * hazard(z)
