"""Plain loops, in float64, over the formulas of rules that correct, balance, average or look ahead."""

from __future__ import annotations

import itertools
import math

import torch
from plain_remembering import evened, mean
from plain_weighing import ages, rows
from torch import Tensor

from kasync import Arrivals


def trained(params: Tensor, arrivals: Arrivals) -> list[Tensor]:
    """K models that clients have trained."""
    return [start - g for start, g in zip(started(params, arrivals), rows(arrivals), strict=True)]


def started(params: Tensor, arrivals: Arrivals) -> list[Tensor]:
    return [params if arrivals.starts is None else start.double() for start in arrivals.starts]


class FedStale:
    """Delta = beta mean_j h_j + (1/K) sum (Delta_i - beta h_i), with p_i = K/P and equal a_i."""

    def __init__(self, lr: float, clients: int, beta: float) -> None:
        self.lr, self.beta, self.clients = lr, beta, clients
        self.h: dict[int, Tensor] = {}

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        nothing, who = torch.zeros_like(params), [int(client) for client in arrivals.clients]
        total = nothing
        for client in range(self.clients):
            total = total + self.beta * self.h.get(client, nothing) / self.clients
        for client, g in zip(who, rows(arrivals), strict=True):
            total = total + (g - self.beta * self.h.get(client, nothing)) / len(who)
        self.h |= dict(zip(who, rows(arrivals), strict=True))
        return -self.lr * total


class Area:
    """w is the mean of everybody's newest trained model."""

    def __init__(self, clients: int, lr: float = 1.0) -> None:
        self.clients, self.lr, self.first = clients, lr, None
        self.models: dict[int, Tensor] = {}

    def average(self) -> Tensor:
        return mean([self.models.get(client, self.first) for client in range(self.clients)])

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        self.first = params if self.first is None else self.first
        before = self.average()
        self.models |= dict(zip(map(int, arrivals.clients), trained(params, arrivals), strict=True))
        return self.lr * (self.average() - before)


class FedFa:
    """w is the mean of the newest Q trained models."""

    def __init__(self, queue: int, lr: float = 1.0) -> None:
        self.size, self.lr, self.queue = queue, lr, None

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        self.queue = [params] * self.size if self.queue is None else self.queue
        before = mean(self.queue)
        self.queue = (self.queue + trained(params, arrivals))[-self.size :]
        return self.lr * (mean(self.queue) - before)


class RescaledAsgd:
    """Rates in proportion to T_i, which is one over how often client i has come, with mean 1 over all deliveries."""

    def __init__(self, lr: float) -> None:
        self.lr, self.counts = lr, {}

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        who = [int(client) for client in arrivals.clients]
        for client in who:
            self.counts[client] = self.counts.get(client, 0) + 1
        times = {client: 1.0 / count for client, count in self.counts.items()}
        normal = sum(1.0 / time for time in times.values()) / len(times)
        return -self.lr * mean([times[client] * normal * g for client, g in zip(who, rows(arrivals), strict=True)])


class AsyncFedEd:
    """gamma_i = |w - start_i| / |g_i|; step lambda / (gamma_i + epsilon) with lambda = epsilon."""

    def __init__(self, lr: float, epsilon: float = 1.0) -> None:
        self.lr, self.epsilon = lr, epsilon

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        moved = []
        for g, start in zip(rows(arrivals), started(params, arrivals), strict=True):
            gamma = float((params - start).norm() / g.norm())
            moved.append(self.epsilon / (gamma + self.epsilon) * g)
        return -self.lr * mean(moved)


class Port:
    """(n_i/N) (a b/(s_i + b) + c (1 + cos)/2), normalised; fresh work counts as agreeing."""

    def __init__(self, lr: float, b: float = 10.0, a: float = 3.0, c: float = 1.0) -> None:
        self.lr, self.a, self.b, self.c = lr, a, b, c

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        weights = []
        for g, start, tau, size in zip(
            rows(arrivals), started(params, arrivals), ages(arrivals), arrivals.batch_sizes, strict=True
        ):
            way = params - start
            cosine = 1.0 if tau <= 1 else float(-g @ way / (g.norm() * way.norm()))
            weights.append(float(size) * (self.a * self.b / (tau + self.b) + self.c * (1.0 + cosine) / 2.0))
        moved = [w / sum(weights) * g for w, g in zip(weights, rows(arrivals), strict=True)]
        return -self.lr * torch.stack(moved).sum(0)


