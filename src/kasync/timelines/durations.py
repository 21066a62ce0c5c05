"""Seconds of a piece of work: distributions, sums and mixtures, measured seconds, and the delay models of papers.

Each is a function of (seed, client, piece of work), so the order in which clients are asked does not matter. Settings
that are durations themselves can be written as tables, {"kind": "exponential", "mean": 0.5}; `from_table` reads them.
"""

import csv
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.counter import Stream, bits, normals, uniforms
from kasync.errors import UserError, unknown
from kasync.timelines import checks

Ints = NDArray[np.integer]
Reals = NDArray[np.float64]
HALF = math.log(2.0)  # the median of an exponential with mean 1
FIRST = 0  # the piece of work whose number stands for all where a client draws once


class Durations(ABC):
    """Seconds for each (client, piece of work): a function of the seed and of the two, never of the order of asking."""

    @abstractmethod
    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        """[n] seconds above zero, for clients [n] and the numbers of their pieces of work [n]."""

    @abstractmethod
    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        """[n] what a piece of work of each client usually takes: its median, or close to it."""


@dataclass(frozen=True)
class Constant(Durations):
    """Always the same."""

    each: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("each", self.each)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), float(self.each))

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), float(self.each))


@dataclass(frozen=True)
class Exponential(Durations):
    """-mean log u: work of which nothing is ever half done."""

    mean: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("mean", self.mean)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return -self.mean * np.log(uniforms(seed, stream, client, piece))

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), self.mean * HALF)


@dataclass(frozen=True)
class ShiftedExponential(Durations):
    """shift - mean log u: a least time, and an exponential excess with the given mean."""

    shift: float = 1.0
    mean: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("shift", self.shift)
        checks.positive("mean", self.mean)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return self.shift - self.mean * np.log(uniforms(seed, stream, client, piece))

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), self.shift + self.mean * HALF)


@dataclass(frozen=True)
class LogNormal(Durations):
    """median exp(spread z), z standard normal: most are near the median, a few are much slower."""

    median: float = 1.0
    spread: float = 0.5

    def __post_init__(self) -> None:
        checks.positive("median", self.median)
        checks.positive("spread", self.spread)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return self.median * np.exp(self.spread * normals(seed, stream, client, piece))

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), float(self.median))


@dataclass(frozen=True)
class Pareto(Durations):
    """least u^(-1 / shape): stragglers without end; the mean is infinite for a shape of 1 or less."""

    least: float = 1.0
    shape: float = 2.0

    def __post_init__(self) -> None:
        checks.positive("least", self.least)
        checks.positive("shape", self.shape)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return self.least * uniforms(seed, stream, client, piece) ** (-1.0 / self.shape)

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), self.least * 2.0 ** (1.0 / self.shape))


@dataclass(frozen=True)
class Uniform(Durations):
    """Anything from low to high, equally likely; whole numbers of seconds with `whole`."""

    low: float = 1.0
    high: float = 2.0
    whole: bool = False

    def __post_init__(self) -> None:
        if checks.positive("low", self.low) > checks.positive("high", self.high):
            raise UserError(f"low is {self.low} and high is {self.high}: give a low that is not above high.")
        if self.whole and (self.low != int(self.low) or self.high != int(self.high)):
            raise UserError(f"low is {self.low} and high is {self.high}: give whole numbers with whole=True.")

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        u = uniforms(seed, stream, client, piece)
        if self.whole:
            return np.floor(self.low + (self.high + 1 - self.low) * u)
        return self.low + (self.high - self.low) * u

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), (self.low + self.high) / 2)


@dataclass(frozen=True)
class HalfNormal(Durations):
    """deviation |z|, z standard normal: many short pieces of work, none very long; the mean is 0.798 deviations."""

    deviation: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("deviation", self.deviation)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        # Not even a draw next to zero may take no time at all.
        return self.deviation * np.maximum(np.abs(normals(seed, stream, client, piece)), 1e-12)

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), 0.6744897501960817 * self.deviation)


