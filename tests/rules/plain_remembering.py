"""Plain loops of the rules that remember clients, one list entry per client, in float64."""

from __future__ import annotations

import math

import torch
from deliveries import LAYERS
from plain_weighing import ages, rows
from torch import Tensor

from kasync import Arrivals


def mean(vectors: list[Tensor]) -> Tensor:
    """[D] the average of at least one vector."""
    total = torch.zeros_like(vectors[0])
    for vector in vectors:
        total = total + vector
    return total / len(vectors)


class Gsgm:
    """Rounds of [P/K] steps; every gradient of a round is corrected by the mean of the round before."""

    def __init__(self, lr: float, momentum: float, clients: int) -> None:
        self.lr, self.alpha, self.clients = lr, momentum, clients
        self.momentum: Tensor | None = None
        self.corrected: list[Tensor] = []

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        past = torch.zeros_like(params) if self.momentum is None else self.momentum
        now = [gradient + self.alpha * past for gradient in rows(arrivals)]
        self.corrected += now
        if self.clients - len(self.corrected) < len(now):  # too few are left to fill another step
            self.momentum, self.corrected = mean(self.corrected), []
        return -self.lr * mean(now)


class Ca2fl:
    """v = h + mean over the arrivals of (Delta_i - h_i), h the mean of all h_i before they are replaced."""

    def __init__(self, lr: float, clients: int) -> None:
        self.lr, self.clients = lr, clients
        self.last: dict[int, Tensor] = {}

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        nothing = torch.zeros_like(params)
        cached = mean([self.last.get(client, nothing) for client in range(self.clients)])
        who = [int(client) for client in arrivals.clients]
        news = mean([g - self.last.get(client, nothing) for client, g in zip(who, rows(arrivals), strict=True)])
        self.last |= dict(zip(who, rows(arrivals), strict=True))
        return -self.lr * (cached + news)


class Ace:
    """The mean of everybody's latest gradient; with max_staleness, of those computed at most so many steps ago."""

    def __init__(self, lr: float, clients: int, max_staleness: int | None = None) -> None:
        self.lr, self.max_staleness = lr, max_staleness
        self.latest: dict[int, tuple[Tensor, float]] = {}  # client -> its gradient, the version it belongs to
        self.number = 0

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        for client, gradient, tau in zip(arrivals.clients, rows(arrivals), ages(arrivals), strict=True):
            self.latest[int(client)] = (gradient, self.number - tau)
        limit = float("inf") if self.max_staleness is None else self.max_staleness
        recent = [gradient for gradient, version in self.latest.values() if self.number - version <= limit]
        self.number += 1
        return -self.lr * mean(recent) if recent else torch.zeros_like(params)