class GapAware:
    """g / (1 + |w - start| / C), C the length of a usual step of the coordinate."""

    def __init__(self, lr: float, decay: float = 0.999) -> None:
        self.lr, self.decay, self.squares = lr, decay, []

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        self.squares.append(mean([g**2 for g in rows(arrivals)]))
        shares = [self.decay**age for age in range(len(self.squares))][::-1]
        average = torch.stack([s * q for s, q in zip(shares, self.squares, strict=True)]).sum(0) / sum(shares)
        usual = self.lr * (average.sqrt() + 1e-8)
        moved = [
            g / (1.0 + (params - start).abs() / usual)
            for g, start in zip(rows(arrivals), started(params, arrivals), strict=True)
        ]
        return -self.lr * mean(moved)


class DcAsgd:
    """g + lambda g (.) g (.) (w - start), lambda fixed or over the root of a running mean of squares."""

    def __init__(self, lr: float, compensation: float = 0.04, decay: float | None = None) -> None:
        self.lr, self.compensation, self.decay, self.square = lr, compensation, decay, None

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        factor = self.compensation
        if self.decay is not None:
            old = torch.zeros_like(params) if self.square is None else self.square
            self.square = self.decay * old + (1.0 - self.decay) * mean([g**2 for g in rows(arrivals)])
            factor = self.compensation / (self.square + 1e-7).sqrt()
        moved = [
            g + factor * g * g * (params - start)
            for g, start in zip(rows(arrivals), started(params, arrivals), strict=True)
        ]
        return -self.lr * mean(moved)


class MomentumApproximation:
    """m_t = u r_t + v m_(t-1) and a_t = u e_t + v a_(t-1), with W^T a_t nearest to row t of M; W and a in full."""

    def __init__(self, lr: float, beta: float = 0.9, power: float = 0.0) -> None:
        self.lr, self.beta, self.power = lr, beta, power
        self.m: Tensor | None = None
        self.a: list[float] = []
        self.w: list[dict[int, float]] = []  # by step, the weight it gives to each version

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        t, k = len(self.w), len(arrivals)
        r, row = torch.zeros_like(params), {}
        for g, tau in zip(rows(arrivals), ages(arrivals), strict=True):
            weight = (1.0 + tau) ** -self.power / k
            r, version = r + weight * g, t - int(tau)
            row[version] = row.get(version, 0.0) + weight
        self.w.append(row)
        versions = sorted({v for each in self.w for v in each} | set(range(t + 1)))
        target = torch.tensor(
            [(1 - self.beta) * self.beta ** (t - v) if v >= 0 else 0.0 for v in versions], dtype=torch.float64
        )
        fresh = torch.tensor([row.get(v, 0.0) for v in versions], dtype=torch.float64)
        past = torch.zeros(len(versions), dtype=torch.float64)
        for share, each in zip(self.a, self.w[:-1], strict=True):
            past = past + share * torch.tensor([each.get(v, 0.0) for v in versions], dtype=torch.float64)
        parallel = float(fresh @ past) ** 2 > (1 - 1e-12) * float(fresh @ fresh) * float(past @ past)
        table = fresh[:, None] if parallel else torch.stack([fresh, past], 1)  # any u and v would do; v = 0 is taken
        u, *v = torch.linalg.lstsq(table, target[:, None], driver="gelsd").solution.flatten().tolist()
        v = v[0] if v else 0.0
        self.a = [v * share for share in self.a] + [u]
        self.m = u * r + (0.0 if self.m is None else v * self.m)
        return -self.lr * self.m


