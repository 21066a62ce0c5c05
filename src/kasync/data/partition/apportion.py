"""How is a whole number of samples shared in given proportions, so that the shares add up?"""

import numpy as np
from numpy.typing import NDArray


def apportion(totals: NDArray[np.int64], weights: NDArray[np.float64], least: int = 0) -> NDArray[np.int64]:
    """total * weight / sum of weights [rows, parts], rounded to add up to totals [rows], each at least `least`.

    Rounded down, and what is missing goes to the largest fractions, one each (Hamilton's method). With least = 1 a part
    whose share would be below one gets exactly one and the others share the rest in proportion; a row with fewer
    samples than parts cannot do that and is shared as with least = 0.
    """
    exact = totals[:, None] * (weights / weights.sum(1, keepdims=True))  # [rows, parts]
    if least == 1:
        enough = totals >= weights.shape[1]
        exact[enough] = _raised_to_one(totals[enough], weights[enough])
    rounded = np.floor(exact + 1e-9)  # a share that is whole but for the last bit of a float is whole
    missing = totals - rounded.sum(1).astype(np.int64)  # [rows], 0 <= missing < parts
    by_fraction = np.argsort(rounded - exact, axis=1, kind="stable")  # [rows, parts], the largest fraction first
    extra = np.zeros(weights.shape, np.int64)
    np.put_along_axis(extra, by_fraction, (np.arange(weights.shape[1]) < missing[:, None]).astype(np.int64), axis=1)
    return rounded.astype(np.int64) + extra


def _raised_to_one(totals: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """max(1, slope * weight) [rows, parts] with the one slope per row that makes the parts add up to the total."""
    rising = np.sort(weights, axis=1)  # [rows, parts]
    rest = np.cumsum(rising[:, ::-1], axis=1)[:, ::-1]  # [rows, parts] the weights from this one upwards
    slopes = (totals[:, None] - np.arange(weights.shape[1])) / rest  # the slope if all below this one are raised to one
    fits = slopes * rising >= 1
    fits[:, -1] = True  # total >= parts, so raising all but the largest always works
    slope = np.take_along_axis(slopes, fits.argmax(1)[:, None], axis=1)  # [rows, 1]
    return np.maximum(1.0, slope * weights)
