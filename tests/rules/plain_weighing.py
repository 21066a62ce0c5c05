"""Plain loops of the rules that only weigh deliveries, from the printed formulas, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kasync import Arrivals


def rows(arrivals: Arrivals) -> list[Tensor]:
    """K gradients [D] in float64."""
    return [gradient.double() for gradient in arrivals.gradients]


def ages(arrivals: Arrivals) -> list[float]:
    return [float(value) for value in arrivals.staleness]


class Weighing:
    """A rule that is lr * sum weight_i * g_i, with weights from staleness and batch sizes."""

    def __init__(self, lr: float, weights: Callable[[list[float], list[float]], list[float]]) -> None:
        self.lr, self.weights = lr, weights

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        weights = self.weights(ages(arrivals), [float(size) for size in arrivals.batch_sizes])
        total = torch.zeros_like(params)
        for weight, gradient in zip(weights, rows(arrivals), strict=True):
            total = total + weight * gradient
        return -self.lr * total


def kasync_sgd(lr: float) -> Weighing:
    """Eq. 2"""
    return Weighing(lr, lambda tau, m: [1 / len(tau)] * len(tau))


def twafl(lr: float, normalize: bool = True) -> Weighing:
    """(m_i / m) (e/2)^(-tau_i), divided by the sum of the weights or as printed"""

    def weights(tau: list[float], m: list[float]) -> list[float]:
        if not normalize:
            return [m[i] / sum(m) * (math.e / 2) ** -tau[i] for i in range(len(tau))]
        raw = [m[i] * (math.e / 2) ** -(tau[i] - min(tau)) for i in range(len(tau))]
        return [value / sum(raw) for value in raw]

    return Weighing(lr, weights)


def sasgd(lr: float) -> Weighing:
    """(1/K) sum (eta_0 / max(tau_i, 1)) g_i"""
    return Weighing(lr, lambda tau, m: [1 / len(tau) / max(t, 1) for t in tau])


def fedbuff(lr: float, power: float = 0.5) -> Weighing:
    """(1/K) sum g_i / (1 + tau_i)^power"""
    return Weighing(lr, lambda tau, m: [1 / len(tau) / (1 + t) ** power for t in tau])


def delay_adaptive(lr: float, concurrency: float) -> Weighing:
    """lr while tau <= tau_C, lr tau_C / tau beyond"""
    return Weighing(lr, lambda tau, m: [1 / len(tau) * (1 if t <= concurrency else concurrency / t) for t in tau])


class FedAsync:
    """x <- (1 - alpha_t) x + alpha_t x_new with alpha_t = alpha s(t - tau); K at a time, the mean of the K results."""

    def __init__(self, mixing: float, discount: Callable[[float], float]) -> None:
        self.mixing, self.discount = mixing, discount

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        mean = torch.zeros_like(params)
        for i, (gradient, tau) in enumerate(zip(rows(arrivals), ages(arrivals), strict=True)):
            start = params if arrivals.starts is None else arrivals.starts[i].double()
            trained = start - gradient
            share = self.mixing * self.discount(tau)
            mean = mean + ((1 - share) * params + share * trained) / len(arrivals)
        return mean - params


def polynomial(tau: float) -> float:
    return (tau + 1) ** -0.5


def hinge(tau: float) -> float:
    """a = 10, b = 4"""
    return 1.0 if tau <= 4 else 1 / (10 * (tau - 4) + 1)


class Fadas:
    """m, v and the running maximum of v, without bias correction; a shorter step when somebody is late."""

    def __init__(
        self, lr: float, patience: float, betas: tuple[float, float], eps: float, scaled: bool = False
    ) -> None:
        self.lr, self.patience, self.betas, self.eps, self.scaled = lr, patience, betas, eps, scaled
        self.m = self.v = self.top = torch.zeros(())

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        update = -sum(rows(arrivals), start=torch.zeros_like(params)) / len(arrivals)  # Delta, a model difference
        self.m = self.betas[0] * self.m + (1 - self.betas[0]) * update
        self.v = self.betas[1] * self.v + (1 - self.betas[1]) * update**2
        self.top = torch.maximum(self.top.expand_as(self.v), self.v)
        latest = max(ages(arrivals))
        late = self.lr / latest if self.scaled and latest > 0 else min(self.lr, 1 / max(latest, 1))
        lr = self.lr if latest <= self.patience else late
        return lr * self.m / (self.top.sqrt() + self.eps)
