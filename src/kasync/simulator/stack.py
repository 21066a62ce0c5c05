"""Many runs as one stack, with one step of tensors for all of them.

A step of a small model is some two hundred small kernels, whatever they work on. Runs that differ only in seed,
learning rate, data partition, timeline or semantics go through the same kernels, so R of them become tensors with R in
front: gradients by kasync.work.stacks, the rule by torch.vmap. On a GPU the stacked step is captured in a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync import fingerprint, optimizers
from kasync.arrivals import Arrivals
from kasync.core import Rule, ServerState
from kasync.data.federated import scaled
from kasync.errors import UserError
from kasync.simulator.evaluate import Evaluation, evaluate_stack
from kasync.simulator.graph import CAPTURING, WARM_UP, Buffers, own_stream, recorded
from kasync.simulator.plan import CHUNK, Chunk, Inputs, Workload, next_stop
from kasync.simulator.run import Run, columns, server_step
from kasync.simulator.simulation import Simulation
from kasync.work import Gradient
from kasync.work.clients import Clients, one_thread_each
from kasync.work.layers import Chain
from kasync.work.stacks import StackedChain

STACKABLE = (  # server optimisers that torch.vmap takes, all of them without a branch on a value
    torch.optim.SGD,
    optimizers.AMSGrad,
    optimizers.DelayedNesterov,
    optimizers.FedAdam,
    optimizers.LookAhead,
    optimizers.HeLoCo,
    optimizers.Muon,
    optimizers.Plain,
)


@dataclass(frozen=True, eq=False)
class StackedChunk:
    """The inputs of a chunk of steps, for G different kinds of inputs."""

    arrays: dict[str, NDArray]  # name -> [steps, G, ...]
    late: list[list[Workload]]  # [G][steps] work beyond k pieces, mostly on the first model


class Chunks:
    """Prepares the next chunk while the device is busy with this one."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.inputs: list[Inputs] = []  # [G]
        self.kinds: list[int] = []  # [R] -> G
        seen: dict[Any, int] = {}
        for run in runs:
            batches = run.inputs.batches
            key = (run.plan.timeline.fingerprint(), run.plan.semantics, id(batches.indices), batches.seed)
            if key not in seen:
                seen[key] = len(self.inputs)
                self.inputs.append(run.inputs)
            self.kinds.append(seen[key])
        self._pool = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[StackedChunk]] | None = None

    def take(self, start: int, stop: int) -> StackedChunk:
        """The inputs of the steps start..stop-1."""
        if self._next is not None and self._next[0] == start:
            return self._next[1].result()
        return self._prepare(start, stop)

    def prepare(self, start: int, stop: int) -> None:
        """Begin with those that will be taken next."""
        self._next = (start, self._pool.submit(self._prepare, start, stop))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _prepare(self, start: int, stop: int) -> StackedChunk:
        chunks = [Chunk.of(inputs, start, stop, idle=-1) for inputs in self.inputs]
        arrays = {name: np.stack([each.arrays[name] for each in chunks], axis=1) for name in chunks[0].arrays}
        return StackedChunk(arrays, [each.late for each in chunks])


