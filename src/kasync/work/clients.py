"""Computes what clients bring: chosen backend, threads side by side on a CPU, one device otherwise.

chain    small networks of known layers: the batches of many clients in one pass, per-client products at the end;
         with any optimiser one client after the other on each thread of a CPU
vmap     any model that torch.func can vectorise: many clients in one call
loop     any PyTorch code: one client after the other on each thread
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kasync.data.federated import FederatedData, FederatedTensors, scaled
from kasync.errors import UserError, unknown
from kasync.kernel import Rows
from kasync.work.captured import Lanes
from kasync.work.layers import Chain
from kasync.work.loop import Bench, Brought, Sent, Visit
from kasync.work.objective import Inputs, Objective, plain
from kasync.work.protocol import Gradient, Local, Work
from kasync.work.stacks import StackedChain
from kasync.work.trial import SMALL, Traits, first_line, out_of_memory, takes_channels_last, trained
from kasync.work.vmap import Vectorised

MOST = 10  # clients at once; fixed, so that results do not depend on the number of cores
BACKENDS = ("auto", "chain", "vmap", "loop")
Draw = Callable[[int, int, int | None], list[NDArray]]  # client, visit, steps -> rows of each mini-batch


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Operations use the calling thread only: clients side by side are faster than threads inside one operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def backend_of(
    model: nn.Module, data: FederatedTensors, work: Work, objective: Objective, traits: Traits, asked: str, ragged: bool
) -> tuple[str, Any]:
    """The backend that computes this, and its machine (None for the loop); refuse one that cannot."""
    if asked not in BACKENDS:
        raise unknown("backend", asked, BACKENDS)
    if asked == "loop":
        return "loop", None
    on_cuda = next(model.parameters()).is_cuda
    reason, alone = _only_looped(data, objective, traits), _one_by_one(work, ragged)
    chain = None if reason else Chain.of(model)
    if chain is not None and asked in ("auto", "chain") and (not alone or (isinstance(work, Local) and not on_cuda)):
        return "chain", chain
    reason = reason or alone
    small = trained(model) <= SMALL
    if not reason and (asked == "vmap" or (asked == "auto" and on_cuda and small)):
        machine = Vectorised.of(model)
        assert isinstance(data.inputs, Tensor)
        if machine.takes(scaled(data.inputs[:1], objective.scale), data.labels[:1], objective.loss):
            return "vmap", machine
        reason = "torch.func cannot vectorise it"
    if asked == "auto":
        return "loop", None
    why = reason or "it is no chain of convolutions, pools, ReLU and dense layers"
    raise UserError(f"backend = {asked!r} does not take this run ({why}): use backend='auto' or 'loop'.")


def _one_by_one(work: Work, ragged: bool) -> str | None:
    """Why clients' work cannot be done in one call, or None if it can."""
    if not work.vectorised:
        return "its work is more than one gradient or plain local SGD"
    return "its clients do different numbers of local steps" if ragged else None


def _only_looped(data: FederatedTensors, objective: Objective, traits: Traits) -> str | None:
    """Why a run needs the loop whatever its work is, or None if other backends may take it."""
    checks = {
        "its loss is a function of model and batch": objective.whole,
        "it has several inputs or no labels": not isinstance(data.inputs, Tensor) or data.labels is None,
        "its model changes buffers in training": bool(traits.changed),
        "its model draws random numbers": traits.draws,
        "it computes in another precision": objective.precision != "float32",
    }
    return next((reason for reason, true in checks.items() if true), None)


