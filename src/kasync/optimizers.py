"""How does the server follow a direction? Plainly, or through any optimiser of torch.optim."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kasync import checks, span
from kasync.constants import where

OptimizerFactory = Callable[..., torch.optim.Optimizer]
Layers = tuple[tuple[int, ...], ...]  # the shapes of a model's arrays, in the order they have in the vector [D]
PREFIX = "optimizer."
STEEP = (3.4445, -4.7750, 2.0315)  # the odd polynomial of Jordan et al., steep at zero


def follow(
    optimizer: OptimizerFactory,
    params: Tensor,
    direction: Tensor,
    lr: Tensor,
    memory: Mapping[str, Tensor],
    layers: Layers | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The parameters after what the optimiser makes of the direction, and its new state.

    The optimiser moves a vector of zeros with a learning rate of 1, so that its move is exact and the rule's own
    learning rate, which may depend on staleness, scales it. Decoupled weight decay is therefore not available.
    """
    place = torch.zeros_like(params)
    place.grad = direction
    made = optimizer([place], **_settings(optimizer, params, layers))
    state = {name.removeprefix(PREFIX): value.clone() for name, value in memory.items() if name.startswith(PREFIX)}
    if state:
        made.state[place] = dict(state)
    made.step()
    kept = {PREFIX + name: value for name, value in made.state[place].items() if isinstance(value, Tensor)}
    return params + lr.to(params.dtype) * place.detach(), kept


def check(optimizer: OptimizerFactory | None) -> None:
    """Refuse what cannot follow a direction, by letting it take one step."""
    if optimizer is None:
        return
    if "lr" in getattr(optimizer, "keywords", {}):
        raise ValueError(f"optimizer has lr = {optimizer.keywords['lr']!r}: give it to the rule, whose lr is used")  # type: ignore[attr-defined]
    place = torch.zeros(1, requires_grad=True)
    place.grad = torch.zeros(1)
    try:
        made = optimizer([place], **_settings(optimizer, place))
        made.step()
    except Exception as problem:
        raise ValueError(f"optimizer = {optimizer!r}: cannot follow a direction ({problem})") from problem
    if any(group.get("weight_decay") for group in made.param_groups):
        raise ValueError(
            "optimizer has a weight_decay: a rule's optimiser cannot decay weights; add the penalty to the loss instead"
        )


def takes_layers(optimizer: OptimizerFactory | None) -> bool:
    """Whether it moves a model layer by layer."""
    return optimizer is not None and "layers" in inspect.signature(optimizer).parameters


def check_layers(layers: Layers | None, length: int) -> None:
    """Refuse shapes of another model's arrays."""
    if layers is not None and (found := sum(map(math.prod, layers))) != length:
        raise ValueError(f"layers hold {found} parameters and params {length}: give the shapes of this model's arrays")


def _settings(optimizer: OptimizerFactory, params: Tensor, layers: Layers | None = None) -> dict[str, Any]:
    """A learning rate of 1, no weight decay, on CUDA the variant that a graph can capture, the layers if it asks."""
    known = inspect.signature(optimizer).parameters
    settings: dict[str, Any] = {"lr": 1.0}
    bound = getattr(optimizer, "keywords", {})
    if "weight_decay" in known and "weight_decay" not in bound:
        settings["weight_decay"] = 0.0
    if params.is_cuda and "capturable" in known:
        settings["capturable"] = True
    if "layers" in known:
        settings["layers"] = layers
    return settings


class Plain(torch.optim.Optimizer):
    """move lr d: a plain step, for a rule that has another optimiser of its own."""

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for place in group["params"]:
                place.add_(place.grad, alpha=-group["lr"])


class AMSGrad(torch.optim.Optimizer):
    """m = b1 m + (1-b1) d;  v = b2 v + (1-b2) d^2;  top = max(top, v);  move lr m / (sqrt(top) + eps)

    As FADAS writes it: without Adam's correction of the first steps.
    """

    def __init__(
        self, params: Any, lr: float = 1.0, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8
    ) -> None:
        if not (isinstance(betas, Sequence) and len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(f"betas = {betas!r}: must be two numbers in [0, 1)")
        checks.above("eps", eps, 0.0)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for place in group["params"]:
                zero = torch.zeros_like(place)
                state = self.state[place]
                mean = torch.lerp(place.grad, state.get("mean", zero), first)
                square = torch.lerp(place.grad.square(), state.get("square", zero), second)
                top = torch.maximum(state.get("top", zero), square)
                self.state[place] = {"mean": mean, "square": square, "top": top}
                place.add_(mean / (top.sqrt() + group["eps"]), alpha=-group["lr"])


class Muon(torch.optim.Optimizer):
    """m = momentum m + (1-momentum) d;  move lr U V^T,  U S V^T the layer's part of m

    Jordan et al.: Muon (2024): every layer moves equally far in all its directions. An array of several dimensions is
    the matrix of its first one, a vector is a matrix of one row; without `layers` the whole model is one vector.
    """

    def __init__(self, params: Any, lr: float = 1.0, momentum: float = 0.5, layers: Layers | None = None) -> None:
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum = {momentum!r}: must be a number in [0, 1)")
        super().__init__(params, {"lr": lr, "momentum": momentum, "layers": layers})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for place in group["params"]:
                before = self.state[place].get("mean", torch.zeros_like(place))
                mean = torch.lerp(place.grad, before, group["momentum"])
                self.state[place] = {"mean": mean}
                place.add_(_evened(mean, group["layers"]), alpha=-group["lr"])


def _evened(vector: Tensor, layers: Layers | None) -> Tensor:
    """[D] every layer's matrix with its singular values set to one."""
    shapes = layers or ((len(vector),),)
    parts = vector.split([math.prod(shape) for shape in shapes])
    rows = (shape[0] if len(shape) > 1 else 1 for shape in shapes)
    with span.full_precision():
        evened = [_even(part.view(count, -1)) if len(part) else part for part, count in zip(parts, rows, strict=True)]
    return torch.cat([part.flatten() for part in evened])


def _even(matrix: Tensor) -> Tensor:
    """[rows, columns] U V^T of U S V^T, nearly: five products bring the singular values to .7 to 1.2."""
    rows, columns = matrix.shape
    x = matrix.mT if rows > columns else matrix
    length = x.norm()
    x = x / where(length > 0, length, 1.0)
    if min(rows, columns) > 1:
        for _ in range(5):
            gram = x @ x.mT
            bent = torch.addmm(gram, gram, gram, beta=STEEP[1], alpha=STEEP[2])
            x = torch.addmm(x, bent, x, beta=STEEP[0])
    return x.mT if rows > columns else x
