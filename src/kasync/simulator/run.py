"""The step of a simulation, and the run that makes one after the other, with work computed ahead of need.

Every runner (this one, captured in a CUDA graph, stacked over many runs, on a Ray cluster) takes a step in the same
three parts: what is delivered, `server_step`, and what is recorded of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync.arrivals import Arrivals
from kasync.constants import filled
from kasync.core import Rule, ServerState, Step
from kasync.errors import UserError
from kasync.faults.deliveries import Damage
from kasync.kernel import Block, Rows
from kasync.simulator.plan import Inputs, Plan, Workload
from kasync.span import matrix
from kasync.timelines import Timeline
from kasync.work.clients import Clients, one_thread_each
from kasync.work.loop import Brought, Sent

MOST = 4  # pieces given out and not begun; more would only keep more versions of the model
FEW = 2  # left over where a thread takes part: several pieces, then several steps, each find their code in cache
SOON = 2  # work needed within this many steps is urgent
AT_ONCE = 8  # steps on a GPU whose records are read together: to read one is to wait for it
BLOCK = 100  # clients whose gradients are computed at once
LINE = 16  # floats that a CPU reads at once, where they begin at a multiple of it
NARROW = ("loss", "lr", "stage", "dropped", "skipped")  # one number a step
WIDE = ("weights", "similarities")  # k numbers a step

Named = Mapping[str, Tensor]


class StepInputs(NamedTuple):
    """What one step reads beside the work."""

    urgent: bool  # whether the work on the version before it is needed very soon
    places: list[int]  # [K] the slots as plain numbers
    slots: Tensor  # [K] where the gradient, or the version it is computed on, lies
    staleness: Tensor  # [K] float64
    batch_sizes: Tensor  # [K] float64
    clients: Tensor  # [K]


@dataclass(eq=False)
class Carried:
    """What travels beside the parameters: buffers by value, what the work sends and delivers, what clients keep."""

    statistics: dict[str, Tensor] = field(default_factory=dict)  # the server's now
    extras: dict[str, Tensor] = field(default_factory=dict)  # what the server sends now
    versions: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = field(default_factory=dict)  # slot -> both then
    waiting: dict[int, Brought] = field(default_factory=dict)  # slot -> what waits there beside the row
    clients: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # client (~copy) -> what it keeps (began with)

    def begun_with(self, timeline: Timeline, delivery: int) -> dict[str, Tensor]:
        """What the client has kept when it begins this piece of work; a copy begins where its original did."""
        return self.clients.get(~delivery, self.clients.get(int(timeline.clients.flat[delivery]), {}))

    def keep(self, timeline: Timeline, delivery: int, state: dict[str, Tensor]) -> None:
        """This piece was computed at its delivery: what its client keeps now, and what a copy of it will begin with."""
        client, copies = int(timeline.clients.flat[delivery]), timeline.copies
        before = self.clients.pop(~delivery, None) or self.clients.get(client, {})
        if copies is not None and (state or before):
            following = int(timeline.next_step.flat[delivery])
            if following >= 0:
                place = int((timeline.clients[following] == client).argmax())
                if copies[following, place]:
                    self.clients[~(following * timeline.k + place)] = before
        if state and (copies is None or not copies.flat[delivery]):
            self.clients[client] = state

    @property
    def now(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self.statistics, self.extras

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, for a checkpoint."""
        named = _prefixed("statistics", self.statistics) | _prefixed("extras", self.extras)
        for slot, (statistics, extras) in self.versions.items():
            named |= _prefixed(f"version.{slot}.statistics", statistics) | _prefixed(f"version.{slot}.extras", extras)
        for slot, brought in self.waiting.items():
            named |= _prefixed(f"waiting.{slot}.statistics", brought.statistics)
            named |= _prefixed(f"waiting.{slot}.extras", brought.extras)
        for client, state in self.clients.items():
            named |= _prefixed(f"client.{client}", state)
        return named

    def restore(self, tensors: Named, device: torch.device) -> None:
        """What `tensors` gave."""
        self.versions, self.waiting, self.clients = {}, {}, {}
        nothing = torch.zeros((), device=device)
        for name, held in tensors.items():
            value = held.to(device, copy=True)
            kind, _, rest = name.partition(".")
            if kind in ("statistics", "extras"):
                getattr(self, kind)[rest] = value
                continue
            number, _, rest = rest.partition(".")
            if kind == "client":
                self.clients.setdefault(int(number), {})[rest] = value
                continue
            which, _, rest = rest.partition(".")
            if kind == "version":
                both = self.versions.setdefault(int(number), ({}, {}))
                both[which == "extras"][rest] = value
            else:
                brought = self.waiting.setdefault(int(number), Brought(nothing, {}, {}, {}))
                getattr(brought, which)[rest] = value


