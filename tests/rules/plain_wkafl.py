"""WKAFL as the paper prints it: one loop per formula, one client at a time, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kasync import Arrivals


class PlainWkafl:
    """Algorithms 1-3 and Eqs. 4-10, with the paper's letters; the three flags are the ablations of Fig. 5."""

    def __init__(
        self,
        lr: float,
        momentum: float,
        max_norm: float,
        sharpness: float,
        threshold: float,
        ratio: float,
        loss_threshold: float,
        lr_decay: float,
        remember: str = "estimate",
        selects: bool = True,
        heeds_staleness: bool = True,
        heeds_non_iidness: bool = True,
        as_coded: bool = False,
    ) -> None:
        self.eta_0, self.CB, self.beta, self.sim_min = lr, max_norm, sharpness, threshold
        self.B, self.epsilon, self.gamma = ratio, loss_threshold, lr_decay
        self.alpha = momentum if heeds_non_iidness else 0.0
        self.remember, self.selects, self.heeds_staleness = remember, selects, heeds_staleness
        self.as_coded = as_coded  # a_i in the selection's weights, no stage two, staleness from 1
        self.previous: Tensor | None = None  # [D] the estimate (or aggregate) of the previous update
        self.stage = 1
        self.weights: list[float] = []
        self.similarities: list[float] = []
        self.eta = lr

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor:
        """[D] what this update adds to the parameters."""
        k = len(arrivals)
        tau = [float(value) + self.as_coded for value in arrivals.staleness]

        clipped = []  # gc_i, each [D]
        for i in range(k):
            corrected = arrivals.gradients[i].double()
            if self.previous is not None:
                corrected = corrected + self.alpha * self.previous
            norm = float(corrected.norm())
            clipped.append(corrected * (self.CB / norm) if norm > self.CB else corrected)

        a = [(math.e / 2) ** -(tau[i] - min(tau)) if self.heeds_staleness else 1.0 for i in range(k)]
        estimate = torch.zeros_like(clipped[0])  # gbar
        for i in range(k):
            estimate = estimate + a[i] / sum(a) * clipped[i]

        self.similarities = []
        for i in range(k):
            lengths = float(clipped[i].norm() * estimate.norm())
            self.similarities.append(float(clipped[i] @ estimate) / lengths if lengths > 0 else 0.0)

        if not self.as_coded and sum(float(loss) for loss in arrivals.losses) / k <= self.epsilon:
            self.stage = 2
        if self.stage == 2:
            for i in range(k):
                bound = self.B * float(estimate.norm())
                norm = float(clipped[i].norm())
                if norm > bound:
                    clipped[i] = clipped[i] * (bound / norm)

        if self.selects:
            p = [math.exp(self.beta * sim) if sim >= self.sim_min else 0.0 for sim in self.similarities]
            if self.as_coded:
                passing = [tau[i] for i in range(k) if p[i] > 0]  # else all weights would vanish together
                p = [p[i] * (math.e / 2) ** -(tau[i] - min(passing)) if p[i] > 0 else 0.0 for i in range(k)]
        else:
            p = a
        if sum(p) > 0:
            self.weights = [p[i] / sum(p) for i in range(k)]
            aggregate = torch.zeros_like(estimate)
            for i in range(k):
                aggregate = aggregate + self.weights[i] * clipped[i]
        else:
            self.weights = [a[i] / sum(a) for i in range(k)]
            aggregate = estimate

        self.eta = self.eta_0 / (self.gamma * min(tau) + 1.0) if self.heeds_staleness else self.eta_0
        self.previous = estimate if self.remember == "estimate" else aggregate
        return -self.eta * aggregate
