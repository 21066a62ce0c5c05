"""Distributions of durations fitted to a timeline or a trace: maximum likelihood, unfinished work included."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, log, pi
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError
from kasync.theory.theorems import Floats

Whole = NDArray[np.integer]


class TimelineLike(Protocol):
    """The arrays of a timeline; `kasync.timelines.Timeline` has them."""

    @property
    def clients(self) -> Whole: ...  # [J, k], each row in the order of arrival

    @property
    def versions(self) -> Whole: ...  # [J, k]

    @property
    def times(self) -> Floats: ...  # [J], when each update happened

    @property
    def population(self) -> int: ...


@dataclass(frozen=True)
class Observed:
    """Pieces of work: whose, how long, and whether they ended (False: it was still under way, so it takes longer)."""

    clients: Whole  # [n]
    seconds: Floats  # [n]
    ended: NDArray[np.bool_]  # [n]

    def __post_init__(self) -> None:
        if not (len(self.clients) == len(self.seconds) == len(self.ended)) or not np.any(self.ended):
            raise UserError(
                f"{len(self.seconds)} durations were observed; give at least one that ended, in equal columns."
            )
        if not (np.isfinite(self.seconds).all() and (self.seconds > 0).all()):
            raise UserError("an observed duration is not a finite number above 0; remove or repair those rows.")


def observed_pairs(clients: Whole, seconds: Floats) -> Observed:
    """Finished work given as (client, seconds) columns, for example from a trace or a live log."""
    return Observed(np.asarray(clients), np.asarray(seconds, dtype=np.float64), np.ones(len(seconds), dtype=bool))


def turnarounds(timeline: TimelineLike) -> Floats:
    """Seconds from the update that made the version a client worked on to the one that used its work [J, k]."""
    appeared = np.concatenate(([0.0], timeline.times))  # [J + 1]
    return timeline.times[:, None] - appeared[timeline.versions]


def waits(timeline: TimelineLike) -> Floats:
    """Seconds each upload lay at the server before its update [J, k].

    Only the last of a row is known exactly (0). An upload that had come earlier would have been used earlier, so the
    others came since the update before; they are taken as evenly spaced, in their order. That is close while k is a
    small part of the clients.
    """
    k = timeline.clients.shape[1]
    gaps = np.diff(timeline.times, prepend=0.0)  # [J]
    return gaps[:, None] * (1 - np.arange(1, k + 1) / k)


def observed_durations(timeline: TimelineLike) -> Observed:
    """The durations behind a K-async timeline, with the work that was still under way at its end."""
    seconds = turnarounds(timeline) - waits(timeline)  # [J, k]
    heard = np.zeros(timeline.population)  # [clients], when each one began its last piece of work
    heard[timeline.clients.ravel()] = np.repeat(timeline.times, timeline.clients.shape[1])  # the last row wins
    still = float(timeline.times[-1]) - heard  # [clients]
    open_clients = np.flatnonzero(still > 0)
    positive = seconds.ravel() > 0
    return Observed(
        clients=np.concatenate((timeline.clients.ravel()[positive], open_clients)),
        seconds=np.concatenate((seconds.ravel()[positive], still[open_clients])),
        ended=np.concatenate((np.ones(int(positive.sum()), dtype=bool), np.zeros(len(open_clients), dtype=bool))),
    )


def log_survival(z: Floats) -> Floats:
    """log P(Z > z) for a standard normal Z."""
    from scipy.special import log_ndtr

    return log_ndtr(-np.asarray(z, dtype=np.float64))


def hazard(z: Floats) -> Floats:
    """density(z) / P(Z > z), which is about z far out."""
    return np.exp(-0.5 * z**2 - 0.5 * np.log(2 * pi) - log_survival(z))


def mean_above(level: Floats, mean: Floats | float, width: float) -> Floats:
    """E[X | X > level] for X normal with the given mean and standard deviation."""
    return mean + width * hazard((level - mean) / width)


def square_above(level: Floats, mean: Floats | float, width: float) -> Floats:
    """E[X^2 | X > level]."""
    z = (level - mean) / width
    return mean**2 + width**2 + width * (mean + level) * hazard(z)


ROUNDS = 50  # of expectation and maximisation; with half of the work unfinished, the sixth digit still moves


@dataclass(frozen=True)
class Fit:
    """One distribution; kind and settings are those of `kasync.timelines.durations`."""

    kind: str
    settings: Mapping[str, float]
    log_likelihood: float
    bic: float  # parameters * log(n) - 2 log likelihood: smaller is better


@dataclass(frozen=True)
class Fleet:
    """The best fit of work at speed 1, how fast each client is, and the fits that lost."""

    best: Fit
    candidates: tuple[Fit, ...]  # best first
    speeds: Floats  # [clients]; a client's seconds are divided by its speed, 1 for the typical client
    speed_spread: float  # standard deviation of log speed between clients


def fit_fleet(observed: Observed, population: int) -> Fleet:
    """Clients of one speed or of their own, and the distribution of what is left: whatever BIC likes best.

    Own speeds cost 2 for each client whose speed could be told from the fleet's (conditional AIC for random effects).
    """
    alike = Fleet(*_ranked(fit_durations(observed.seconds, observed.ended)), np.ones(population), 0.0)
    speeds, between, told_apart = client_speeds(observed, population)
    factor = speeds[observed.clients]  # [n]
    stretched = fit_durations(observed.seconds * factor, observed.ended)
    # Seconds at speed 1 are not the observed seconds: the change of variable enters the likelihood.
    gain = 2 * float(np.log(factor[observed.ended]).sum()) - 2 * told_apart
    own = Fleet(*_ranked(replace(fit, bic=fit.bic - gain) for fit in stretched), speeds, between)
    return min(alike, own, key=lambda fleet: fleet.best.bic)


def _ranked(fits: Iterable[Fit]) -> tuple[Fit, tuple[Fit, ...]]:
    ranked = tuple(sorted(fits, key=lambda fit: fit.bic))
    return ranked[0], ranked


def fit_durations(seconds: Floats, ended: np.ndarray) -> tuple[Fit, Fit, Fit]:
    """Log-normal, exponential and shifted exponential at their maximum likelihood; seconds [n], ended [n]."""
    return _log_normal(seconds, ended), _exponential(seconds, ended), _shifted_exponential(seconds, ended)


def client_speeds(observed: Observed, population: int) -> tuple[Floats, float, float]:
    """(speeds [population], standard deviation of log speed between clients, how many clients' speeds could be told).

    log seconds = typical - log speed + noise. Each client's mean is drawn towards the fleet's by the share of its own
    noise in it, so a client seen once is hardly trusted and one never seen has speed 1; unfinished work enters by its
    expectation given that it is longer than seen (expectation-maximisation).
    """
    owners, logs, ended = observed.clients.astype(np.int64), np.log(observed.seconds), observed.ended
    counts = np.bincount(owners, minlength=population).astype(np.float64)  # [population]
    seen = counts > 0
    means = np.full(population, logs.mean())
    within, between, trust = max(float(logs.std()), 1e-9), 0.0, np.zeros(int(seen.sum()))
    for _ in range(ROUNDS):
        centre = means[owners]
        filled = np.where(ended, logs, mean_above(logs, centre, within))  # [n]
        unsure = np.maximum(square_above(logs, centre, within) - filled**2, 0.0)
        extra = np.where(ended, 0.0, unsure)  # [n] variance of what was filled in
        own = np.bincount(owners, weights=filled, minlength=population)[seen] / counts[seen]  # [seen]
        residual = np.square(filled - _spread_out(own, seen)[owners]) + extra
        # A client's own mean has used up one of its observations.
        within = max(float(np.sqrt(residual.sum() / max(len(logs) - seen.sum(), 1.0))), 1e-9)
        typical = float(own.mean())
        spread = float(np.square(own - typical).mean() - (within**2 / counts[seen]).mean())
        between = float(np.sqrt(max(spread, 0.0)))
        trust = between**2 / (between**2 + within**2 / counts[seen])
        means = np.where(seen, _spread_out(typical + trust * (own - typical), seen), typical)
    return np.exp(means.mean() - means), between, float(trust.sum())


def _spread_out(values: Floats, seen: np.ndarray) -> Floats:
    """Values of the seen clients at their places, 0 elsewhere [population]."""
    out = np.zeros(len(seen))
    out[seen] = values
    return out


def _log_normal(seconds: Floats, ended: np.ndarray) -> Fit:
    """Censored normal in the logarithm, by expectation-maximisation."""
    logs = np.log(seconds)
    centre, width = float(logs.mean()), max(float(logs.std()), 1e-9)
    for _ in range(ROUNDS):
        firsts = np.where(ended, logs, mean_above(logs, centre, width))
        seconds_moment = np.where(ended, logs**2, square_above(logs, centre, width))
        new_centre = float(firsts.mean())
        width = max(float(np.sqrt(max(seconds_moment.mean() - new_centre**2, 0.0))), 1e-9)
        centre = new_centre
    z = (logs - centre) / width
    density = -0.5 * z**2 - log(width) - 0.5 * log(2 * pi) - logs
    likelihood = float(np.where(ended, density, log_survival(z)).sum())
    return _fit("log_normal", {"median": float(np.exp(centre)), "spread": width}, likelihood, len(seconds))


def _exponential(seconds: Floats, ended: np.ndarray) -> Fit:
    mean = float(seconds.sum() / ended.sum())
    likelihood = -float(ended.sum()) * (log(mean) + 1)
    return _fit("exponential", {"mean": mean}, likelihood, len(seconds))


def _shifted_exponential(seconds: Floats, ended: np.ndarray) -> Fit:
    """The shift is the shortest finished work; work under way for less than that says nothing."""
    shift = float(seconds[ended].min())
    mean = float(np.maximum(seconds - shift, 0).sum() / ended.sum())
    likelihood = -float(ended.sum()) * (log(mean) + 1) if mean > 0 else inf
    return _fit("shifted_exponential", {"shift": shift, "mean": max(mean, 1e-12)}, likelihood, len(seconds))


def _fit(kind: str, settings: dict[str, float], likelihood: float, count: int) -> Fit:
    return Fit(kind, settings, likelihood, len(settings) * log(count) - 2 * likelihood)
