"""Which samples are for testing, where a source does not say? Every fifth of each group."""

import numpy as np
from numpy.typing import NDArray

TEST_EVERY = 5


def every_fifth(groups: NDArray) -> NDArray[np.bool_]:
    """A mask [N]: the fifth, tenth ... sample of each group; a group of n keeps n - n // 5 samples for training."""
    order = np.argsort(groups, kind="stable")  # [N], group after group, each in its own order
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(groups) else np.zeros(0, np.int64)
    sizes = np.diff(np.r_[starts, len(groups)])
    place = np.arange(len(groups)) - np.repeat(starts, sizes)  # [N], 0 for the first of its group
    mask = np.zeros(len(groups), dtype=bool)
    mask[order] = place % TEST_EVERY == TEST_EVERY - 1
    return mask