@dataclass(frozen=True)
class Normal(Durations):
    """mean + deviation z, z standard normal, and never less than a hundredth of the mean."""

    mean: float = 1.0
    deviation: float = 0.1

    def __post_init__(self) -> None:
        checks.positive("mean", self.mean)
        checks.positive("deviation", self.deviation)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.maximum(self.mean + self.deviation * normals(seed, stream, client, piece), self.mean / 100)

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), float(self.mean))


@dataclass(frozen=True)
class OncePerClient(Durations):
    """Drawn once for each client, which then takes as long for every piece of work."""

    each: Durations

    def __post_init__(self) -> None:
        object.__setattr__(self, "each", from_table(self.each, "each"))

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return self.each.seconds(seed, client, np.full(len(client), FIRST), stream)

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return self.seconds(seed, client, client, stream)


@dataclass(frozen=True)
class Classes(Durations):
    """Classes of clients, each with durations of its own; a client is of class c with probability shares[c], for good.

    With redrawn=True the class is drawn anew for every piece of work.
    """

    each: tuple[Durations, ...]
    shares: tuple[float, ...]
    redrawn: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "each", tuple(from_table(one, "each") for one in self.each))
        shares = tuple(float(share) for share in self.shares)
        if len(shares) != len(self.each) or min(shares, default=0.0) < 0 or not 0.999 < sum(shares) < 1.001:
            raise UserError(
                f"shares is {self.shares!r}: give one share for each of {len(self.each)} classes, 1 in all."
            )
        object.__setattr__(self, "shares", shares)

    def of(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> NDArray[np.int64]:
        """[n]: the class of each client, or with `redrawn` of each piece of work."""
        u = uniforms(_part(seed, stream, 0), stream, client, piece if self.redrawn else FIRST)
        return np.minimum(np.searchsorted(np.cumsum(self.shares), u, side="right"), len(self.each) - 1)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        kind, out = self.of(seed, client, piece, stream), np.empty(len(client))
        for number, one in enumerate(self.each):
            mine = np.flatnonzero(kind == number)
            out[mine] = one.seconds(_part(seed, stream, number + 1), client[mine], piece[mine], stream)
        return out

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        each = [one.typical(_part(seed, stream, n + 1), client, stream) for n, one in enumerate(self.each)]
        if self.redrawn:
            return np.average(each, axis=0, weights=self.shares)
        return np.array(each)[self.of(seed, client, client, stream), np.arange(len(client))]


@dataclass(frozen=True)
class Sum(Durations):
    """One after the other: download, compute, upload."""

    each: tuple[Durations, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "each", tuple(from_table(one, "each") for one in self.each))
        if not self.each:
            raise UserError("a sum of durations is empty: name at least one.")

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        parts = [one.seconds(_part(seed, stream, n), client, piece, stream) for n, one in enumerate(self.each)]
        return np.sum(parts, axis=0)

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.sum([one.typical(_part(seed, stream, n), client, stream) for n, one in enumerate(self.each)], axis=0)


@dataclass(frozen=True, eq=False)
class Times(Durations):
    """amount pieces of `each`: samples or steps, times the seconds of one; one amount for all, or [clients]."""

    each: Durations
    amount: ArrayLike = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "each", from_table(self.each, "each"))
        object.__setattr__(self, "amount", checks.positives("amount", self.amount))

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return self.each.seconds(seed, client, piece, stream) * self._of(client)

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return self.each.typical(seed, client, stream) * self._of(client)

    def _of(self, client: Ints) -> Reals:
        amount = np.asarray(self.amount)
        return amount if amount.ndim == 0 else amount[np.asarray(client) % len(amount)]

    def __repr__(self) -> str:
        amount = np.asarray(self.amount)
        shown = f"{float(amount):g}" if amount.ndim == 0 else f"{amount.min():g} to {amount.max():g}"
        return f"Times({self.each!r}, {shown})"


