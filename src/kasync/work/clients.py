"""How do n clients do their work at once: on one device, or side by side on the cores of a CPU?"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from kasync.data.federated import FederatedData, FederatedTensors, scaled
from kasync.work.general import General
from kasync.work.layers import Chain, Loss
from kasync.work.stacks import StackedChain
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
    separate: Chain | General | StackedChain  # for clients with parameters of their own
    data: FederatedTensors
    scale: str
    loss: Loss
    work: Work
    pool: ThreadPoolExecutor | None = None
    buffers: threading.local = field(default_factory=threading.local)

    @classmethod
    def of(cls, model: nn.Module, data: FederatedData, work: Work, loss: Loss | None, device: str) -> Clients:
        chain = Chain.of(model)
        general = General.of(copy.deepcopy(model).to(device))
        on_cuda = torch.device(device).type == "cuda"
        threads = torch.get_num_threads()
        pool = None if on_cuda else ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        separate = general if chain is None else StackedChain(chain) if on_cuda else chain
        return cls(chain or general, separate, data.tensors(device), data.scale, loss or default_loss(data), work, pool)

    def compute(
        self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Write what n clients bring into out [n, D], or into the rows `places` [n] of it, and return their losses [n].

        params [D] is shared or [n, D]; samples [n, batches, m] are indices of the training set, weights likewise.
        """
        shared = params.dim() == 1

        def group(part: slice) -> Tensor:
            mine = params if shared else params[part]
            with torch.no_grad():
                if places is None:
                    return self._some(mine, samples[part], weights[part], out[part])
                rows = self._scratch(out, len(samples[part]))
                losses = self._some(mine, samples[part], weights[part], rows)
                out.index_copy_(0, places[part], rows)
                return losses

        fat = shared and isinstance(self.work, Gradient)
        return torch.cat(self._side_by_side(group, len(samples), fat))

    def gather(self, table: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        """Copy the rows [n] of a table into out [n, D]."""
        self._side_by_side(lambda part: torch.index_select(table, 0, rows[part], out=out[part]), len(rows), True)
        return out

    def _side_by_side(self, do: Callable[[slice], Tensor], n: int, together: bool) -> list[Tensor]:
        """The parts of n clients, on the cores of a CPU; `together` in an even number of groups, else one by one."""
        if self.pool is None:
            return [do(slice(0, n))]
        size = -(-n // (2 * -(-n // PAIR))) if together else 1  # at most PAIR / 2 clients
        return list(self.pool.map(do, [slice(start, min(start + size, n)) for start in range(0, n, size)]))

    def _scratch(self, like: Tensor, rows: int) -> Tensor:
        """[rows, D] to write into; on a CPU always the same memory of the calling thread, which is warm."""
        if self.pool is None:
            return like.new_empty(rows, like.shape[1])
        held = getattr(self.buffers, "rows", None)
        if held is None or len(held) < rows:
            held = self.buffers.rows = like.new_empty(rows, like.shape[1])
        return held[:rows]

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
