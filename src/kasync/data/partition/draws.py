"""Random numbers of a partition: functions of (seed, client), so that more clients change nothing."""

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync import counter

STREAM = 32  # the place of partitions among counter.Stream


class Purpose(IntEnum):
    """What a draw is for; two purposes never share one."""

    LABELS = 0
    SIZES = 1
    WEIGHTS = 2
    SAMPLES = 3
    ORDER = 4
    DEAL = 5
    PROPORTIONS = 6
    VALIDATION = 7
    SERVER = 8
    PAIRS = 9
    OWN_TEST = 10


_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def bits(seed: int, purpose: Purpose, client: ArrayLike, draw: ArrayLike = 0) -> NDArray[np.uint64]:
    """64 random bits for each (client, draw)."""
    return counter.bits(seed, STREAM, client, int(purpose), draw)


def uniforms(seed: int, purpose: Purpose, client: ArrayLike, draw: ArrayLike = 0) -> NDArray[np.float64]:
    """Numbers in the open interval (0, 1) for each (client, draw)."""
    return counter.uniforms(seed, STREAM, client, int(purpose), draw)


def order(count: int, seed: int, purpose: Purpose) -> NDArray[np.int64]:
    """A random order of 0..count-1."""
    return np.argsort(bits(seed, purpose, np.arange(count)), kind="stable")


def generator(seed: int, purpose: Purpose, draw: int = 0) -> np.random.Generator:
    """NumPy's generator, for the distributions that are not made of a few uniform numbers."""
    return np.random.default_rng([seed & (1 << 64) - 1, STREAM, int(purpose), draw])


def rounds_for(smallest: int) -> int:
    """How many rounds `shuffled` needs until pairs of places fall evenly, when no count is below this; measured."""
    return 8 if smallest >= 256 else 24


def shuffled(
    places: NDArray[np.integer], counts: NDArray[np.integer], keys: NDArray[np.uint64], rounds: int
) -> NDArray[np.int64]:
    """Where each key's own random permutation of 0..count-1 puts a place; all [n].

    Taking the places 0..m-1 of one key draws m of count things without replacement, each in constant time and memory.
    The permutation is a Feistel network on a rectangle of about sqrt(count) x sqrt(count) cells, and a result beyond
    count walks on until it falls inside (Black and Rogaway, 2002).
    """
    width = np.ceil(np.sqrt(counts)).astype(np.uint64)  # [n]
    height = -(-counts // width.astype(np.int64)).astype(np.uint64)  # [n]; width * height >= count
    result = _through_rounds(places.astype(np.uint64), width, height, keys, rounds)
    beyond = np.flatnonzero(result >= counts.astype(np.uint64))
    while len(beyond):
        result[beyond] = _through_rounds(result[beyond], width[beyond], height[beyond], keys[beyond], rounds)
        beyond = beyond[result[beyond] >= counts[beyond].astype(np.uint64)]
    return result.astype(np.int64)


def _through_rounds(
    cells: NDArray[np.uint64],
    width: NDArray[np.uint64],
    height: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    rounds: int,
) -> NDArray[np.uint64]:
    """A one-to-one map of the cells of a width x height rectangle, chosen by the key."""
    row, column = np.divmod(cells, width)
    for number in range(0, rounds, 2):
        column = _shifted(column, width, row, keys, number)
        row = _shifted(row, height, column, keys, number + 1)
    return row * width + column


def _shifted(
    moving: NDArray[np.uint64],
    extent: NDArray[np.uint64],
    still: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    number: int,
) -> NDArray[np.uint64]:
    """One coordinate moved around its extent by a hash of the other one."""
    state = (keys + np.uint64(_GOLDEN * (number + 1) % 2**64)) ^ (still * _MULTIPLIER)
    state = (state ^ (state >> _HALF)) * _MULTIPLIER
    state = (state ^ (state >> _HALF)) * _MULTIPLIER
    moved = moving + ((state >> _HALF) * extent >> _HALF)
    return np.where(moved >= extent, moved - extent, moved)
