"""Upper tail of a normal distribution: its log probability and its first two moments."""

from math import pi

import numpy as np

from kasync.theory.constants import Floats


def log_survival(z: Floats) -> Floats:
    """log P(Z > z) for a standard normal Z."""
    from scipy.special import log_ndtr

    return log_ndtr(-np.asarray(z, dtype=np.float64))


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