class Room:
    """How much may be under way, less after memory ran out once: pieces of work, clients in a call, test samples."""

    def __init__(self, most: int) -> None:
        self.most, self.busy = most, 0
        self.clients: int | None = None  # whose work one call on a GPU computes; None: all that there are
        self.samples: int | None = None  # that are evaluated at once; None: as many as are fast
        self.changed = threading.Condition()

    @contextmanager
    def place(self, alone: bool = False) -> Iterator[None]:
        """Wait for a place, or until nobody else is at work."""
        with self.changed:
            self.changed.wait_for(lambda: self.busy < (1 if alone else self.most))
            taken = self.most if alone else 1
            self.busy += taken
        try:
            yield
        finally:
            with self.changed:
                self.busy -= taken
                self.changed.notify_all()

    def shrink(self) -> None:
        """One piece fewer at the same time from now on."""
        with self.changed:
            self.most = max(1, self.most - 1)


@dataclass(frozen=True, eq=False)
class Clients:
    """Computes what clients bring, for given versions of the model."""

    backend: str
    machine: Any  # Chain or Vectorised; None for the loop
    separate: Any  # the same for clients with parameters of their own
    data: FederatedTensors
    objective: Objective
    work: Work
    new_bench: Callable[[], Bench]
    draw: Draw
    draws: bool = False  # whether its threads draw random numbers from generators that are the user's too
    answers: bool = True  # whether it makes a tensor of the inputs
    threads: int = 1  # that work side by side; one where the device does it
    pool: ThreadPoolExecutor | None = None
    room: Room = field(default_factory=lambda: Room(1))
    buffers: threading.local = field(default_factory=threading.local)
    lanes: Lanes | None = None  # of the loop on a GPU
    alone: bool = False  # whether each piece of work is done by itself, on a bench

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: FederatedData,
        work: Work,
        objective: Objective,
        device: str,
        draw: Draw,
        *,
        traits: Traits | None = None,
        backend: str = "auto",
        buffers: str = "average",
        seed: int = 0,
        threads: int | None = None,
        ragged: bool = False,
    ) -> Clients:
        """The model lies on the device already."""
        traits = traits or Traits((), False)
        tensors = data.tensors(device)
        name, machine = backend_of(model, tensors, work, objective, traits, backend, ragged)
        on_cuda = torch.device(device).type == "cuda"
        threads = 1 if on_cuda else threads or torch.get_num_threads()
        pool = None if on_cuda else ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        separate = StackedChain(machine) if name == "chain" and on_cuda else machine

        alone = name == "loop" or _one_by_one(work, ragged) is not None

        channels_last = name == "loop" and not on_cuda and takes_channels_last(model, tensors, work, objective)

        def new_bench() -> Bench:
            return Bench(model, objective, work, traits, buffers, seed, machine if alone else None, channels_last)

        room = Room(threads)
        lanes = Lanes.on(torch.device(device)) if on_cuda and name == "loop" else None
        return cls(
            name, machine, separate, tensors, objective, work, new_bench, draw, traits.draws_from_all, traits.answers,
            threads, pool, room, lanes=lanes, alone=alone
        )  # fmt: skip

    @property
    def beside(self) -> int:
        """Pieces of work at the same time."""
        return self.threads if self.lanes is None else self.lanes.most

    def limit(self, most: int) -> None:
        """No more pieces of work at the same time than there is memory for."""
        self.room.most = min(self.threads, most)
        self.room.clients = most
        if self.lanes is not None:
            self.lanes.most = max(1, min(self.lanes.most, most))

    def together(self) -> AbstractContextManager[None]:
        """Around pieces of work that a GPU may compute at the same time."""
        return nullcontext() if self.lanes is None else self.lanes.together()

    def lane(self) -> AbstractContextManager[None]:
        """Around one of them and what is done with its results."""
        return nullcontext() if self.lanes is None else self.lanes.next()

    @property
    def bench(self) -> Bench:
        """The calling thread's own, or the one of the stream it works on."""
        lane = None if self.lanes is None else self.lanes.now
        if lane is not None:
            if lane.bench is None:
                lane.bench = self.new_bench()
            return lane.bench
        if not hasattr(self.buffers, "bench"):
            self.buffers.bench = self.new_bench()
        return self.buffers.bench

    def visit(
        self, sent: Sent, client: int, visit: int, before: int, steps: int | None, state: dict[str, Tensor], row: Tensor
    ) -> Brought:
        """One client's piece of work on a bench, into row [D]; the calling thread does it."""
        device = row.device
        drawn = self.draw(client, visit, steps)
        joined = torch.from_numpy(np.concatenate(drawn)).to(device, non_blocking=True)
        if device.type == "cuda":
            for value in state.values():  # it may have been made on another stream
                if value.is_cuda:
                    value.record_stream(torch.cuda.current_stream())
        piece = Visit(client, visit, before, list(joined.split([len(rows) for rows in drawn])), state)
        try:
            with self.room.place():
                return self._one(sent, piece, row)
        except Exception as problem:
            if not out_of_memory(problem):
                raise failed(piece, problem) from problem
        self.buffers.__dict__.pop("bench", None)  # begin again with as little as possible, and alone
        if self.lanes is not None:
            self.lanes.forget()
        forget(device)
        try:
            with self.room.place(alone=True):
                brought = self._one(sent, piece, row)
        except Exception as problem:
            raise failed(piece, problem) from problem
        self.room.shrink()
        if self.lanes is not None:
            self.limit(self.lanes.most - 1)
        return brought

    def _one(self, sent: Sent, piece: Visit, row: Tensor) -> Brought:
        return self.bench.do(sent, piece, self.data.inputs, self.data.labels, row)

    def compute(
        self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Write what n clients bring into out [n, D], or into the rows `places` [n] of it, and return their losses [n].

        params [D] is shared or [n, D]; samples [n, steps, m] are rows of the training set, weights likewise.
        """
        shared = params.dim() == 1

        def group(part: slice) -> Tensor:
            mine = params if shared else params[part]
            if places is not None:
                return self.bring(mine, samples[part], weights[part], out, places[part])
            with torch.no_grad():
                some = partial(self._some_of, mine, samples[part], weights[part], out[part])
                return self._in_halves(some, slice(0, part.stop - part.start), out.device)

        return torch.cat(self.side_by_side(group, self.groups(len(samples), shared=shared)))

    def bring(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor, places: Tensor) -> Tensor:
        """What one group of clients brings, into the rows `places` [n] of out; the calling thread computes it."""

        def some(rows: slice) -> Tensor:
            mine = params if params.dim() == 1 else params[rows]
            return self._brought(mine, samples[rows], weights[rows], out, places[rows])

        return self._in_halves(some, slice(0, len(samples)), out.device)

    def _in_halves(self, do: Callable[[slice], Tensor], rows: slice, device: torch.device) -> Tensor:
        """Do it for these rows, in two parts where memory runs out; losses [n]."""
        try:
            return do(rows)
        except Exception as problem:
            capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            if not out_of_memory(problem) or rows.stop - rows.start < 2 or capturing:
                raise
        middle = (rows.start + rows.stop) // 2
        self.room.clients = middle - rows.start  # from now on
        forget(device)
        parts = slice(rows.start, middle), slice(middle, rows.stop)
        return torch.cat([self._in_halves(do, part, device) for part in parts])

    @torch.no_grad()
    def _brought(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor, places: Tensor) -> Tensor:
        if self.pool is not None and self.backend == "chain" and isinstance(self.work, Gradient):
            batch, shares = self._batch(samples[:, 0]), weights[:, 0].flatten()
            return self.machine.gradients(params, *batch, shares, self.objective.loss, Rows(out, places.tolist()))
        if self.pool is not None and len(samples) == 1:
            place = int(places)
            return self._some(params, samples, weights, out[place : place + 1])
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
        if self.alone:
            return [slice(one, one + 1) for one in range(n)]
        if self.pool is None:
            size = self.room.clients or n
            return [slice(start, min(start + size, n)) for start in range(0, n, size)]
        count = -(-n // MOST) * (2 if urgent else 1)
        size = -(-n // count) if shared and isinstance(self.work, Gradient) else 1
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    def side_by_side(self, do: Callable[[Any], Any], groups: Sequence[Any]) -> list[Any]:
        return [do(group) for group in groups] if self.pool is None else list(self.pool.map(do, groups))

    def outputs(self, sent: Sent, inputs: Inputs) -> Tensor:
        """What the model makes of these inputs, in evaluation mode."""
        if self.machine is None:
            return plain(self.bench.evaluate(sent, inputs))
        return self.machine.forward(sent.params, scaled(inputs, self.objective.scale))  # type: ignore[arg-type]

    def losses(self, sent: Sent, inputs: Inputs, labels: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Outputs, where the loss reads them, and the loss of each sample [n] (or the mean of all of them)."""
        if self.objective.whole:
            return None, self.bench.evaluated_losses(sent, inputs, labels)
        outputs = self.outputs(sent, inputs)
        return outputs, self.objective.loss(outputs, labels)

    def _scratch(self, like: Tensor, rows: int, name: str = "rows") -> Tensor:
        """[rows, D] to write into; on a CPU always the same memory of the calling thread, which is warm."""
        if self.pool is None:
            return like.new_empty(rows, like.shape[1])
        held = getattr(self.buffers, name, None)
        if held is None or len(held) < rows:
            held = like.new_empty(rows, like.shape[1])
            setattr(self.buffers, name, held)
        return held[:rows]

    def _some_of(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor, rows: slice) -> Tensor:
        mine = params if params.dim() == 1 else params[rows]
        return self._some(mine, samples[rows], weights[rows], out[rows])

    def _some(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        if isinstance(self.work, Local):
            return self._local(self.work, params, samples, weights, out)
        return self._gradients(params, samples[:, 0], weights[:, 0], out)

    def _gradients(self, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        batch, shares = self._batch(samples), weights.flatten()
        if params.dim() == 1:
            return self.machine.gradients(params, *batch, shares, self.objective.loss, out)
        at = params[0] if isinstance(self.separate, Chain) else params  # a chain takes one client at a time
        return self.separate.gradients(at, *batch, shares, self.objective.loss, out)

    def _batch(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [n * m, ...] and labels [n * m, ...] of these samples [n, m]."""
        chosen = samples.flatten()
        assert isinstance(self.data.inputs, Tensor)
        return scaled(self.data.inputs[chosen], self.objective.scale), self.data.labels[chosen]

    def _local(self, work: Local, params: Tensor, samples: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        """Received model minus the model after local steps of plain SGD."""
        assert work.lr is not None
        start, trained = params.expand(len(out), -1), self._scratch(out, len(out), "trained")
        local, losses = start, []
        if isinstance(self.separate, Chain):  # one client at a time
            trained.copy_(start)
            held = self.machine.held(trained[0])
            for number in range(samples.shape[1]):
                batch, shares = self._batch(samples[:, number]), weights[:, number].flatten()
                losses.append(self.machine.step(held, *batch, shares, self.objective.loss, work.lr, out))
            torch.sub(start, trained, out=out)
            return torch.stack(losses).mean(0)
        for number in range(samples.shape[1]):
            losses.append(self._gradients(local, samples[:, number], weights[:, number], out))
            local = torch.add(local, out, alpha=-work.lr, out=trained)
        torch.sub(start, local, out=out)
        return torch.stack(losses).mean(0)


def forget(device: torch.device) -> None:
    """Give back memory that nobody uses."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def failed(piece: Visit, problem: BaseException) -> BaseException:
    """The error that names the client whose work failed."""
    if isinstance(problem, UserError):
        return problem
    sizes = sorted({len(rows) for rows in piece.samples})
    return UserError(
        f"the work of client {piece.client} on its visit {piece.number} failed with mini-batches of {sizes} samples "
        f"({type(problem).__name__}: {first_line(problem)}): change the model, the data or the work."
    )
