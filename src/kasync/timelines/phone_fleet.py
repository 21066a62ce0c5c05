"""A generated fleet of phones, as those of FLASH's traces: when they are there, how fast they compute and transfer.

The tables below come from the traces that FLHetBench publishes (704 phones that were ever ready, 13,364 windows; 978
training latencies of ResNet; 19 links). LENGTHS and GAPS are fitted, because scaling changes them; the short end of
BLINK, BREAKS and the middle of LENGTHS were then set by hand; the rest is measured. `benchmarks/phones.py` does it
again and draws the fit:

    duty         share of the time in which a phone is locked, charging and on Wi-Fi
    windows      how many such windows it has in a day; their normal scores and those of the duty correlate by 0.58
    lengths      of one phone's windows: a share of BLINKS takes BLINK seconds, the others are multiples of each other,
                 scaled so that duty and number of windows are met over the six days that repeat
    gaps         between them, in the same way: BREAKS of them last BREAK seconds
    centre       hour of the day about which a phone's presence lies (its circular mean), 14 to 38: the night is in the
                 middle, so nights are fuller than days
    latency      seconds to train on one sample, taking the published numbers as milliseconds; the same at every visit
    links        kB/s; down and up of one phone correlate by 0.72, each transfer varies about the phone's mean

A table has a value for each of the probabilities in PROBABILITIES; between them the logarithm is linear.
"""

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, normals, uniforms
from kasync.timelines import checks
from kasync.timelines.durations import Trace
from kasync.timelines.presence import Intervals
from kasync.timelines.traces import DAY, Links, Traces

Reals = NDArray[np.float64]

DAYS = 6  # after which a phone repeats
SHORTEST, LEAST_MEAN = 1.0, 10.0  # seconds of a window, and of the windows of one phone on average
PROBABILITIES = (0.0, 0.02, 0.05, 0.1, 0.175, 0.25, 0.375, 0.5, 0.625, 0.75, 0.825, 0.9, 0.95, 0.98, 1.0)
# fmt: off
DUTY = (
    6.94e-06, 4.66e-05, 0.000264, 0.00168, 0.0069, 0.0129, 0.0325, 0.0557,
    0.0917, 0.131, 0.182, 0.256, 0.325, 0.446, 0.784,
)
WINDOWS = (0.1, 0.167, 0.255, 0.5, 0.8, 1, 1.83, 2.77, 4, 5.69, 7, 9.19, 12, 17, 42)
BLINK = (3, 3, 3.5, 5, 7, 9, 9.5, 10, 10, 10, 11, 12, 13, 14.4, 15)
BLINKS = 0.277
LENGTHS = (0.127, 0.19, 0.19, 0.19, 0.192, 0.196, 0.431, 1, 2.15, 2.8, 3.4, 7.5, 26.8, 26.8, 43.5)
BREAK = (1, 1, 1, 1, 1, 2, 4, 8, 16, 28, 36, 45, 52, 57, 60)
BREAKS = 0.25
GAPS = (0.0783, 0.122, 0.122, 0.122, 0.123, 0.129, 0.343, 1, 3.08, 21.1, 23.7, 23.7, 23.7, 23.8, 38.4)
CENTRE = (14.0, 14.9, 15.6, 17.2, 19.5, 24.1, 25.6, 27.0, 28.2, 30.1, 31.6, 34.2, 35.6, 37.2, 37.9)
LATENCY = (0.04, 0.0539, 0.0599, 0.069, 0.083, 0.096, 0.135, 0.172, 0.228, 0.309, 0.374, 0.476, 0.559, 1.28, 15.1)
DOWN = (
    2370, 2660, 3100, 3270, 3500, 3720, 4170, 4320,
    5520, 7240, 7460, 9090, 10700, 14700, 17300,
)
UP = (
    431, 515, 641, 2000, 2560, 2700, 3000, 3290,
    3810, 5040, 5570, 5850, 6310, 6510, 6640,
)
# fmt: on
DUTY_AND_WINDOWS = 0.58
DOWN_AND_UP = 0.72
DOWN_DEVIATION, UP_DEVIATION = 0.37, 0.40  # as shares of the mean

_DUTY, _WINDOWS, _LENGTH, _GAP, _HOUR, _PLACE, _LATENCY, _DOWN, _UP = range(9)  # draws of one phone


def phones(clients: int, seed: int = 0) -> Traces:
    """So many phones; phone c is the same in every fleet of the same seed that has it."""
    clients, seed = checks.whole("clients", clients, 1), checks.seed_of(seed)
    who = np.arange(clients)
    mean_down, mean_up = _pair(seed, who, _DOWN, _UP, DOWN, UP, DOWN_AND_UP)
    return Traces(
        _availability(seed, who),
        Trace(_value(LATENCY, uniforms(seed, Stream.PHONES, who, 0, _LATENCY)), who, "phones"),
        Links(mean_down, mean_up, DOWN_DEVIATION * mean_down, UP_DEVIATION * mean_up),
        f"phones({clients}, seed={seed})",
    )