class MomentumLookAhead:
    """m <- b m + (1-b) d; w <- w - lr (d + b m). Ahead, clients are sent w - lr b m, whose moves are returned."""

    def __init__(self, lr: float, b: float = 0.9, ahead: bool = False) -> None:
        self.lr, self.b, self.m, self.ahead = lr, b, 0.0, ahead

    def corrected(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        return mean(rows(arrivals))

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        sent = params
        w = sent + self.lr * self.b * self.m if self.ahead else sent
        d = self.corrected(params, arrivals)
        self.m = self.b * self.m + (1 - self.b) * d
        w = w - self.lr * (d + self.b * self.m)
        return (w - self.lr * self.b * self.m if self.ahead else w) - sent


class HeLoCo(MomentumLookAhead):
    """Block by block: keep, shrink along the momentum or turn towards it; then the look-ahead step."""

    def __init__(self, lr: float, layers, rho: float = 1.0, kappa: float = 3.0, ahead: bool = True) -> None:
        super().__init__(lr, 0.9, ahead)
        self.layers, self.rho, self.kappa = layers, rho, kappa
        self.branches: set[str] = set()

    def corrected(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        d = mean(rows(arrivals))
        momentum, start, blocks = self.m if isinstance(self.m, Tensor) else torch.zeros_like(d), 0, []
        for shape in self.layers:
            end = start + math.prod(shape)
            blocks.append(self.block(d[start:end], momentum[start:end]))
            start = end
        return self.rho * torch.cat(blocks)

    def block(self, d: Tensor, m: Tensor) -> Tensor:
        if float(d.norm()) == 0.0 or float(m.norm()) == 0.0:
            return d
        c = float(d @ m) / float(d.norm() * m.norm())
        confidence = float(d.norm() / (d.norm() + self.kappa * m.norm()))
        if c >= 0.2:
            self.branches.add("kept")
            return d
        if c < 0.0:
            self.branches.add("shrunk")
            beta = min(0.5 * -c * confidence, 0.5)
            return d - beta * float(d @ m) / float(m @ m) * m
        self.branches.add("turned")
        share = min((0.2 - c) / 0.4 * confidence, 1.0)
        turned = (1 - share) * d / d.norm() + share * m / m.norm()
        return turned / turned.norm() * d.norm()


class DelayedNesterov:
    """Gather N; then the momentum takes in their mean and is stepped along once."""

    def __init__(self, lr: float, b: float = 0.9, n: int = 10, c: float = 0.0) -> None:
        self.lr, self.b, self.n, self.c = lr, b, n, c
        self.m, self.gathered, self.count = 0.0, 0.0, itertools.count(1)

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        g = mean(rows(arrivals))
        self.gathered = self.gathered + g
        if next(self.count) % self.n == 0:
            self.m = self.b * self.m + self.gathered / self.n
            self.gathered = 0.0
            return -self.lr * ((1 - self.c * self.n + self.c) * self.b * self.m + g / self.n)
        return -self.lr * (self.c * self.b * self.m + g / self.n)


class FedAvgM:
    """v <- b v + d; w <- w - lr v"""

    def __init__(self, lr: float, b: float = 0.9) -> None:
        self.lr, self.b, self.v = lr, b, 0.0

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        self.v = self.b * self.v + mean(rows(arrivals))
        return -self.lr * self.v


class FedAdam:
    """Algorithm 2 of Reddi et al., with v_0 = tau^2; Yogi's v only differs in its second line."""

    def __init__(self, lr: float, betas: tuple[float, float], tau: float, yogi: bool = False) -> None:
        self.lr, self.betas, self.tau, self.yogi, self.m = lr, betas, tau, yogi, 0.0
        self.v: Tensor | None = None

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        delta = -mean(rows(arrivals))
        v = torch.full_like(params, self.tau**2) if self.v is None else self.v
        self.m = self.betas[0] * self.m + (1 - self.betas[0]) * delta
        if self.yogi:
            self.v = v - (1 - self.betas[1]) * delta**2 * (v - delta**2).sign()
        else:
            self.v = self.betas[1] * v + (1 - self.betas[1]) * delta**2
        return self.lr * self.m / (self.v.sqrt() + self.tau)


class Ringmaster:
    """A worker's delay is how many updates the server has accepted since it began; from R on its work is ignored."""

    def __init__(self, lr: float, bound: float, momentum: float | None = None, layers=()) -> None:
        self.lr, self.bound, self.momentum, self.layers = lr, bound, momentum, layers
        self.accepted: list[bool] = []  # by step
        self.m = 0.0

    def delay(self, tau: float) -> float:
        known = min(int(tau), len(self.accepted))
        return sum(self.accepted[len(self.accepted) - known :]) + tau - known

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        delays = [self.delay(tau) for tau in ages(arrivals)]
        fresh = [g for g, delay in zip(rows(arrivals), delays, strict=True) if delay < self.bound]
        self.accepted.append(bool(fresh))
        if not fresh:
            return torch.zeros_like(params)
        if self.momentum is None:
            return -self.lr * mean(fresh)
        self.m = self.momentum * self.m + (1 - self.momentum) * mean(fresh)
        return -self.lr * evened(self.m, self.layers)