def server_step(
    rule: Rule, server: ServerState, arrivals: Arrivals, lr: Tensor | None = None
) -> tuple[ServerState, Step, Tensor]:
    """The one place where deliveries become the next version: the server after them, the rule's step, and its log."""
    after, step = rule.advance(server, arrivals, lr)
    return after, step, logged(step)


def logged(step: Step) -> Tensor:
    """[5 + 2 K] float64: what is recorded of a step, in the order of NARROW and WIDE."""
    nothing = filled(torch.nan, step.k, torch.float64, step.weights.device)
    loss = nothing[0] if step.losses is None else step.mean_loss
    similarities = nothing if step.similarities is None else step.similarities
    narrow = (loss, step.lr, step.stage, step.dropped, step.skipped)
    return torch.cat([torch.stack([value.double() for value in narrow]), step.weights, similarities])


@dataclass(eq=False)
class Piece:
    """Some clients' work, and the slots its results go to."""

    slots: frozenset[int]
    do: Callable[[], None]
    undone: Lock = field(default_factory=Lock)  # held until it is done
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.undone.acquire()

    def run(self) -> None:
        """Do it in another thread than the one that waits for it."""
        try:
            self.do()
        except BaseException as error:  # it comes out where the work is waited for
            self.error = error
        self.undone.release()

    def wait(self) -> None:
        """Return when it is done; what went wrong comes out here."""
        with self.undone:
            if self.error is not None:
                raise self.error


