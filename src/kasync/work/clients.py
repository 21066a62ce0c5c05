"""How do n clients do their work at once: on one device, or side by side on the cores of a CPU?"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from kasync.data.federated import FederatedData, FederatedTensors, scaled
from kasync.work.general import General
from kasync.work.layers import Chain, Loss
from kasync.work.pieces import Gradient, LocalSGD, Work

PAIR = 10  # clients shared by two cores; fixed, so that results do not depend on the number of cores


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Operations use the calling thread only: clients side by side are faster than threads inside one operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def default_loss(data: FederatedData) -> Loss:
    """Cross-entropy for classes, squared error for regression; per sample."""
    if data.classes:
        return lambda outputs, labels: functional.cross_entropy(outputs, labels, reduction="none")
    return lambda outputs, labels: (outputs.flatten(1).mean(1) - labels).square()


def flat_parameters(model: nn.Module) -> Tensor:
    """[D] all parameters of the model, in the order of model.parameters()."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@dataclass(frozen=True, eq=False)
class Clients:
    """Computes what clients bring, for given parameters and batches."""

    model: Chain | General
    separate: Chain | General  # for clients with parameters of their own
    data: FederatedTensors
    scale: str
    loss: Loss
    work: Work
    pool: ThreadPoolExecutor | None = field(default=None)

    @classmethod
    def of(cls, model: nn.Module, data: FederatedData, work: Work, loss: Loss | None, device: str) -> Clients:
        chain = Chain.of(model)
        general = General.of(copy.deepcopy(model).to(device))
        on_cuda = torch.device(device).type == "cuda"
        threads = torch.get_num_threads()
        pool = None if on_cuda else ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        separate = general if chain is None or on_cuda else chain
        return cls(chain or general, separate, data.tensors(device), data.scale, loss or default_loss(data), work, pool)

    def compute(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        """Write what n clients bring into out [n, D] and return their losses [n].

        params [D] is shared or [n, D]; samples [n, batches, m] are indices of the training set, weights likewise.
        """
        n = len(out)
        shared = params.dim() == 1
        if self.pool is None:
            return self._some(params, samples, weights, out)
        fat = shared and isinstance(self.work, Gradient)
        size = -(-n // (2 * -(-n // PAIR))) if fat else 1  # an even number of groups of at most PAIR / 2 clients
        groups = [slice(start, min(start + size, n)) for start in range(0, n, size)]

        def group(part: slice) -> Tensor:
            with torch.no_grad():
                return self._some(params if shared else params[part], samples[part], weights[part], out[part])

        return torch.cat(list(self.pool.map(group, groups)))

    def _some(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        if isinstance(self.work, LocalSGD):
            return self._local(self.work, params, samples, weights, out)
        return self._gradients(params, samples[:, 0], weights[:, 0], out)

    def _gradients(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        chosen = samples.flatten()  # [n * m]
        x = scaled(self.data.inputs[chosen], self.scale)
        if params.dim() == 1:
            return self.model.gradients(params, x, self.data.labels[chosen], weights.flatten(), self.loss, out)
        at = params[0] if isinstance(self.separate, Chain) else params  # a chain takes one client at a time
        return self.separate.gradients(at, x, self.data.labels[chosen], weights.flatten(), self.loss, out)

    def _local(self, work: LocalSGD, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        """Received model minus the model after the local steps."""
        start = params.expand(len(out), -1)
        local, losses = start, []
        for number in range(work.steps):
            losses.append(self._gradients(local, samples[:, number], weights[:, number], out))
            local = local - work.lr * out
        out.copy_(start - local)
        return torch.stack(losses).mean(0)
