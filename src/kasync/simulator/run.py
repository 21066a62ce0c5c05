"""How is a timeline replayed through work and rule, exactly, one step after the other?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync.arrivals import Arrivals
from kasync.constants import filled
from kasync.core import Rule, ServerState, Step
from kasync.faults.deliveries import Damage
from kasync.kernel import Block, Rows
from kasync.simulator.ahead import Ahead
from kasync.simulator.inputs import Inputs, Workload
from kasync.simulator.plan import Plan
from kasync.span import matrix
from kasync.work.clients import Clients, one_thread_each

CHUNK = 100  # steps prepared at once
SOON = 2  # steps within which work that is given out now is needed now
BLOCK = 100  # clients whose gradients are computed at once
LINE = 16  # floats that a CPU reads at once, where they begin at a multiple of it
NARROW = ("loss", "lr", "stage", "dropped", "skipped")  # one number a step
WIDE = ("weights", "similarities")  # k numbers a step
NOTES = NARROW + WIDE


class Told(NamedTuple):
    """What the server is told in one step."""

    urgent: bool  # whether the work on the version before it is needed very soon
    places: list[int]  # [K] the slots as plain numbers
    slots: Tensor  # [K] where the gradient, or the version it is computed on, lies
    staleness: Tensor  # [K] float64
    batch_sizes: Tensor  # [K] float64
    clients: Tensor  # [K]


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
        width = -(-len(params) // LINE) * LINE if params.is_cpu else len(params)
        store = torch.empty(rows, width, device=params.device)[:, : len(params)]
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
        works, tensors = self.inputs.work(start, stop), (told.slots, told.staleness, told.batch_sizes, told.clients)
        urgent = self.plan.soonest(start, stop) < np.arange(start, stop) + SOON
        each = map(Told, urgent.tolist(), told.slots.tolist(), *(self.tensor(values).unbind() for values in tensors))
        notes = [
            noted(self._step(start + offset, offset, work, now, told.damage))
            for offset, (work, now) in enumerate(zip(works, each, strict=True))
        ]
        self.ahead.finish()
        table = zip(NOTES, zip(*notes, strict=True), strict=True)
        return {name: torch.stack(values).double().cpu().numpy() for name, values in table}

    def _step(self, number: int, offset: int, work: Workload, told: Told, damage: Damage | None) -> Step:
        rows: Block  # [K, D]
        if self.inputs.early:
            self.work(work, urgent=told.urgent)
            self.ahead.need(told.places)
            losses, starts = self.losses.index_select(0, told.slots), None
            rows = Rows(self.store, told.places)
        else:
            slot = int(self.plan.version_slots[number])
            if slot >= 0:
                self.store[slot] = self.server.params
            starts = self._taken(told.slots)  # [K, D]
            rows = torch.empty_like(starts)
            losses = self.clients.compute(starts, self.tensor(work.samples), self.tensor(work.weights), rows)
        if damage is not None:
            rows = damage.done_to(matrix(rows), offset)
        starts = starts if self.rule.needs_starts else None
        arrivals = Arrivals(rows, told.staleness, losses, told.batch_sizes, told.clients, starts)
        self.server, step = self.rule.advance(self.server, arrivals)
        return step

    def work(self, work: Workload, block: int = BLOCK, urgent: bool = True) -> None:
        """Have gradients computed on the current model and let them wait; what is urgent, by all threads at once."""
        for start in range(0, len(work), block):
            for group in self.clients.groups(min(block, len(work) - start), urgent):
                part = work[start + group.start : start + group.stop]
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


def noted(step: Step) -> tuple[Tensor, ...]:
    """What is recorded of a step, in the order of NARROW, [] each, and WIDE, [K] each."""
    nothing = filled(torch.nan, step.k, torch.float64, step.weights.device)
    loss = nothing[0] if step.losses is None else step.mean_loss
    similarities = nothing if step.similarities is None else step.similarities
    return loss, step.lr, step.stage, step.dropped, step.skipped, step.weights, similarities


def logged(step: Step) -> Tensor:
    """[5 + 2 K] float64: the same in one tensor, for a device that is not asked before the chunk is over."""
    *narrow, weights, similarities = noted(step)
    return torch.cat([torch.stack([value.double() for value in narrow]), weights, similarities])


def columns(rows: Tensor) -> dict[str, NDArray]:
    """The logged rows [steps, 5 + 2 K] by name."""
    table = rows.cpu().numpy()
    narrow, wide = table[:, : len(NARROW)], np.split(table[:, len(NARROW) :], len(WIDE), axis=1)
    return dict(zip(NARROW, narrow.T, strict=True)) | dict(zip(WIDE, wide, strict=True))