@dataclass(eq=False)
class Prefetch:
    """Threads that compute clients' work while the server makes its next steps.

    A gradient depends only on the version that its client received and on its batch, and who delivers when is known in
    advance. So the work on a version is given out as soon as the version exists, and is waited for only when somebody
    delivers it: every number is the same as one after the other.
    """

    others: ThreadPoolExecutor | None  # None: everything is done at once, by this thread
    most: int = 0  # threads among the others
    pieces: deque[Piece] = field(default_factory=deque)  # given out and not known to be done
    waiting: deque[Piece] = field(default_factory=deque)  # those of them that nobody has begun
    helping: int = 0  # threads that look for something to begin
    changing: Lock = field(default_factory=Lock)  # held while these two change

    @classmethod
    def beside(cls, threads: int) -> Prefetch:
        """As many threads in all, this one among them."""
        if threads < 2:
            return cls(None)
        return cls(ThreadPoolExecutor(threads - 1, initializer=torch.set_num_threads, initargs=(1,)), threads - 1)

    def give(self, slots: Iterable[int], do: Callable[[], None]) -> None:
        """Have this done some time; where too much waits already, take part in it."""
        if self.others is None:
            return do()
        while self.pieces and not self.pieces[0].undone.locked():
            self.pieces.popleft().wait()
        piece = Piece(frozenset(slots), do)
        self.pieces.append(piece)
        with self.changing:
            self.waiting.append(piece)
            called = self.helping < self.most
            self.helping += called
        if called:
            self.others.submit(self._help)
        if len(self.pieces) > MOST + self.most:
            self._take_part()
            while len(self.waiting) > FEW:
                self._take_part()

    def need(self, slots: Iterable[int]) -> None:
        """Return when the work on these slots is done."""
        wanted = frozenset(slots)
        while any(not wanted.isdisjoint(piece.slots) for piece in self.pieces):
            self._take_part()

    def finish(self) -> None:
        """Return when everything is done."""
        while self.pieces:
            self._take_part()

    def _take_part(self) -> None:
        """Do the first piece nobody has begun, or wait for the first of those begun."""
        with self.changing:
            piece = self.waiting.popleft() if self.waiting else None
        if piece is None:
            return self.pieces.popleft().wait()
        self.pieces.remove(piece)
        piece.do()

    def _help(self) -> None:
        """Do what waits until nothing does: a thread is woken seldom and not for every piece."""
        while True:
            with self.changing:
                if not self.waiting:
                    self.helping -= 1
                    return
                piece = self.waiting.popleft()
            piece.run()


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
    prefetch: Prefetch
    carried: Carried
    delivered: Tensor | None = None  # [K, D] where the rows of a step are gathered

    @classmethod
    def begin(
        cls,
        plan: Plan,
        inputs: Inputs,
        clients: Clients,
        rule: Rule,
        params: Tensor,
        store: Tensor | None = None,
        carried: Carried | None = None,
    ) -> Run:
        rows = (plan.rows if inputs.early else plan.versions) + 1
        store = new_store(rows, params) if store is None else store
        server = rule.prepared(ServerState.initial(params))
        prefetch = Prefetch.beside(clients.threads)
        losses = torch.zeros(rows, device=params.device)
        return cls(plan, inputs, clients, rule, server, store, losses, prefetch, carried or Carried())

    @property
    def device(self) -> torch.device:
        return self.server.params.device

    @property
    def _in_place(self) -> bool:
        """Whether a rule can read the rows where they wait."""
        return self.store.is_cpu and self.server.params.is_cpu

    def context(self) -> Any:
        """Where this run's operations go; entered around everything it does."""
        return one_thread_each()

    def tensor(self, array: NDArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)

    def steps(self, start: int, stop: int) -> Iterator[dict[str, NDArray]]:
        """Make the steps start..stop-1; after each of them yield what is to be recorded of it, [1] or [1, K] each."""
        told = self.inputs.deliveries(start, stop)
        works, tensors = self.inputs.work(start, stop), (told.slots, told.staleness, told.batch_sizes, told.clients)
        urgent = self.plan.soonest(start, stop) < np.arange(start, stop) + SOON
        each = map(
            StepInputs, urgent.tolist(), told.slots.tolist(), *(self.tensor(values).unbind() for values in tensors)
        )
        logs: list[Tensor] = []
        for offset, (work, now) in enumerate(zip(works, each, strict=True)):
            with self.context():
                logs.append(self._step(start + offset, offset, work, now, told.damage))
                if start + offset + 1 == stop or self.clients.draws:
                    self.prefetch.finish()  # who draws uses PyTorch's generator, which outside is the user's
            if not logs[0].is_cuda or len(logs) == AT_ONCE or start + offset + 1 == stop:
                named = columns(torch.stack(logs))
                yield from ({name: values[i : i + 1] for name, values in named.items()} for i in range(len(logs)))
                logs.clear()

    def _step(self, number: int, offset: int, work: Workload, told: StepInputs, damage: Damage | None) -> Tensor:
        """Make step `number` and return what is recorded of it."""
        rows, losses, brought, starts = self._arrived(number, work, told)
        if damage is not None:
            rows = damage.done_to(matrix(rows), offset)
        starts = starts if self.rule.needs_starts else None
        arrivals = Arrivals(rows, told.staleness, losses, told.batch_sizes, told.clients, starts)
        self.server, step, log = server_step(self.rule, self.server, arrivals)
        self._merge(brought, step)
        return log

    def _arrived(
        self, number: int, work: Workload, told: StepInputs
    ) -> tuple[Block, Tensor, list[Brought], Tensor | None]:
        """Rows [K, D] and losses [K] of a step's deliveries, what they bring beside, and the versions they began on."""
        if self.inputs.early:
            self.work(work, urgent=told.urgent)
            self.prefetch.need(told.places)
            losses = self.losses.index_select(0, told.slots)
            rows: Block = Rows(self.store, told.places) if self._in_place else self._taken(told.slots)
            nothing = Brought(losses[0], {}, {}, {})
            waiting = self.carried.waiting
            brought = [waiting.get(slot, nothing) for slot in told.places] if waiting else []
            return rows, losses, brought, None
        self._keep_version(number)
        starts = self._taken(told.slots)  # [K, D]
        rows = torch.empty_like(starts)
        if self.clients.alone:
            brought = self._visit_all(work, told, starts, rows)
            return rows, torch.stack([each.loss for each in brought]), brought, starts
        samples, weights = work.batches
        losses = self.clients.compute(starts, self.tensor(samples), self.tensor(weights), rows)
        return rows, losses, [], starts

    def rest(self) -> None:
        """Nobody asks for steps any more, or not now: let go of what is only needed while steps are made."""

    def _merge(self, brought: list[Brought], step: Step) -> None:
        """Average the buffers of the usable deliveries, and let the work make of their extras what it sends next."""
        if not any(each.statistics or each.extras for each in brought):
            return
        used = [each for each, sound in zip(brought, step.usable.tolist(), strict=True) if sound]
        if not used:
            return
        self.carried.statistics = {
            name: _mean([each.statistics[name] for each in used]) for name in used[0].statistics
        } or self.carried.statistics
        if any(each.extras for each in used):
            _check_alike([each.extras for each in used])
            extras = {name: torch.stack([each.extras[name] for each in used]) for name in used[0].extras}
            merged = self.clients.work.merge(self.carried.extras, extras)
            self.carried.extras = {name: value.detach() for name, value in merged.items()}

    def _keep_version(self, number: int) -> None:
        slot = int(self.plan.version_slots[number])
        if slot >= 0:
            self.store[slot] = self.server.params.to(self.store.device)
            if any(self.carried.now):
                self.carried.versions[slot] = self.carried.now

    def work(self, work: Workload, block: int = BLOCK, urgent: bool = True) -> None:
        """Have gradients computed on the current model and let them wait; what is urgent, by all threads at once."""
        sent = Sent(self.server.params, *self.carried.now)
        with self.clients.together():
            for start in range(0, len(work), block):
                for group in self.clients.groups(min(block, len(work) - start), urgent):
                    part = work[start + group.start : start + group.stop]
                    self.prefetch.give(part.slots.tolist(), partial(self._compute, sent, part))

    def _compute(self, sent: Sent, work: Workload) -> None:
        """Compute the gradients of a group of clients; any thread may do it, each slot belongs to one of them."""
        if self.clients.alone:
            for delivery, slot in zip(work.deliveries.tolist(), work.slots.tolist(), strict=True):
                with self.clients.lane():
                    brought = self._visit(sent, delivery, self.store[slot])
                    self.losses[slot] = brought.loss
                if brought.statistics or brought.extras:
                    self.carried.waiting[slot] = brought
                else:
                    self.carried.waiting.pop(slot, None)
            return
        slots = self.tensor(work.slots)
        drawn, shares = work.batches
        samples, weights = self.tensor(drawn), self.tensor(shares)
        self.losses.index_copy_(0, slots, self.clients.bring(sent.params, samples, weights, self.store, slots))

    def _visit(self, sent: Sent, delivery: int, row: Tensor) -> Brought:
        """One piece of work on a bench, into row [D] wherever that lies; what the client keeps is kept."""
        client, visit, before, steps = self.inputs.piece(self.plan.original(delivery))
        here = row if row.device == self.device else torch.empty(len(row), device=self.device)
        state = self.carried.begun_with(self.plan.timeline, delivery)
        brought = self.clients.visit(sent, client, visit, before, steps, state, here)
        if here is not row:
            row.copy_(here)
        if not self.inputs.early:
            self.carried.keep(self.plan.timeline, delivery, brought.state)
        elif brought.state:
            self.carried.clients[client] = brought.state
        return brought

    def _visit_all(self, work: Workload, told: StepInputs, starts: Tensor, rows: Tensor) -> list[Brought]:
        """The K pieces of work of a step, computed at delivery from the versions that were kept."""

        def one(place: int) -> Brought:
            beside = self.carried.versions.get(told.places[place], ({}, {}))
            with self.clients.lane():
                return self._visit(Sent(starts[place], *beside), int(work.deliveries[place]), rows[place])

        with self.clients.together():
            return self.clients.side_by_side(one, range(len(work)))

    def _taken(self, slots: Tensor) -> Tensor:
        """[K, D] these rows of the store, in a place that the next step uses again."""
        if self.store.device != self.device:
            return self.store.index_select(0, slots.to(self.store.device)).to(self.device)
        if self.delivered is None:
            self.delivered = self.store.new_empty(len(slots), self.store.shape[1])
        return self.clients.gather(self.store, slots, self.delivered)

    @property
    def sent(self) -> Sent:
        """The model as it is sent now."""
        return Sent(self.server.params, *self.carried.now)

    def tensors(self, with_store: bool = True) -> dict[str, Tensor]:
        """Everything that changes from step to step: what a checkpoint holds."""
        state = {f"server.{name}": value for name, value in self.server.state_dict().items()}
        state |= _prefixed("carried", self.carried.tensors())
        return state | ({"store": self.store, "losses": self.losses} if with_store else {})

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `tensors` gave."""
        state = {n: t.to(self.device, copy=True) for n, t in _under("server", tensors).items()}
        self.server = ServerState.from_state_dict(state)  # copies, else they would change with the file
        self.carried.restore(_under("carried", tensors), self.device)
        if "store" in tensors:
            self.store.copy_(tensors["store"])
            self.losses.copy_(tensors["losses"])


def new_store(rows: int, params: Tensor, device: str | torch.device | None = None, file: str | None = None) -> Tensor:
    """[rows, D] for rows that wait, on the device, at the host or, where neither has room, in a file."""
    length = len(params)
    place = torch.device(device) if device is not None else params.device
    width = -(-length // LINE) * LINE if place.type == "cpu" else length
    if file is not None:
        return torch.from_file(file, shared=True, size=rows * width, dtype=torch.float32).view(rows, width)[:, :length]
    return torch.empty(rows, width, device=place)[:, :length]


def _prefixed(prefix: str, named: Named) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in named.items()}


def _under(prefix: str, named: Named) -> dict[str, Tensor]:
    return {n.removeprefix(f"{prefix}."): value for n, value in named.items() if n.startswith(f"{prefix}.")}


def _check_alike(extras: Sequence[Named]) -> None:
    """Refuse extras of one step that cannot lie in one array."""
    kinds = [{name: list(value.shape) for name, value in each.items()} for each in extras]
    other = next((kind for kind in kinds if kind != kinds[0]), None)
    if other is not None:
        raise UserError(
            f"one client delivers the extras {kinds[0]} and another {other}: deliver the same names and shapes always."
        )


def _mean(values: list[Tensor]) -> Tensor:
    """By value; counters are rounded."""
    mean = torch.stack([value.double() for value in values]).mean(0)
    return mean.to(values[0].dtype) if values[0].is_floating_point() else mean.round().to(values[0].dtype)


def columns(rows: Tensor) -> dict[str, NDArray]:
    """The logged rows [steps, 5 + 2 K] by name."""
    table = rows.cpu().numpy()
    narrow, wide = table[:, : len(NARROW)], np.split(table[:, len(NARROW) :], len(WIDE), axis=1)
    return dict(zip((*NARROW, *WIDE), (*narrow.T, *wide), strict=True))
