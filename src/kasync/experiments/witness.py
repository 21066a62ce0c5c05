"""A part that changes nothing and compares each step with grad F."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from kasync.arrivals import Arrivals
from kasync.core import Part, ServerState, Step
from kasync.data.federated import FederatedData, scaled
from kasync.theory.theorems import Floats

CHUNK = 1000  # samples of the whole gradient at once


@dataclass(frozen=True)
class Seen:
    """One step as the witness saw it, all of it from inner products."""

    squared_norm: float  # |grad F(w_j)|^2
    spread: float
    squared_length: float
    ratio: float
    error: float


@dataclass(frozen=True, eq=False)
class Witness(Part):
    """grad F joins the span of a step, so that its length and its distance from the estimate can be read off.

    It changes nothing: no gradient has a share in it. Between the steps it looks at, a row of zeros takes its place.
    """

    gradient: Callable[[Tensor], Tensor]  # params [D] -> grad F [D]
    every: int
    seen: dict[int, Seen] = field(default_factory=dict)
    points: dict[int, Floats] = field(default_factory=dict)  # step -> params [D]

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        if int(server.step) % self.every:
            return {"witness": torch.zeros_like(server.params)[None]}
        self.points[int(server.step)] = server.params.double().numpy()
        return {"witness": self.gradient(server.params)[None]}

    def __call__(self, step: Step) -> Step:
        number = int(step.number)
        if number % self.every == 0:
            true = step.unit("witness")[0]  # [B]
            estimate = step.direction if step.estimate is None else step.estimate  # [B]
            shares = step.weights / step.weights.sum().clamp(min=1e-300)  # [K]
            apart = step.norms(step.coefficients - estimate)  # [K]
            lengths, length = step.norms()[step.weights > 0], step.norms(estimate)
            self.seen[number] = Seen(
                squared_norm=float(step.dots(true, true)),
                spread=float(shares @ apart.square()),
                squared_length=float(length.square()),
                ratio=float(lengths.max() / length) if len(lengths) and length > 0 else 0.0,
                error=float(step.norms(estimate - true)),
            )
        return step


def whole_gradient(model: nn.Module, data: FederatedData, loss: Callable) -> Callable[[Tensor], Tensor]:
    """params [D] -> the gradient of F, the mean over clients of the mean loss over their samples [D]."""
    tensors = data.tensors()
    sizes = torch.from_numpy(np.diff(np.asarray(data.offsets)))
    shares = (1.0 / (data.clients * sizes.double())).repeat_interleave(sizes)  # [samples of all clients]
    own = list(model.named_parameters())

    def gradient(params: Tensor) -> Tensor:
        pieces = params.detach().split([value.numel() for _, value in own])
        values = {
            name: piece.reshape(value.shape).clone().requires_grad_()
            for (name, value), piece in zip(own, pieces, strict=True)
        }
        total = torch.zeros_like(params)
        for begin in range(0, len(shares), CHUNK):
            rows = tensors.indices[begin : begin + CHUNK]
            outputs = torch.func.functional_call(model, values, (scaled(tensors.inputs[rows], data.scale),))
            whole = (loss(outputs, tensors.labels[rows]) * shares[begin : begin + CHUNK]).sum()
            grads = torch.autograd.grad(whole, list(values.values()))
            total = total + torch.cat([each.reshape(-1) for each in grads])
        return total

    return gradient
