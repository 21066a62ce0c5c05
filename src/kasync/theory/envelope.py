"""The lowest line a + b x above a cloud of measurements, from which (sigma^2, M) pairs are read."""

import numpy as np

from kasync.errors import UserError
from kasync.theory.constants import Floats


def upper_line(x: Floats, y: Floats) -> tuple[float, float]:
    """(a, b), both >= 0, with a + b x_n >= y_n for all n, and equal for at least one.

    The line of least squared relative error is lifted by the smallest factor that puts it above every point. Relative,
    since the y of a run span many orders of magnitude and each carries its own few percent of sampling error: a line
    through the outermost points would take that error at a large x for a large a.
    """
    x, y = np.asarray(x, dtype=np.float64).ravel(), np.asarray(y, dtype=np.float64).ravel()
    if x.size == 0 or x.shape != y.shape:
        raise UserError(f"upper_line got {x.size} and {y.size} measurements; give at least one of each, in pairs.")
    if not (np.all(x >= 0) and np.all(y >= 0)):
        raise UserError("upper_line got a negative or missing squared norm or variance; all must be at least 0.")
    far, top = float(x.max()), float(y.max())
    if top == 0 or far <= 1e-200 * top:  # norms that vanish beside the variances say nothing of a slope
        return top, 0.0
    start, slope = _lifted_line(x / far, y / top)
    return top * start, top / far * slope


def _lifted_line(x: Floats, y: Floats) -> tuple[float, float]:
    """The line above points in the unit square."""
    scale = np.maximum(y, 1e-6)  # a point at 0 would outweigh all others
    start, slope = _best_line(x / scale, 1 / scale, y / scale)
    heights = start + slope * x
    if np.any(heights < 1e-9 * y):  # a ray through the origin is not stretched above a point at x = 0 but raised
        return float((y - slope * x).max()), slope
    lift = float(np.max(y[y > 0] / heights[y > 0]))
    return lift * start, lift * slope


def _best_line(slopes: Floats, starts: Floats, target: Floats) -> tuple[float, float]:
    """(a, b) >= 0 with the least sum (a starts + b slopes - target)^2: inside, or on one of the two axes."""
    flat = float(starts @ target / (starts @ starts)), 0.0
    ray = 0.0, float(slopes @ target / (slopes @ slopes))
    columns = np.stack((starts, slopes), axis=1)  # [n, 2]
    inside, _, rank, _ = np.linalg.lstsq(columns / np.linalg.norm(columns, axis=0), target, rcond=1e-9)
    if rank == 2 and (inside >= 0).all():
        start, slope = inside / np.linalg.norm(columns, axis=0)
        return float(start), float(slope)
    return min(flat, ray, key=lambda line: float(np.square(columns @ line - target).sum()))
