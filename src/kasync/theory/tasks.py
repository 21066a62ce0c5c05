"""A PyTorch model as the functions that `measure` asks for: flat float64 vectors in, flat vectors out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kasync.theory.constants import Floats

if TYPE_CHECKING:
    import torch

    Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class ModelTask:
    """A model, a mean loss, and `samples(client)` -> (inputs [n, ...], labels [n]); vectors follow named_parameters."""

    model: torch.nn.Module
    loss: Callable[[Any, Any], Any]
    samples: Callable[[int], Batch]
    batch_size: int
    seed: int = 0

    def params(self) -> Floats:
        """The model's own parameters as one vector [D]."""
        rows = [value.detach().reshape(-1).double().cpu().numpy() for value in self.model.parameters()]
        return np.concatenate(rows)

    def client_loss(self, params: Floats, client: int) -> float:
        """The mean loss over all samples of the client: F_i, whose mean at the start is an initial gap if F* >= 0."""
        with _torch().no_grad():
            return float(self._loss(self._split(params), *self.samples(client)))

    def client_gradient(self, params: Floats, client: int) -> Floats:
        """The gradient of the mean loss over all samples of the client [D]."""
        return self._gradient(params, *self.samples(client))

    def batch_gradient(self, params: Floats, client: int, draw: int) -> Floats:
        """The gradient over `batch_size` samples drawn with replacement, a function of (seed, client, draw) [D]."""
        inputs, labels = self.samples(client)
        picks = np.random.default_rng((self.seed, client, draw)).integers(len(labels), size=self.batch_size)
        rows = inputs.new_tensor(picks, dtype=_torch().int64)
        return self._gradient(params, inputs[rows], labels[rows])

    def hessian_vector(self, params: Floats, client: int, vector: Floats) -> Floats:
        """The Hessian of the client's mean loss times the vector, by automatic differentiation [D]."""
        torch = _torch()
        inputs, labels = self.samples(client)
        values = [value.requires_grad_() for value in self._split(params)]
        firsts = torch.autograd.grad(self._loss(values, inputs, labels), values, create_graph=True)
        along = sum((first * part).sum() for first, part in zip(firsts, self._split(vector), strict=True))
        if not along.requires_grad:  # a loss linear in its parameters has no second derivative to follow
            return np.zeros_like(params)
        return _joined(torch.autograd.grad(along, values, materialize_grads=True))

    def _gradient(self, params: Floats, inputs: torch.Tensor, labels: torch.Tensor) -> Floats:
        values = [value.requires_grad_() for value in self._split(params)]
        return _joined(_torch().autograd.grad(self._loss(values, inputs, labels), values))

    def _loss(self, values: list[torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        names = [name for name, _ in self.model.named_parameters()]
        outputs = _torch().func.functional_call(self.model, dict(zip(names, values, strict=True)), (inputs,))
        return self.loss(outputs, labels)

    def _split(self, flat: Floats) -> list[torch.Tensor]:
        """The vector [D] as tensors of the parameters' shapes, dtype and device."""
        own = list(self.model.parameters())
        whole = _torch().as_tensor(flat, dtype=own[0].dtype, device=own[0].device)
        parts = whole.split([value.numel() for value in own])
        return [part.reshape(value.shape).clone() for part, value in zip(parts, own, strict=True)]


def _joined(parts: Any) -> Floats:
    return np.concatenate([part.detach().reshape(-1).double().cpu().numpy() for part in parts])


def _torch() -> Any:
    import torch

    return torch
