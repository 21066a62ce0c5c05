"""How long does a client take for a piece of work? A distribution, or the seconds of a trace."""

import csv
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, normals, uniforms
from kasync.errors import UserError
from kasync.timelines import checks

Ints = NDArray[np.integer]
Reals = NDArray[np.float64]


class Durations(ABC):
    """Seconds for each (client, piece of work): a function of the seed and of the two, never of the order of asking."""

    @abstractmethod
    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        """[n] seconds above zero, for clients [n] and the numbers of their pieces of work [n]."""


@dataclass(frozen=True)
class Constant(Durations):
    """Always the same."""

    each: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("each", self.each)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return np.full(len(client), float(self.each))


@dataclass(frozen=True)
class Exponential(Durations):
    """-mean log u: work of which nothing is ever half done."""

    mean: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("mean", self.mean)

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return -self.mean * np.log(uniforms(seed, stream, client, piece))


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

    def __repr__(self) -> str:
        return f"Trace({self.source})"


def trace(source: str | PathLike[str] | Mapping[int, Sequence[float]]) -> Trace:
    """A trace from a csv file with the header `client,seconds`, or from {client: [seconds, ...]}.

    Clients are numbered 0, 1, ... in the order in which they first appear, whatever they are called in the file.
    """
    where = "the mapping given to trace" if isinstance(source, Mapping) else str(source)
    rows = (
        {str(name): list(values) for name, values in source.items()} if isinstance(source, Mapping) else _read(source)
    )
    if not rows or not all(rows.values()):
        raise UserError(f"{where} has no seconds for some client: give every client at least one row.")
    measured = np.concatenate([np.asarray(values, dtype=np.float64) for values in rows.values()])
    if not (np.isfinite(measured) & (measured > 0)).all():
        raise UserError(f"{where} holds seconds that are not finite and above 0: remove or repair those rows.")
    counts = [len(values) for values in rows.values()]
    return Trace(measured, np.cumsum([0, *counts[:-1]]), where)


def _read(path: str | PathLike[str]) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not {"client", "seconds"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} lacks the header client,seconds: write it as the first line of the trace.")
            for row in reader:
                rows.setdefault(row["client"], []).append(_seconds(row["seconds"], path, reader.line_num))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{path} cannot be read as a trace ({problem}): give a csv file client,seconds.") from problem
    return rows


def _seconds(text: str | None, path: object, line: int) -> float:
    try:
        return float(text or "")
    except ValueError:
        shown = text[:80] if text else text
        raise UserError(f"{path}, line {line}: seconds is {shown!r}, give a number.") from None


constant, exponential, shifted_exponential = Constant, Exponential, ShiftedExponential
log_normal, pareto = LogNormal, Pareto

KINDS = {
    "constant": Constant,
    "exponential": Exponential,
    "shifted_exponential": ShiftedExponential,
    "log_normal": LogNormal,
    "pareto": Pareto,
    "trace": trace,
}