class Recall:
    """A client counts for less, in the mean and in what is taken from its gradient, the further the model has gone."""

    def __init__(
        self,
        lr: float,
        clients: int,
        half_distance: float = 0.12,
        power: float = 0.5,
        momentum: float = 0.5,
        reach: float = 0.12,
        layers: tuple[tuple[int, ...], ...] = LAYERS,
        measured: bool = False,
    ) -> None:
        self.lr, self.clients, self.half_distance, self.power, self.reach = lr, clients, half_distance, power, reach
        self.momentum, self.layers, self.measured = momentum, layers, measured
        self.pairs: list[list[tuple[Tensor, Tensor]]] = []  # by step, what was expected of each arrival and what came
        self.mean: Tensor | None = None  # of the directions so far
        self.last: dict[
            int, tuple[Tensor, float]
        ] = {}  # client -> its gradient, the square of the model's path to where it was computed
        self.factors: list[list[float]] = []  # by step, the discount of every arrival
        self.delays: list[list[float]] = []  # by step, the logarithm of one plus the staleness of every arrival
        self.path = 0.0  # sum of the squared lengths of all steps

    def trust(self, client: int) -> float:
        return 2.0 ** (-(self.path - self.last[client][1]) / self.half_distance**2) if client in self.last else 0.0

    def usual(self) -> float:
        """The mean of all factors; every later step takes half its share of a round from an earlier one's weight."""
        total, number, kept = 0.0, 0.0, 1.0
        for factors in reversed(self.factors):
            total, number = total + kept * sum(factors), number + kept * len(factors)
            kept *= 1.0 - 0.5 * len(factors) / self.clients
        return total / number

    def typical(self) -> float:
        """The geometric mean of all delays, likewise but with the whole share; before them came half a round's."""
        total, number, kept = 0.0, 0.0, 1.0
        for delays in reversed(self.delays):
            total, number = total + kept * sum(delays), number + kept * len(delays)
            kept *= 1.0 - len(delays) / self.clients
        before = kept * self.clients / 2.0
        total, number = total + before * math.log(self.clients / len(self.delays[0])), number + before
        return math.exp(total / number)

    def share(self) -> float:
        """The line through zero that fits all pairs best, every later step taking four of its shares of a round."""
        found, expected, kept = 0.0, 0.0, 1.0
        for pairs in reversed(self.pairs):
            found += kept * sum(float(before @ now) for before, now in pairs)
            expected += kept * sum(float(before @ before) for before, _ in pairs)
            kept *= max(0.0, 1.0 - 4.0 * len(pairs) / self.clients)
        return min(1.0, max(0.0, found / expected)) if self.measured and expected > 0 else 1.0

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        nothing, k = torch.zeros_like(params), len(arrivals.clients)
        trusted = sum(self.trust(client) for client in self.last)
        mean = sum((self.trust(client) * row for client, (row, _) in self.last.items()), nothing) / (trusted or 1.0)
        weights = [(1.0 + tau) ** -self.power for tau in ages(arrivals)]
        self.factors.append(weights)
        self.delays.append([math.log(1.0 + tau) for tau in ages(arrivals)])
        lr = min(self.lr, self.reach / math.sqrt(self.typical()))
        expected = [
            self.trust(int(client)) * (self.last.get(int(client), (nothing, 0.0))[0] - mean)
            for client in arrivals.clients
        ]
        self.pairs.append([(before, row - mean) for before, row in zip(expected, rows(arrivals), strict=True)])
        direction, fresh, share = nothing, {}, self.share()
        for client, row, tau, weight in zip(arrivals.clients, rows(arrivals), ages(arrivals), weights, strict=True):
            before, when = self.last.get(int(client), (nothing, -float("inf")))
            direction = direction + weight / self.usual() / k * (
                row - share * self.trust(int(client)) * (before - mean)
            )
            fresh[int(client)] = (row, max(self.path - tau * lr**2, when))
        self.last |= fresh
        self.path += lr**2
        before = nothing if self.mean is None else self.mean
        self.mean = self.momentum * before + (1.0 - self.momentum) * direction
        return -lr * evened(self.mean, self.layers)


def evened(vector: Tensor, layers: tuple[tuple[int, ...], ...]) -> Tensor:
    """[D] each layer's singular values, as shares of its length, put into Jordan's polynomial five times."""
    done, start = [], 0
    for shape in layers:
        stop = start + math.prod(shape)
        left, values, right = torch.linalg.svd(vector[start:stop].reshape(shape[0] if len(shape) > 1 else 1, -1), False)
        values = values / (values.norm() or 1.0)
        for _ in range(5 if len(values) > 1 else 0):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        done.append((left * values @ right).flatten())
        start = stop
    return torch.cat(done)


class Ringleader:
    """Two tables of gradient lists. K deliveries are put into the tables one by one; then there is at most one update.

    Phase one gathers until nobody's list is empty. In phase two each client is waited for once more, and each step in
    which one of the awaited delivers is an update; what others deliver meanwhile belongs to the next round's table.
    """

    def __init__(self, lr: float, clients: int) -> None:
        self.lr, self.clients = lr, clients
        self.now: list[list[Tensor]] = [[] for _ in range(clients)]
        self.next: list[list[Tensor]] = [[] for _ in range(clients)]
        self.awaited: set[int] = set()

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        who = [int(client) for client in arrivals.clients]
        if not self.awaited:  # phase one
            for client, gradient in zip(who, rows(arrivals), strict=True):
                self.now[client].append(gradient)
            if any(not gathered for gathered in self.now):
                return torch.zeros_like(params)
            self.awaited = set(range(self.clients)) - set(who)
        else:
            expected = [client for client in who if client in self.awaited]
            for client, gradient in zip(who, rows(arrivals), strict=True):
                (self.now if client in self.awaited else self.next)[client].append(gradient)
            self.awaited -= set(expected)
            if not expected:
                return torch.zeros_like(params)
        move = -self.lr * mean([mean(gathered) for gathered in self.now])
        if not self.awaited:
            self.now, self.next = self.next, [[] for _ in range(self.clients)]
        return move


class CenteredClip:
    """v <- v + (1/K) sum (g_i - v) min(1, radius / |g_i - v|), from the v of the step before."""

    def __init__(self, lr: float, radius: float, iterations: int = 1) -> None:
        self.lr, self.radius, self.iterations = lr, radius, iterations
        self.v: Tensor | None = None

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        v = torch.zeros_like(params) if self.v is None else self.v
        for _ in range(self.iterations):
            pulls = []
            for gradient in rows(arrivals):
                distance = float((gradient - v).norm())
                pulls.append((gradient - v) * (1 if distance <= self.radius else self.radius / distance))
            v = v + mean(pulls)
        self.v = v
        return -self.lr * v
