"""How is a timeline replayed through work and rule, exactly, one step after the other?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync.arrivals import Arrivals
from kasync.core import Rule, ServerState, Step
from kasync.kernel import Block, Rows
from kasync.simulator.ahead import Ahead
from kasync.simulator.inputs import Deliveries, Inputs, Workload
from kasync.simulator.plan import Plan
from kasync.span import matrix
from kasync.work.clients import Clients, one_thread_each

CHUNK = 100  # steps prepared at once
SOON = 2  # steps within which work that is given out now is needed now
BLOCK = 100  # clients whose gradients are computed at once
NARROW = ("loss", "lr", "stage", "dropped", "skipped")  # one number a step
WIDE = ("weights", "similarities")  # k numbers a step


@dataclass(eq=False)
class Run:
    """The state of a simulation. The engine owns all of it, so it is updated in place."""

    plan: Plan
    inputs: Inputs
    clients: Clients
    rule: Rule
    server: ServerState
    store: Tensor  # [rows + 1, D] gradients that wait, or [versions + 1, D]; the last row takes what nobody reads
    losses: Tensor  # [rows + 1] of the gradients that wait
    ahead: Ahead
    delivered: Tensor | None = None  # [K, D] where the rows of a step are gathered

    @classmethod
    def begin(cls, plan: Plan, inputs: Inputs, clients: Clients, rule: Rule, params: Tensor) -> Run:
        rows = (plan.rows if inputs.early else plan.versions) + 1
        store = torch.empty(rows, len(params), device=params.device)
        server = rule.prepared(ServerState.initial(params))
        ahead = Ahead.beside(clients.threads)
        return cls(plan, inputs, clients, rule, server, store, torch.zeros(rows, device=params.device), ahead)

    @property
    def device(self) -> torch.device:
        return self.store.device

    def context(self) -> Any:
        """Where this run's operations go; entered around everything it does."""
        return one_thread_each()

    def tensor(self, array: NDArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)

    def steps(self, start: int, stop: int) -> dict[str, NDArray]:
        """Make the steps start..stop-1 and return what is to be recorded of them."""
        told = self.inputs.deliveries(start, stop)
        rows = []
        for offset, work in enumerate(self.inputs.work(start, stop)):
            rows.append(logged(self._step(start + offset, offset, work, told)))
        self.ahead.finish()
        return columns(torch.stack(rows))

    def _step(self, number: int, offset: int, work: Workload, told: Deliveries) -> Step:
        rows: Block  # [K, D]
        if self.inputs.early:
            self.work(work, urgent=len(work) > 0 and self.plan.soonest(number) < number + SOON)
            self.ahead.need(told.slots[offset].tolist())
            slots = self.tensor(told.slots[offset])
            losses, starts = self.losses.index_select(0, slots), None
            rows = Rows(self.store, told.slots[offset].tolist())
        else:
            slot = int(self.plan.version_slots[number])
            if slot >= 0:
                self.store[slot] = self.server.params
            starts = self._taken(self.tensor(told.slots[offset]))  # [K, D]
            rows = torch.empty_like(starts)
            losses = self.clients.compute(starts, self.tensor(work.samples), self.tensor(work.weights), rows)
        if told.damage is not None:
            rows = told.damage.done_to(matrix(rows), offset)
        self.server, step = self.rule.advance(
            self.server,
            Arrivals(
                rows,
                self.tensor(told.staleness[offset]),
                losses,
                self.tensor(told.batch_sizes[offset]),
                self.tensor(told.clients[offset]),
                starts if self.rule.needs_starts else None,
            ),
        )
        return step

    def work(self, work: Workload, block: int = BLOCK, urgent: bool = True) -> None:
        """Have gradients computed on the current model and let them wait; what is urgent, by all threads at once."""
        for start in range(0, len(work), block):
            some = work[start : start + block]
            for group in self.clients.groups(len(some), urgent):
                part = some[group]
                self.ahead.give(part.slots.tolist(), partial(self._compute, self.server.params, part))

    def _compute(self, params: Tensor, work: Workload) -> None:
        """Compute the gradients of a group of clients; any thread may do it, each slot belongs to one of them."""
        slots = self.tensor(work.slots)
        samples, weights = self.tensor(work.samples), self.tensor(work.weights)
        self.losses.index_copy_(0, slots, self.clients.bring(params, samples, weights, self.store, slots))

    def _taken(self, slots: Tensor) -> Tensor:
        """[K, D] these rows of the store, in a place that the next step uses again."""
        if self.delivered is None:
            self.delivered = self.store.new_empty(len(slots), self.store.shape[1])
        return self.clients.gather(self.store, slots, self.delivered)

    def tensors(self, with_store: bool = True) -> dict[str, Tensor]:
        """Everything that changes from step to step: what a checkpoint holds."""
        state = {f"server.{name}": value for name, value in self.server.state_dict().items()}
        return state | ({"store": self.store, "losses": self.losses} if with_store else {})

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `tensors` gave."""
        ours = {n: t for n, t in tensors.items() if n.startswith("server.")}
        state = {n: t.to(self.device, copy=True) for n, t in ours.items()}  # else they would change with the file
        self.server = ServerState.from_state_dict({n.removeprefix("server."): t for n, t in state.items()})
        if "store" in tensors:
            self.store.copy_(tensors["store"])
            self.losses.copy_(tensors["losses"])


def logged(step: Step) -> Tensor:
    """[5 + 2 K] float64: what is recorded of a step, in the order of NARROW and WIDE."""
    nothing = torch.full_like(step.weights, torch.nan)
    mean_loss = nothing[0] if step.losses is None else step.losses.sum() / step.count  # 0 where not usable
    narrow = [mean_loss, step.lr, step.stage.double(), step.dropped.double(), step.skipped.double()]
    return torch.cat([torch.stack(narrow), step.weights, nothing if step.similarities is None else step.similarities])


def columns(rows: Tensor) -> dict[str, NDArray]:
    """The recorded rows [steps, 5 + 2 K] by name."""
    table = rows.cpu().numpy()
    narrow, wide = table[:, : len(NARROW)], np.split(table[:, len(NARROW) :], len(WIDE), axis=1)
    return dict(zip(NARROW, narrow.T, strict=True)) | dict(zip(WIDE, wide, strict=True))
