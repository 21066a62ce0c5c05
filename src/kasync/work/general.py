"""How are many clients' gradients taken from any model? With torch.func, at shared or at separate weights."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from kasync.errors import UserError
from kasync.work.layers import Loss

STATISTICS = "its running statistics belong to nobody in a federation: use nn.GroupNorm"
CHANCE = "it draws from a global generator, so a run could not be repeated: leave it out"
REFUSED: tuple[tuple[type[nn.Module], Callable[[Any], bool], str], ...] = (
    (nn.modules.batchnorm._BatchNorm, lambda module: True, STATISTICS),
    (nn.modules.instancenorm._InstanceNorm, lambda module: module.track_running_stats, STATISTICS),
    (nn.modules.dropout._DropoutNd, lambda module: True, CHANCE),
    (nn.RReLU, lambda module: True, CHANCE),
    (nn.MultiheadAttention, lambda module: module.dropout > 0, CHANCE),
    (nn.RNNBase, lambda module: True, "it cannot be vectorised over clients: use nn.Linear, nn.Conv1d or attention"),
)


def check(model: nn.Module) -> None:
    """Refuse models that cannot be simulated, by name, with what to use instead."""
    for name, module in model.named_modules():
        for kind, applies, reason in REFUSED:
            if isinstance(module, kind) and applies(module):
                where = name or "the model itself"
                raise UserError(f"the model's {type(module).__name__} ({where}) is refused: {reason}.")
    if not list(model.parameters()):
        raise UserError("the model has no parameters: there is nothing to train.")
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise UserError(f"the model's parameter {name} is frozen: make it a buffer, or set requires_grad to True.")


@dataclass(frozen=True)
class General:
    """Any model, called as a function of its flat parameters."""

    model: nn.Module
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    copies: threading.local = field(default_factory=threading.local, repr=False)

    @classmethod
    def of(cls, model: nn.Module) -> General:
        named = dict(model.named_parameters())
        return cls(model, tuple(named), tuple(value.shape for value in named.values()))

    def forward(self, params: Tensor, x: Tensor) -> Tensor:
        """Outputs [N, ...] of the model at params [D]."""
        pieces = params.split([shape.numel() for shape in self.shapes])
        named = {n: piece.view(shape) for n, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}
        return functional_call(self._mine(), named, (x,))

    def _mine(self) -> nn.Module:
        """The calling thread's copy of the model: a call swaps its parameters, so threads must not share one."""
        if not hasattr(self.copies, "model"):
            self.copies.model = copy.deepcopy(self.model)
        return self.copies.model

    def _one(self, params: Tensor, x: Tensor, labels: Tensor, weights: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """Gradient [D] and loss [] of one client."""

        def total(at: Tensor) -> Tensor:
            return (loss(self.forward(at, x), labels) * weights).sum()

        return grad_and_value(total)(params)

    def gradients(self, params: Tensor, x: Tensor, labels: Tensor, weights: Tensor, loss: Loss, out: Tensor) -> Tensor:
        """Write the gradient of each client's weighted loss into out [n, D]; return the losses [n].

        params is [D], shared, or [n, D]; x [n * m, ...], labels [n * m], weights [n * m] as in Chain.gradients.
        """
        n = len(out)
        split = [value.view(n, -1, *value.shape[1:]) for value in (x, labels, weights)]
        one = lambda at, a, b, c: self._one(at, a, b, c, loss)  # noqa: E731
        rows, losses = vmap(one, in_dims=(None if params.dim() == 1 else 0, 0, 0, 0))(params, *split)
        out.copy_(rows)
        return losses
