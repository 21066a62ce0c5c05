"""Gradients of many clients in one call of any model that torch.func can vectorise, at shared or separate weights."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from kasync.work.loop import Layout
from kasync.work.objective import Loss, plain
from kasync.work.trial import sharing


@dataclass(frozen=True)
class Vectorised:
    """A model as a function of its flat trainable parameters."""

    model: nn.Module
    layout: Layout
    copies: threading.local = field(default_factory=threading.local, repr=False)

    @classmethod
    def of(cls, model: nn.Module) -> Vectorised:
        return cls(model, Layout.of(model))

    def forward(self, params: Tensor, x: Tensor) -> Tensor:
        """Outputs [N, ...] of the model at params [D]."""
        return plain(functional_call(self._mine(), self.layout.named(params), (x,)))

    def _mine(self) -> nn.Module:
        """The calling thread's copy of the model: a call swaps its parameters, so threads must not share one."""
        if not hasattr(self.copies, "model"):
            self.copies.model = sharing(self.model)
        return self.copies.model

    def _one(self, params: Tensor, x: Tensor, labels: Tensor, weights: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """Gradient [D] and loss [] of one client."""

        def total(at: Tensor) -> Tensor:
            return (loss(self.forward(at, x), labels) * weights).sum()

        return grad_and_value(total)(params)

    def gradients(self, params: Tensor, x: Tensor, labels: Tensor, weights: Tensor, loss: Loss, out: Tensor) -> Tensor:
        """Write the gradient of each client's weighted loss into out [n, D]; return the losses [n].

        params is [D], shared, or [n, D]; x [n * m, ...], labels [n * m, ...], weights [n * m] as in Chain.gradients.
        """
        n = len(out)
        split = [value.view(n, -1, *value.shape[1:]) for value in (x, labels, weights)]
        one = lambda at, a, b, c: self._one(at, a, b, c, loss)  # noqa: E731
        rows, losses = vmap(one, in_dims=(None if params.dim() == 1 else 0, 0, 0, 0))(params, *split)
        out.copy_(rows)
        return losses

    def takes(self, x: Tensor, labels: Tensor, loss: Loss) -> bool:
        """Whether torch can vectorise model and loss: tried on these samples."""
        params = torch.cat([p.detach().reshape(-1) for p in self.model.parameters() if p.requires_grad])
        out = params.new_empty(2, len(params))
        try:
            pair = (torch.cat([x[:1], x[:1]]), torch.cat([labels[:1], labels[:1]]))
            self.gradients(params, *pair, torch.ones(2, device=x.device), loss, out)
        except Exception:
            return False
        return True
