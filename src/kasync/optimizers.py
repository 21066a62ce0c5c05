"""How does the server follow a direction? Plainly, or through any optimiser of torch.optim."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kasync import checks

OptimizerFactory = Callable[..., torch.optim.Optimizer]
PREFIX = "optimizer."


def follow(
    optimizer: OptimizerFactory, params: Tensor, direction: Tensor, lr: Tensor, memory: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The parameters after what the optimiser makes of the direction, and its new state.

    The optimiser moves a vector of zeros with a learning rate of 1, so that its move is exact and the rule's own
    learning rate, which may depend on staleness, scales it. Decoupled weight decay is therefore not available.
    """
    place = torch.zeros_like(params)
    place.grad = direction
    made = optimizer([place], **_settings(optimizer, params))
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


def _settings(optimizer: OptimizerFactory, params: Tensor) -> dict[str, Any]:
    """A learning rate of 1, no weight decay, and on CUDA the variant that a graph can capture, where there is one."""
    known = inspect.signature(optimizer).parameters
    settings: dict[str, Any] = {"lr": 1.0}
    bound = getattr(optimizer, "keywords", {})
    if "weight_decay" in known and "weight_decay" not in bound:
        settings["weight_decay"] = 0.0
    if params.is_cuda and "capturable" in known:
        settings["capturable"] = True
    return settings


class AMSGrad(torch.optim.Optimizer):
    """m = b1 m + (1-b1) d;  v = b2 v + (1-b2) d^2;  top = max(top, v);  move lr m / (sqrt(top) + eps).

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