def _availability(seed: int, who: NDArray[np.int64]) -> Intervals:
    """Windows and gaps in turns, scaled to the phone's duty, and moved to where in the day its presence lies."""
    duty, per_day = _pair(seed, who, _DUTY, _WINDOWS, DUTY, WINDOWS, DUTY_AND_WINDOWS)
    most = duty * DAYS * DAY / LEAST_MEAN  # [clients]
    count = np.maximum(1, np.rint(np.minimum(per_day * DAYS, most))).astype(np.int64)  # [clients]
    first = np.concatenate([[0], np.cumsum(count)])  # [clients + 1]
    owner = np.repeat(who, count)  # [rows]
    place = np.arange(first[-1]) - first[owner]  # [rows]: 0, 1, ... of each phone
    span = DAYS * DAY
    lengths = _scaled(seed, owner, place, first, duty * span, (_LENGTH, BLINKS, BLINK, LENGTHS))
    rest = span - np.add.reduceat(lengths, first[:-1])
    gaps = _scaled(seed, owner, place, first, rest, (_GAP, BREAKS, BREAK, GAPS))
    # Whole milliseconds add up exactly, so that a phone does not depend on those before it.
    taken, between = np.rint(1000 * lengths).astype(np.int64), np.floor(1000 * gaps).astype(np.int64)  # [rows]
    begun = np.cumsum(taken + between) - taken - between
    begin = (begun - begun[first[:-1]][owner]) / 1000
    end = np.minimum(begin + taken / 1000, span)
    end[:-1] = np.where(place[1:] > 0, np.minimum(end[:-1], begin[1:]), end[:-1])
    turn = 2 * np.pi / DAY
    presence = np.add.reduceat((np.exp(1j * turn * end) - np.exp(1j * turn * begin)) / 1j, first[:-1])  # [clients]
    centre = _value(CENTRE, uniforms(seed, Stream.PHONES, who, 0, _HOUR)) * 3600
    day = np.floor(DAYS * uniforms(seed, Stream.PHONES, who, 0, _PLACE)) * DAY
    return Intervals.of_rows(begin, end, first, span, shift=day + np.mod(centre - np.angle(presence) / turn, DAY))


def _scaled(
    seed: int,
    owner: NDArray[np.int64],
    place: NDArray[np.int64],
    first: NDArray[np.int64],
    total: Reals,
    kind: tuple[int, float, tuple[float, ...], tuple[float, ...]],
) -> Reals:
    """[rows]: seconds that add up to each phone's total: a share of them short ones, the others scaled to fill it."""
    draw, share, short, others = kind
    u = uniforms(seed, Stream.PHONES, owner, place, draw)
    is_short = u < share
    seconds = np.where(is_short, _value(short, u / share), 0.0)
    relative = np.where(is_short, 0.0, _value(others, (u - share) / (1 - share)))
    left = total - np.add.reduceat(seconds, first[:-1])
    weight = np.add.reduceat(relative, first[:-1])
    fits = (left > 0.2 * total) & (weight > 0)  # otherwise, and where all are short, all are scaled
    scaled = seconds + relative * np.where(fits, left / np.where(weight > 0, weight, 1.0), 0.0)[owner]
    plain = np.where(is_short, seconds, relative)
    plain = plain * (total / np.add.reduceat(plain, first[:-1]))[owner]
    out = np.maximum(np.where(fits[owner], scaled, plain), SHORTEST)
    return out * np.minimum(1.0, total / np.add.reduceat(out, first[:-1]))[owner]


def _pair(
    seed: int,
    who: NDArray[np.int64],
    one: int,
    other: int,
    table: tuple[float, ...],
    second: tuple[float, ...],
    correlation: float,
) -> tuple[Reals, Reals]:
    """Two values of each phone that go together: their normal scores correlate."""
    z = normals(seed, Stream.PHONES, who, 1, one)
    y = correlation * z + np.sqrt(1 - correlation**2) * normals(seed, Stream.PHONES, who, 1, other)
    return _value(table, _below(z)), _value(second, _below(y))


def _below(z: Reals) -> Reals:
    """The probability of a standard normal below z, to 1e-7 (Abramowitz and Stegun, 7.1.26)."""
    x = np.abs(z) / np.sqrt(2.0)
    t = 1 / (1 + 0.3275911 * x)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.clip(0.5 + np.sign(z) * 0.5 * (1 - tail * np.exp(-x * x)), 0.0, 1.0)


def _value(table: tuple[float, ...], probability: Reals) -> Reals:
    """The quantile of a table."""
    return np.exp(np.interp(probability, PROBABILITIES, np.log(table)))
