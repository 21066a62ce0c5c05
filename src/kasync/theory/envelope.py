"""What is the tightest line a + b x above a cloud of points? How (sigma^2, M) pairs are read off measurements."""

import numpy as np

from kasync.errors import UserError
from kasync.theory.constants import Floats


def upper_line(x: Floats, y: Floats) -> tuple[float, float]:
    """(a, b), both >= 0, with a + b x_n >= y_n for all n and a + b mean(x) as small as possible.

    Such a line lies along an edge of the upper convex hull, the one above mean(x); a hull that falls there gives b = 0, an
    edge that meets the axis below 0 is replaced by the steepest ray through the origin.
    """
    x, y = np.asarray(x, dtype=np.float64).ravel(), np.asarray(y, dtype=np.float64).ravel()
    if x.size == 0 or x.shape != y.shape:
        raise UserError(f"upper_line got {x.size} and {y.size} measurements; give at least one of each, in pairs.")
    if (x < 0).any() or (y < 0).any():
        raise UserError("upper_line got a negative squared norm or variance; both must be at least 0.")
    hull = _upper_hull(x, y)  # [H, 2], x ascending
    centre = x.mean()
    place = int(np.searchsorted(hull[:, 0], centre))
    if place == 0 or place == len(hull):  # all x equal, up to rounding
        return float(y.max()), 0.0
    (left, low), (right, high) = hull[place - 1], hull[place]
    slope = (high - low) / (right - left)
    start = low - slope * left
    if slope <= 0:
        return float(y.max()), 0.0
    if start < 0:
        positive = x > 0
        return 0.0, float((y[positive] / x[positive]).max())
    return float(start), float(slope)


def _upper_hull(x: Floats, y: Floats) -> Floats:
    """The corners of the upper convex hull, left to right [H, 2] (Andrew's monotone chain)."""
    order = np.lexsort((y, x))
    hull: list[tuple[float, float]] = []
    for point in zip(x[order].tolist(), y[order].tolist(), strict=True):
        if hull and hull[-1][0] == point[0]:  # the same x, a higher y: only the highest counts
            hull.pop()
        while len(hull) > 1 and _turns_left(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return np.array(hull)


def _turns_left(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether the middle point lies on or below the line from first to last."""
    return (middle[0] - first[0]) * (last[1] - first[1]) >= (middle[1] - first[1]) * (last[0] - first[0])