@dataclass(frozen=True)
class Transfer(Durations):
    """The model down and the update up: kilobytes over the kB/s of a client's link.

    `down` and `up` are drawn like durations, but in kB/s; without `up` it is as fast as `down`. An update as large as
    the model, unless `upload_kilobytes` says otherwise.
    """

    kilobytes: float
    down: Durations
    up: Durations | None = None
    upload_kilobytes: float | None = None

    def __post_init__(self) -> None:
        checks.positive("kilobytes", self.kilobytes)
        object.__setattr__(self, "down", from_table(self.down, "down"))
        object.__setattr__(self, "up", self.down if self.up is None else from_table(self.up, "up"))
        if self.upload_kilobytes is None:
            object.__setattr__(self, "upload_kilobytes", self.kilobytes)
        checks.positive("upload_kilobytes", self.upload_kilobytes)  # type: ignore[arg-type]

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        down = self.kilobytes / self.down.seconds(_part(seed, stream, 0), client, piece, stream)
        return down + self.upload_kilobytes / self.up.seconds(_part(seed, stream, 1), client, piece, stream)  # type: ignore[operator,union-attr]

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        down = self.kilobytes / self.down.typical(_part(seed, stream, 0), client, stream)
        return down + self.upload_kilobytes / self.up.typical(_part(seed, stream, 1), client, stream)  # type: ignore[operator,union-attr]


@dataclass(frozen=True, eq=False)
class Trace(Durations):
    """Measured seconds; a client's are used in their order, again from the first after the last.

    With more clients than the trace has, client c takes the seconds of traced client c modulo their number.
    """

    measured: Reals  # [rows], the clients one after the other
    first: NDArray[np.int64]  # [traced clients]: where each one's seconds begin
    source: str = "a trace"

    @property
    def clients(self) -> int:
        return len(self.first)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        traced = np.asarray(client) % self.clients
        count = np.diff(self.first, append=len(self.measured))[traced]
        return self.measured[self.first[traced] + np.asarray(piece) % count]

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        if len(self.measured) == self.clients:
            return self.measured[np.asarray(client) % self.clients]
        medians = np.array([np.median(rows) for rows in np.split(self.measured, self.first[1:])])
        return medians[np.asarray(client) % self.clients]

    def __repr__(self) -> str:
        return f"Trace({self.source})"


def trace(source: str | PathLike[str] | Mapping[int, Sequence[float]]) -> Trace:
    """A trace from a csv file with the header `client,seconds`, or from {client: [seconds, ...]}.

    Clients are numbered 0, 1, ... in the order in which they first appear, whatever they are called in the file.
    """
    where = "the mapping given to trace" if isinstance(source, Mapping) else str(source)
    rows = _listed(source) if isinstance(source, Mapping) else _read(source)
    if not rows or not all(rows.values()):
        raise UserError(f"{where} has no seconds for some client: give every client at least one row.")
    measured = np.concatenate([np.asarray(values, dtype=np.float64) for values in rows.values()])
    if not (np.isfinite(measured) & (measured > 0)).all():
        raise UserError(f"{where} holds seconds that are not finite and above 0: remove or repair those rows.")
    counts = [len(values) for values in rows.values()]
    return Trace(measured, np.cumsum([0, *counts[:-1]]), where)


def _listed(given: Mapping[int, Sequence[float]]) -> dict[str, list[float]]:
    try:
        return {str(name): [float(value) for value in values] for name, values in given.items()}
    except (TypeError, ValueError):
        raise UserError(f"a trace is {dict(given)!r:.80}: give a list of seconds for each client.") from None


def _read(path: str | PathLike[str]) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not {"client", "seconds"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} lacks the header client,seconds: write it as the first line of the trace.")
            for row in reader:
                rows.setdefault(row["client"], []).append(checks.cell(row["seconds"], "seconds", path, reader.line_num))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{path} cannot be read as a trace ({problem}): give a csv file client,seconds.") from problem
    return rows


def per_client(seconds: Sequence[float]) -> Trace:
    """Always the same for one client: seconds [clients]."""
    if not np.iterable(seconds):
        raise UserError(f"seconds is {seconds!r}: give one number above 0 for each client.")
    return trace({client: [each] for client, each in enumerate(seconds)})


def _part(seed: int, stream: int, number: int) -> int:
    """The seed of one part of several: the parts' draws are independent of each other."""
    return int(bits(seed, Stream.PARTS, int(stream), number))


