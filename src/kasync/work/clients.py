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
from kasync.kernel import Rows
from kasync.work.general import General
from kasync.work.layers import Chain, Loss
from kasync.work.pieces import Gradient, LocalSGD, Work
from kasync.work.stacks import StackedChain

MOST = 10  # clients at once; fixed, so that results do not depend on the number of cores


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
    threads: int = 1  # that work side by side; one where the device does it
    pool: ThreadPoolExecutor | None = None
    buffers: threading.local = field(default_factory=threading.local)

    @classmethod
    def of(cls, model: nn.Module, data: FederatedData, work: Work, loss: Loss | None, device: str) -> Clients:
        chain = Chain.of(model)
        general = General.of(copy.deepcopy(model).to(device))
        on_cuda = torch.device(device).type == "cuda"
        threads = 1 if on_cuda else torch.get_num_threads()
        pool = None if on_cuda else ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        separate = general if chain is None else StackedChain(chain) if on_cuda else chain
        formula = loss or default_loss(data)
        return cls(chain or general, separate, data.tensors(device), data.scale, formula, work, threads, pool)

    def compute(
        self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Write what n clients bring into out [n, D], or into the rows `places` [n] of it, and return their losses [n].

        params [D] is shared or [n, D]; samples [n, batches, m] are indices of the training set, weights likewise.
        """
        shared = params.dim() == 1

        def group(part: slice) -> Tensor:
            mine = params if shared else params[part]
            if places is None:
                with torch.no_grad():
                    return self._some(mine, samples[part], weights[part], out[part])
            return self.bring(mine, samples[part], weights[part], out, places[part])

        return torch.cat(self._side_by_side(group, self.groups(len(samples), shared=shared)))

    @torch.no_grad()
    def bring(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor, places: Tensor) -> Tensor:
        """What one group of clients brings, into the rows `places` [n] of out; the calling thread computes it."""
        if self.pool is not None and isinstance(self.model, Chain) and isinstance(self.work, Gradient):
            batch, shares = self._batch(samples[:, 0]), weights[:, 0].flatten()
            return self.model.gradients(params, *batch, shares, self.loss, Rows(out, places.tolist()))
        rows = self._scratch(out, len(samples))
        losses = self._some(params, samples, weights, rows)
        out.index_copy_(0, places, rows)
        return losses

    def gather(self, table: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        """Copy the rows [n] of a table into out [n, D]."""
        torch.index_select(table, 0, rows, out=out)
        return out

    def groups(self, n: int, urgent: bool = True, shared: bool = True) -> list[slice]:
        """Which of n clients work at once: on a CPU few, fewer where it is urgent, one where they share no parameters.

        Many at once cost less; an even number of groups is done sooner. The number of cores plays no part in it.
        """
        if self.pool is None:
            return [slice(0, n)]
        count = -(-n // MOST) * (2 if urgent else 1)
        size = -(-n // count) if shared and isinstance(self.work, Gradient) else 1
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def _side_by_side(self, do: Callable[[slice], Tensor], groups: list[slice]) -> list[Tensor]:
        return [do(group) for group in groups] if self.pool is None else list(self.pool.map(do, groups))

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
        batch, shares = self._batch(samples), weights.flatten()
        if params.dim() == 1:
            return self.model.gradients(params, *batch, shares, self.loss, out)
        at = params[0] if isinstance(self.separate, Chain) else params  # a chain takes one client at a time
        return self.separate.gradients(at, *batch, shares, self.loss, out)

    def _batch(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [n * m, ...] and labels [n * m] of these samples [n, m]."""
        chosen = samples.flatten()
        return scaled(self.data.inputs[chosen], self.scale), self.data.labels[chosen]

    def _local(self, work: LocalSGD, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        """Received model minus the model after the local steps."""
        start = params.expand(len(out), -1)
        local, losses = start, []
        for number in range(work.steps):
            losses.append(self._gradients(local, samples[:, number], weights[:, number], out))
            local = local - work.lr * out
        out.copy_(start - local)
        return torch.stack(losses).mean(0)
