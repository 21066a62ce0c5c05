"""Plain loops of the rules that distrust clients, from the printed formulas, in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from plain_remembering import mean
from plain_weighing import rows
from torch import Tensor

from kasync import Arrivals

OwnGradient = Callable[..., Tensor]


class Zeno:
    """Rescale to |v|, accept by score, follow the accepted; v anew before every candidate while accepted % k == 0."""

    draws = False  # whether the server's gradient is on other samples in every step

    def __init__(
        self, lr: float, server_gradient: OwnGradient, scale: float, penalty: float, slack: float, refresh_every: int
    ) -> None:
        self.lr, self.own, self.gamma, self.rho, self.epsilon = lr, server_gradient, scale, penalty, slack
        self.k, self.accepted, self.v, self.step = refresh_every, 0, None, 0
        self.decisions: list[bool] = []

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        if self.accepted % self.k == 0:
            self.v = self.own(params, torch.tensor(self.step)) if self.draws else self.own(params)
        accepted, self.step = [], self.step + 1
        for gradient in rows(arrivals):
            norm = float(gradient.norm())
            g = gradient * (float(self.v.norm()) / norm) if norm > 0 else gradient
            good = self.gamma * float(self.v @ g) - self.rho * float(g @ g) >= -self.gamma * self.epsilon
            self.decisions.append(good)
            accepted += [g] if good else []
        if not accepted:
            return torch.zeros_like(params)
        self.accepted += 1
        return -self.lr * mean(accepted)


class DrawingZeno(Zeno):
    """The same with other samples for every v."""

    draws = True


class Krum:
    """The gradient whose n - f - 2 nearest others are nearest."""

    def __init__(self, lr: float, byzantine: int) -> None:
        self.lr, self.byzantine = lr, byzantine

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        gradients = rows(arrivals)
        neighbours = max(len(gradients) - self.byzantine - 2, 1)
        scores = []
        for i, gradient in enumerate(gradients):
            apart = sorted(float((gradient - other).norm()) ** 2 for j, other in enumerate(gradients) if j != i)
            scores.append(sum(apart[:neighbours]))
        best = [gradient for gradient, score in zip(gradients, scores, strict=True) if score == min(scores)]
        return -self.lr * mean(best)


class GeometricMedian:
    """Smoothed Weiszfeld: weights m_i / max(nu, |v - g_i|), from the weighted mean on."""

    def __init__(self, lr: float, iterations: int = 16, smoothing: float = 1e-6) -> None:
        self.lr, self.iterations, self.nu = lr, iterations, smoothing

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        gradients, sizes = rows(arrivals), [float(size) for size in arrivals.batch_sizes]

        def combined(weights: list[float]) -> Tensor:
            parts = [weight / sum(weights) * g for weight, g in zip(weights, gradients, strict=True)]
            return torch.stack(parts).sum(0)

        v = combined(sizes)
        for _ in range(self.iterations):
            v = combined([m / max(self.nu, float((v - g).norm())) for m, g in zip(sizes, gradients, strict=True)])
        return -self.lr * v


class FlTrust:
    """Trust max(0, cos(g_i, v)); every gradient at the length of v."""

    def __init__(self, lr: float, server_gradient: OwnGradient) -> None:
        self.lr, self.own = lr, server_gradient

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        v, total, trusts = self.own(params), torch.zeros_like(params), 0.0
        for g in rows(arrivals):
            trust = max(0.0, float(g @ v / (g.norm() * v.norm())))
            total, trusts = total + trust * g * v.norm() / g.norm(), trusts + trust
        return -self.lr * total / trusts if trusts > 0 else total


class AflGuard:
    """Follow those with |g_i - v| <= radius |v|."""

    def __init__(self, lr: float, server_gradient: OwnGradient, radius: float) -> None:
        self.lr, self.own, self.radius = lr, server_gradient, radius
        self.decisions: list[bool] = []

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        v = self.own(params)
        near = [bool((g - v).norm() <= self.radius * v.norm()) for g in rows(arrivals)]
        self.decisions += near
        kept = [g for g, ok in zip(rows(arrivals), near, strict=True) if ok]
        return -self.lr * mean(kept) if kept else torch.zeros_like(params)