class Stack:
    """R runs as tensors with R in front."""

    def __init__(self, simulations: Sequence[Simulation]) -> None:
        self.simulations = list(simulations)
        self.runs = [one.run for one in self.simulations]
        first = self.runs[0]
        self.rule: Rule = first.rule
        self.device, self.k = first.device, simulations[0].timeline.k
        self.on_cuda = self.device.type == "cuda"
        assert isinstance(first.clients.machine, Chain)
        self.machine = StackedChain(first.clients.machine)
        self.lr = torch.tensor([run.rule.lr for run in self.runs], dtype=torch.float64, device=self.device)  # [R]
        self.inputs = Chunks(self.runs)
        self.kind = torch.tensor(self.inputs.kinds, device=self.device)  # [R] -> G
        self._share_data()
        self.tests = self._tests()
        self._share_state()
        self.buffers: Buffers | None = None
        self.graph: Any = None
        self.stream = own_stream() if self.on_cuda else None
        self.done = 0

    def _share_data(self) -> None:
        """The different training sets one after the other, and where each run's begins."""
        sets = {run.clients.data.inputs.data_ptr(): run.clients.data for run in self.runs}
        starts, start = {}, 0
        for place, data in sets.items():
            starts[place] = start
            start += len(data.labels)
        several = len(sets) > 1
        given = list(sets.values())
        self.x = torch.cat([data.inputs for data in given]) if several else given[0].inputs
        self.labels = torch.cat([data.labels for data in given]) if several else given[0].labels
        self.begins = torch.tensor([starts[run.clients.data.inputs.data_ptr()] for run in self.runs]).to(self.device)

    def _tests(self) -> list[tuple[Clients, Tensor]]:
        """The different test sets, each by clients that hold it, and the numbers of the runs that are judged by it."""
        sets: dict[int, list[int]] = {}
        for number, run in enumerate(self.runs):
            sets.setdefault(run.clients.data.test_inputs.data_ptr(), []).append(number)
        return [(self.runs[some[0]].clients, torch.tensor(some, device=self.device)) for some in sets.values()]

    def _share_state(self) -> None:
        """Parameters [R, D], what the rule remembers, and the gradients that wait; each run sees its own part."""
        many, rows = len(self.runs), max(run.plan.rows for run in self.runs) + 1
        length = len(self.runs[0].server.params)
        states = [run.server.state_dict() for run in self.runs]
        for run in self.runs:  # what they hold alone is given back before the common memory is taken
            run.store, run.server = run.store.new_empty(0), ServerState(run.server.params, run.server.step)
        for state in states[1:]:
            state |= {name: value[:0].clone() for name, value in state.items() if value.dim() == 2}
        if self.on_cuda:
            with CAPTURING:
                torch.cuda.empty_cache()
        self.state = _stacked(states)
        self.store = torch.empty(many, rows, length, device=self.device)  # [R, rows, D]
        self.losses = torch.zeros(many, rows, device=self.device)
        self.shift = (torch.arange(many, device=self.device) * rows)[None, :, None]  # [1, R, 1]
        for number, run in enumerate(self.runs):
            run.store, run.losses = self.store[number], self.losses[number]
        self._look()

    def _look(self) -> None:
        """Every run's server is a view of its part of the state."""
        for number, run in enumerate(self.runs):
            run.server = ServerState.from_state_dict({name: value[number] for name, value in self.state.items()})

    def chunks(self) -> Iterator[tuple[int, int]]:
        """[start, stop) of the steps between two evaluations, at most a chunk at a time."""
        every, steps = self.simulations[0].evaluate_every, self.simulations[0].timeline.steps
        start = 0
        while start < steps:
            stop = next_stop(start, every, steps)
            yield start, stop
            start = stop

    @torch.no_grad()
    def steps(self, start: int, stop: int) -> None:
        """Make the steps start..stop-1 of all runs and write down what is recorded of them."""
        every, last = self.simulations[0].evaluate_every, self.simulations[0].timeline.steps
        with torch.cuda.stream(self.stream) if self.on_cuda else one_thread_each():
            chunk = self.inputs.take(start, stop)
            self._load(chunk)
            assert self.buffers is not None
            if stop < last:
                self.inputs.prepare(stop, next_stop(stop, every, last))
            for offset in range(stop - start):
                with CAPTURING if self.graph is None else nullcontext():  # one thread's precision is every thread's
                    if any(len(works[offset]) for works in chunk.late):
                        for number, run in enumerate(self.runs):
                            self._catch_up(number, chunk.late[self.inputs.kinds[number]][offset], run)
                    self._step()
            log = self.buffers.log[: stop - start]
            found = self._judged() if stop % every == 0 or stop == last else None
            table = log.cpu()
            for number, simulation in enumerate(self.simulations):
                simulation.history.put(start, columns(table[:, number]))
                if found is not None:
                    simulation.judged(stop, Evaluation(found[number][0], found[number][1], {}))
                simulation.done = stop

    def _judged(self) -> list[list[float]]:
        """Accuracy and loss of every run; those with the same test set at once."""
        params = self.state["params"]
        found = torch.empty(len(self.runs), 2, dtype=torch.float64, device=self.device)
        for clients, mine in self.tests:
            found[mine] = evaluate_stack(self.machine, clients, params[mine])
        return found.tolist()

    def _load(self, chunk: StackedChunk) -> None:
        """Copy the inputs of a chunk to the device, each to the runs it belongs to."""
        idle = self.store.shape[1] - 1
        arrays = {name: torch.from_numpy(array).to(self.device) for name, array in chunk.arrays.items()}
        arrays = {name: values.index_select(1, self.kind) for name, values in arrays.items()}  # [steps, R, ...]
        places = arrays["work_slots"]
        arrays["work_slots"] = torch.where(places < 0, idle, places) + self.shift
        arrays["slots"] = arrays["slots"] + self.shift
        arrays["samples"] = arrays["samples"] + self.begins[None, :, None, None, None]
        if self.buffers is None:
            held = {name: values.new_zeros(CHUNK, *values.shape[1:]) for name, values in arrays.items()}
            log = torch.zeros(CHUNK, len(self.runs), 5 + 2 * self.k, dtype=torch.float64, device=self.device)
            self.buffers = Buffers(torch.zeros(1, dtype=torch.int64, device=self.device), held, log)
        for name, values in arrays.items():
            self.buffers.inputs[name][: len(values)].copy_(values)
        self.buffers.number.zero_()

    def _catch_up(self, number: int, work: Workload, run: Any, block: int = 1000) -> None:
        """Work beyond k pieces: everybody begins on the first model."""
        for start in range(0, len(work), block):
            part = work[start : start + block]
            slots = run.tensor(part.slots)
            samples, weights = map(run.tensor, part.batches)
            losses = run.clients.compute(run.server.params, samples, weights, self.store[number], slots)
            self.losses[number].index_copy_(0, slots, losses)

    def _step(self) -> None:
        """The first step run by run, since an optimiser makes its state in it; later ones at once, soon captured."""
        assert self.buffers is not None
        if self.done == 0:
            self._one_by_one(self.buffers)
        elif self.graph is not None:
            self.graph.replay()
        else:
            self._body(self.buffers)
            if self.on_cuda and self.done >= WARM_UP:
                self._capture(self.buffers)
        self.done += 1

    def _capture(self, buffers: Buffers) -> None:
        """Capture fails if another thread touches CUDA meanwhile; then the next step tries again."""
        with suppress(RuntimeError):
            self.graph = recorded(self.stream, lambda: self._body(buffers))

    def _arrived(self, buffers: Buffers) -> tuple[Tensor, ...]:
        """Compute the gradients of those that start, and take those that are delivered, [R, K, ...] each."""
        samples, weights = buffers.now("samples").flatten(), buffers.now("sample_weights").flatten()
        rows = self.store.new_empty(len(self.runs) * self.k, self.store.shape[-1])
        first = self.runs[0].clients
        objective = first.objective
        x = scaled(self.x[samples], objective.scale)
        wanted = self.labels[samples]
        losses = self.machine.gradients(self.state["params"], x, wanted, weights, objective.loss, rows)
        places, slots = buffers.now("work_slots").flatten(), buffers.now("slots")
        self.store.flatten(0, 1).index_copy_(0, places, rows)
        self.losses.flatten().index_copy_(0, places, losses)
        taken = self.store.flatten(0, 1).index_select(0, slots.flatten()).unflatten(0, slots.shape)
        told = self.losses.flatten().index_select(0, slots.flatten()).view(slots.shape)
        return taken, buffers.now("staleness"), told, buffers.now("batch_sizes"), buffers.now("clients")

    def _body(self, buffers: Buffers) -> None:
        after, log = torch.vmap(self._applied)(self.state, self.lr, *self._arrived(buffers))
        self._write(buffers, after, log)

    def _one_by_one(self, buffers: Buffers) -> None:
        arrived = self._arrived(buffers)
        told = []
        for number, run in enumerate(self.runs):
            mine = (values[number] for values in arrived)
            told.append(self._applied(run.server.state_dict(), self.lr[number], *mine))
        fresh = [{n: v for n, v in after.items() if n not in self.state} for after, _ in told]
        self.state |= _stacked(fresh)
        for number, (after, _) in enumerate(told):
            for name, value in after.items():
                self.state[name][number].copy_(value)
        self._write(buffers, {}, torch.stack([log for _, log in told]))
        self._look()

    def _applied(
        self, state: dict[str, Tensor], lr: Tensor, rows: Tensor, staleness: Tensor, losses: Tensor, sizes: Tensor,
        clients: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:  # fmt: skip
        """One run's rule, as torch.vmap wants it: plain tensors in and out."""
        arrivals = Arrivals(rows, staleness, losses, sizes, clients)
        after, _, log = server_step(self.rule, ServerState.from_state_dict(state), arrivals, lr)
        return after.state_dict(), log

    def _write(self, buffers: Buffers, after: dict[str, Tensor], log: Tensor) -> None:
        for name, value in after.items():
            if self.state[name].data_ptr() != value.data_ptr():
                self.state[name].copy_(value)
        buffers.log.index_copy_(0, buffers.number, log[None])
        buffers.number.add_(1)

    def let_go(self) -> None:
        """The runs are over: keep what a finished one keeps."""
        self.inputs.close()
        for run in self.runs:
            run.server = ServerState(run.server.params.clone(), run.server.step.clone())
            run.store = run.store.new_empty(0)
            run.losses = run.losses.new_empty(0)


def _stacked(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """[R, ...] of each; the tables of clients are still empty, and too large to be held twice."""
    return {
        name: value.expand(len(states), *value.shape).clone()
        if value.dim() == 2
        else torch.stack([state[name] for state in states])
        for name, value in states[0].items()
    }


def together(simulations: Sequence[Simulation]) -> Iterator[int]:
    """Make all these runs at once; yields the steps done so far. Afterwards each simulation tells its records.

    What `stackable` says of them must be equal. A stack keeps no checkpoint: what is interrupted begins anew.
    """
    for one in simulations:
        if stackable(one) is None or stackable(one) != stackable(simulations[0]):
            raise UserError(f"the run of {one.run.rule.name} cannot be stacked with the others: make it by itself.")
    stack = Stack(simulations)
    try:
        for start, stop in stack.chunks():
            stack.steps(start, stop)
            yield stop
    finally:
        stack.let_go()


def stackable(simulation: Simulation) -> Any:
    """What must be equal for runs to be stacked; None for a run that has to be made by itself."""
    run = simulation.run
    shape = run.inputs.early and run.clients.backend == "chain" and isinstance(run.clients.work, Gradient)
    shape = shape and run.store.device == run.device and not run.clients.objective.metrics
    optimizer = run.rule.optimizer
    kind, options = getattr(optimizer, "func", optimizer), getattr(optimizer, "keywords", {})
    simple = kind is None or kind in STACKABLE
    if not (shape and simple) or simulation.done or run.rule.needs_starts or run.inputs.work_faults is not None:
        return None
    work, data, timeline = run.clients.work, run.clients.data, simulation.timeline
    return (
        (run.device, timeline.k, timeline.steps, simulation.evaluate_every, simulation.classes),
        (run.clients.machine, run.clients.objective.scale, fingerprint.describe(run.clients.objective.loss)),
        (work, run.inputs.batches.width, data.inputs.dtype, data.inputs.shape[1:]),
        (kind, str(options), replace(run.rule, lr=0.0, optimizer=None)),
    )