constant, exponential, shifted_exponential = Constant, Exponential, ShiftedExponential
log_normal, pareto, uniform, half_normal, normal = LogNormal, Pareto, Uniform, HalfNormal, Normal
once_per_client, classes, times, transfer = OncePerClient, Classes, Times, Transfer


def total(*each: Durations) -> Sum:
    """Several durations one after the other."""
    return Sum(each)


# The delay models of papers, each as its public code draws them; a unit is a second here.


def fedbuff() -> Durations:
    """FedBuff (Nguyen et al., 2022) as FLSim runs it: half-normal with deviation 1, the same for every client."""
    return HalfNormal(1.0)


def fadas(large: bool = True) -> Durations:
    """FADAS (Wang et al., 2024): each client is quick, medium or slow for good; the slow take U(50, 80), or U(5, 8).

    Its class is the place of the largest of three draws from Gamma(3), Gamma(2), Gamma(1): hence the shares.
    """
    slow = Uniform(50.0, 80.0) if large else Uniform(5.0, 8.0)
    return Classes((Uniform(1.0, 2.0), Uniform(3.0, 5.0), slow), (275 / 432, 123 / 432, 34 / 432))


def ace() -> Durations:
    """ACE (2025): exponential with mean 0.5, but for a fifth of the clients with mean 5."""
    return Classes((Exponential(0.5), Exponential(5.0)), (0.8, 0.2))


def fedast(steps: int = 27, shift: float = 0.114, mean: float = 0.228) -> Durations:
    """FedAST (Askin et al., 2024): steps (shift + one exponential draw), times 0.7, 1 or 1.3 by the client's class.

    The defaults are its CIFAR-10 task; MNIST has 0.074 and 0.148, Fashion-MNIST 0.12 and 0.24.
    """
    work = ShiftedExponential(steps * shift, steps * mean)
    return Classes(tuple(Times(work, factor) for factor in (0.7, 1.0, 1.3)), (0.25, 0.5, 0.25))


def async_diloco(steps: int = 20, seconds: Sequence[float] = (0.58, 0.75, 1.51, 3.33)) -> Durations:
    """Asynchronous Local-SGD for language models (Liu et al., 2024): worker c takes seconds[c] for each step."""
    return per_client([steps * checks.positive("seconds", each) for each in seconds])


KINDS: dict[str, Callable[..., Durations]] = {
    "constant": Constant,
    "exponential": Exponential,
    "shifted_exponential": ShiftedExponential,
    "log_normal": LogNormal,
    "pareto": Pareto,
    "uniform": Uniform,
    "half_normal": HalfNormal,
    "normal": Normal,
    "once_per_client": OncePerClient,
    "classes": Classes,
    "sum": Sum,
    "times": Times,
    "transfer": Transfer,
    "trace": trace,
    "per_client": per_client,
    "fedbuff": fedbuff,
    "fadas": fadas,
    "ace": ace,
    "fedast": fedast,
    "async_diloco": async_diloco,
}


def settings_of(kind: str) -> tuple[str, ...]:
    """The settings that durations of this kind have."""
    return tuple(inspect.signature(KINDS[kind]).parameters)


def from_table(table: Any, setting: str = "durations") -> Durations:
    """Durations as they are, or from {"kind": "exponential", "mean": 1.0}, or from the name of a kind alone."""
    if isinstance(table, Durations):
        return table
    if isinstance(table, str):
        table = {"kind": table}
    kind = table.get("kind") if isinstance(table, Mapping) else None
    if not isinstance(kind, str):
        raise UserError(f'{setting} = {table!r}: write {{ kind = "exponential", mean = 1.0 }}, say.')
    if kind not in KINDS:
        raise unknown(f"kind of {setting}", kind, KINDS)
    given = {name: value for name, value in table.items() if name != "kind"}
    for name in given:
        if name not in settings_of(kind):
            raise unknown(f"setting of {setting} {kind!r}", name, settings_of(kind))
    for name, parameter in inspect.signature(KINDS[kind]).parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in given:
            raise UserError(f"{setting} {kind!r} says no {name}: write {name} = ... beside it.")
    return KINDS[kind](**given)
