"""Random numbers as a hash of (seed, purpose, client, visit, draw), never of the order of calls.

    h = 0;  for word in (seed, stream, client, visit, draw):  h = mix(h + word + 0x9E3779B97F4A7C15)  (modulo 2^64)
    mix(z):  z ^= z >> 30; z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27; z *= 0x94D049BB133111EB;  z ^= z >> 31

`mix` is the finaliser of splitmix64 (Steele, Lea and Flood, 2014).
Arguments are integers or integer arrays, and broadcast.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bits = NDArray[np.uint64]
Reals = NDArray[np.float64]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Stream(IntEnum):
    """What a draw is for; two purposes never share a stream, so adding one does not move the others."""

    ARRIVALS = 1
    DURATIONS = 2
    SPEEDS = 3
    PHASES = 4
    DROPOUTS = 5
    ABSENCES = 6
    LOSSES = 7
    ROUNDS = 8
    FAULTY = 9
    FAULTS = 10
    NOISE = 11
    SELECTION = 12
    PARTS = 13
    PHONES = 14
    TRANSFERS = 15
    BATCHES = 16
    SERVER = 17
    EPOCHS = 18
    CHANCE = 19
    STARTS = 20


def bits(seed: int, stream: int, client: ArrayLike, visit: ArrayLike = 0, draw: ArrayLike = 0) -> Bits:
    """64 random bits for each (client, visit, draw), in the broadcast shape of the three."""
    state: int | Bits = _mix_integer((int(seed) + _GOLDEN) & _WORD)
    with np.errstate(over="ignore"):  # numpy warns of a wrap-around in scalars only, and here it is meant
        for word in (int(stream), client, visit, draw):
            state = _absorb(state, word)
    return np.asarray(state, dtype=np.uint64)


def integers(below: int, seed: int, stream: int, client: ArrayLike, visit: ArrayLike = 0, draw: ArrayLike = 0) -> Bits:
    """Whole numbers in [0, below); the bias of the remainder is under below / 2^64."""
    return bits(seed, stream, client, visit, draw) % np.uint64(below)


def uniforms(seed: int, stream: int, client: ArrayLike, visit: ArrayLike = 0, draw: ArrayLike = 0) -> Reals:
    """Numbers in the open interval (0, 1): 52 bits and a half, so that neither end can occur."""
    return ((bits(seed, stream, client, visit, draw) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normals(seed: int, stream: int, client: ArrayLike, visit: ArrayLike = 0, draw: int = 0) -> Reals:
    """Standard normal numbers: sqrt(-2 log u) cos(2 pi u'), u and u' being draws 2d and 2d + 1 (Box and Muller)."""
    radius = np.sqrt(-2.0 * np.log(uniforms(seed, stream, client, visit, 2 * draw)))
    return radius * np.cos(2.0 * np.pi * uniforms(seed, stream, client, visit, 2 * draw + 1))


def _absorb(state: int | Bits, word: ArrayLike) -> int | Bits:
    """One round of the hash; plain integers stay plain, so that a scalar costs no array operation."""
    if isinstance(state, int) and isinstance(word, int):
        return _mix_integer((state + word + _GOLDEN) & _WORD)
    words = np.uint64(word & _WORD) if isinstance(word, int) else np.asarray(word).astype(np.uint64)
    shifted = words + np.uint64(((state + _GOLDEN) & _WORD) if isinstance(state, int) else _GOLDEN)
    return _mix(shifted if isinstance(state, int) else shifted + state)


def _mix(state: Bits) -> Bits:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))


def _mix_integer(state: int) -> int:
    state = ((state ^ (state >> 30)) * _FIRST) & _WORD
    state = ((state ^ (state >> 27)) * _SECOND) & _WORD
    return state ^ (state >> 31)
