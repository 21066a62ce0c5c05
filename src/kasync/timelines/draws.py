"""How are k of n clients drawn, for many steps at once, without work that grows with n?"""

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, bits, integers

BLOCK = 1 << 20  # draws in one block: large enough for numpy, small enough to stay in cache


def subsets(
    among: int, k: int, steps: NDArray[np.int64], seed: int, stream: int = Stream.ARRIVALS
) -> NDArray[np.int32]:
    """k of `among` without replacement, uniformly, for each given step number: [len(steps), k], rows ascending.

    A row is a function of (among, k, seed, stream, step) alone: a longer timeline begins with the shorter one.
    """
    width = among if _dense(among, k) else k
    rows = max(1, BLOCK // width)
    draw = _smallest_keys if _dense(among, k) else _redraw_repeats
    out = np.empty((len(steps), k), dtype=np.int32)
    for first in range(0, len(steps), rows):
        out[first : first + rows] = draw(among, k, steps[first : first + rows, None], seed, stream)
    return out


def _dense(among: int, k: int) -> bool:
    """Whether so many are drawn that repeats would be redrawn too often."""
    return 4 * k > among


def _smallest_keys(among: int, k: int, steps: NDArray[np.int64], seed: int, stream: int) -> NDArray[np.int32]:
    """Every client gets a random key; the k smallest are drawn. Work per step: among, here at most 4 k."""
    if k == among:
        return np.broadcast_to(np.arange(k, dtype=np.int32), (len(steps), k))
    keys = bits(seed, stream, steps, np.arange(among))  # [rows, among]
    return np.sort(np.argpartition(keys, k - 1, axis=1)[:, :k], axis=1).astype(np.int32)


def _redraw_repeats(among: int, k: int, steps: NDArray[np.int64], seed: int, stream: int) -> NDArray[np.int32]:
    """Draw with replacement, redraw what a row holds twice until nothing is.

    Renaming the clients renames the outcome and nothing else, so every set of k is equally likely.
    """
    slots = np.arange(k)
    drawn = np.sort(integers(among, seed, stream, steps, slots).astype(np.int32), axis=1)  # [rows, k]
    rows, attempt = np.arange(len(drawn)), 0
    while len(rows):
        chosen = drawn[rows]  # [rows left, k]
        row, slot = np.nonzero(chosen[:, 1:] == chosen[:, :-1])
        attempt += 1
        chosen[row, slot] = integers(among, seed, stream, steps[rows[row], 0], slot, attempt).astype(np.int32)
        repeated = np.unique(row)
        rows = rows[repeated]
        drawn[rows] = np.sort(chosen[repeated], axis=1)
    return drawn
