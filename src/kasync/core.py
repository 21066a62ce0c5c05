"""Rules, their parts and the server's state: one server step as a list of formulas on k deliveries.

    Arrivals      what K clients delivered
    ServerState   everything the server carries from step to step; a checkpoint is this value
    Step          one aggregation in progress: coefficients in the span of the rows, weights, learning rate
    Part          one formula: Step -> Step
    Rule          parts and a learning rate: (server, arrivals) -> (server, step)

No part branches on the value of a tensor, except to leave out what is not `possible`, so a whole step can be captured
in a CUDA graph; and nothing is written into a tensor that somebody else holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from kasync import checks, optimizers, span
from kasync.arrivals import Arrivals, Usable, repeated
from kasync.constants import constant, eye, owned, where
from kasync.errors import UserError
from kasync.kernel import Block, NotFinite
from kasync.optimizers import Layers, OptimizerFactory
from kasync.schedules import Schedule
from kasync.span import Basis
from kasync.step import Step, TableRows

__all__ = ["Part", "Rule", "ServerState", "Step", "TableRows"]

NOTHING: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class ServerState:
    """The server after `step` updates: parameters, and what the parts of its rule remember."""

    params: Tensor  # [D]
    step: Tensor  # [] int64, updates applied so far
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # "Part.name": vectors [D], tables [rows, D], small ones

    @classmethod
    def initial(cls, params: Tensor) -> ServerState:
        """The server before its first update."""
        if params.dim() != 1:
            raise ValueError(
                f"params must be one flat vector [D], got shape {list(params.shape)}: flatten the model first"
            )
        if params.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"params are {params.dtype}: a server counts in float32 or float64")
        return cls(params.detach(), torch.zeros((), dtype=torch.int64, device=params.device))

    def state_dict(self) -> dict[str, Tensor]:
        """All of it, as named tensors."""
        return {"params": self.params, "step": self.step} | {
            f"memory.{name}": value for name, value in self.memory.items()
        }

    @classmethod
    def from_state_dict(cls, tensors: Mapping[str, Tensor]) -> ServerState:
        """The state that `state_dict` described."""
        memory = {name.removeprefix("memory."): value for name, value in tensors.items() if name.startswith("memory.")}
        return cls(tensors["params"], tensors["step"], memory)


@dataclass(frozen=True)
class Part:
    """One formula of a rule. Fields are hyper-parameters; the call turns a step into the next.

    What `memory` names is the part's own: two parts of one kind in a rule do not share it. `basis` and the call see it
    under the names that `memory` gave. A field `clients` is filled in by the rule, which is told it once.
    """

    needs_starts: ClassVar[bool] = False  # reads the parameters each client started from
    needs_clients: ClassVar[bool] = False  # keeps a table with a row for each of its `clients`
    grows: ClassVar[bool] = True  # whether more clients may join while it runs
    means: ClassVar[frozenset[str]] = frozenset()  # what it remembers that is a sum over its clients / their number
    reads: ClassVar[frozenset[str]] = frozenset()  # of "lr", "estimate", "stage": what no later part may set
    sets: ClassVar[frozenset[str]] = frozenset()  # of the same
    after: ClassVar[tuple[type[Part], ...]] = ()  # parts that must stand before it in a rule
    wants_optimizer: ClassVar[str] = ""  # why it cannot do without one that somebody chose

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        """What this part remembers between steps, as it is before the first one; a vector in float64 is kept so."""
        return {}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        """Rows [n, D] that this part adds to the span, by name."""
        return {}

    def __call__(self, step: Step) -> Step:
        raise TypeError(f"{type(self).__name__} has no formula: give it a __call__(step) that returns a step")

    def finish(self, step: Step) -> Step:
        """What is left to do when all parts of the rule have done theirs, such as to remember the direction."""
        return step


@dataclass(frozen=True)
class Rule:
    """What the server does with K deliveries: parts in order, then params - lr * direction."""

    name: str
    lr: float
    parts: tuple[Part, ...]
    optimizer: OptimizerFactory | None = None  # any torch.optim class, applied to the direction
    schedule: Schedule | None = None  # factor on the learning rate by step; None is constant
    layers: Layers | None = None  # shapes of the model's arrays, for an optimiser that asks
    clients: int | None = None  # how many there are, for parts that remember something of each

    def __post_init__(self) -> None:
        checks.at_least("lr", self.lr, 0.0)
        optimizers.check(self.optimizer)
        if self.schedule is not None:
            checks.function("schedule", self.schedule, of="the step [], such as kasync.schedules.Linear(1000)")
        object.__setattr__(self, "clients", self._agreed_clients())
        object.__setattr__(self, "parts", tuple(map(self._bound, self.parts)))
        self._check_order()

    def __call__(self, server: ServerState, arrivals: Arrivals) -> tuple[ServerState, Step]:
        """The server after this step, and what was done. Nothing given to it is changed."""
        after, step = self._advance(server, arrivals, False, None)
        return after, step.handed_out()

    def advance(self, server: ServerState, arrivals: Arrivals, lr: Tensor | None = None) -> tuple[ServerState, Step]:
        """The same for an engine that owns the state: tables of per-client rows are overwritten, not copied.

        The step is to be read only; `handed_out` makes one that may be written to.
        `lr` [] takes the place of the rule's own learning rate, so that many runs can share one rule.
        """
        return self._advance(server, arrivals, True, lr)

    def without(self, *parts: type[Part]) -> Rule:
        """The rule with these parts left out: an ablation."""
        present = [type(part) for part in self.parts]
        for part in parts:
            if part not in present:
                names = ", ".join(kind.__name__ for kind in present) or "none"
                raise ValueError(f"{self.name} has no part {getattr(part, '__name__', part)!r}: its parts are {names}")
        kept = tuple(part for part in self.parts if type(part) not in parts)
        return replace(self, parts=kept, name=f"{self.name} without {', '.join(part.__name__ for part in parts)}")

    def shaped(self, layers: Iterable[Sequence[int]]) -> Rule:
        """The rule for a model whose arrays have these shapes, in the order of its parameters."""
        return replace(self, layers=tuple(tuple(shape) for shape in layers))

    @cached_property
    def needs_starts(self) -> bool:
        """Whether some part reads the parameters each client started from."""
        return any(part.needs_starts for part in self.parts)

    @cached_property
    def needs_layers(self) -> bool:
        """Whether its optimiser moves a model layer by layer and must be told of what shape they are."""
        return optimizers.takes_layers(self.optimizer)

    @property
    def table_rows(self) -> int:
        """How many rows [D] the parts remember for clients, in all."""
        return sum(len(value) for value in self._first_memory.values() if value.dim() == 2)

    @cached_property
    def table_clients(self) -> int | None:
        """How many clients its tables have room for, where it has some."""
        return self.clients if any(part.needs_clients for part in self.parts) else None

    @property
    def grows(self) -> bool:
        """Whether there may be more clients while it runs than it was told of."""
        return all(part.grows for part in self.parts)

    def for_clients(self, clients: int) -> Rule:
        """The rule for so many clients."""
        checks.count("clients", clients)
        told = (replace(part, clients=clients) if _takes_clients(part) else part for part in self.parts)  # type: ignore[call-arg]
        return replace(self, clients=clients, parts=tuple(told))

    def grown(self, server: ServerState, clients: int) -> tuple[Rule, ServerState]:
        """The rule and its state with more clients, as if those had been there all the time and never delivered."""
        if self.clients is None or clients < self.clients or not self.grows:
            raise UserError(f"{self.name}: clients = {clients}: its tables for {self.clients} cannot become that.")
        more, memory = self.for_clients(clients), dict(server.memory)
        fresh = more._remembered(server.params)
        for part, names in zip(self.parts, self._names, strict=True):
            for name, whole in names if _takes_clients(part) else ():
                if fresh[whole].shape != memory[whole].shape:  # a table, its last row for what is not usable
                    fresh[whole][: self.clients] = memory[whole][: self.clients]
                    memory[whole] = fresh[whole]
                elif name in part.means:
                    memory[whole] = memory[whole] * (self.clients / clients)
        return more, replace(server, memory=memory)

    def prepared(self, server: ServerState) -> ServerState:
        """The state with everything the parts remember in place, at its first value where it is new."""
        optimizers.check_layers(self.layers, len(server.params))
        return replace(server, memory=self._remembered(server.params) | dict(server.memory))

    # What a rule is made of, checked once

    def _agreed_clients(self) -> int | None:
        """How many clients the rule and its parts say there are; a contradiction is refused."""
        told = {type(part).__name__: part.clients for part in self.parts if _takes_clients(part) and part.clients}  # type: ignore[attr-defined]
        if self.clients is not None:
            checks.count("clients", self.clients)
            told["the rule"] = self.clients
        if len(set(told.values())) > 1:
            said = " and ".join(f"{number} in {who}" for who, number in told.items())
            raise UserError(f"{self.name}: clients = {said}: give one number, to the rule.")
        return next(iter(told.values()), None)

    def _bound(self, part: Part) -> Part:
        """The part, told how many clients there are if it asks."""
        if not isinstance(part, Part):
            raise UserError(f"{self.name}: {part!r} is no part: give instances of kasync.Part, such as ClipNorms(1.0).")
        if not _takes_clients(part) or part.clients == self.clients:  # type: ignore[attr-defined]
            return part
        if self.clients is None:
            raise UserError(
                f"{self.name}: clients = {self.clients!r}: {type(part).__name__} must know how many there are, so give "
                f"their number to the rule."
            )
        return replace(part, clients=self.clients)  # type: ignore[call-arg]

    def _check_order(self) -> None:
        """Refuse a part that stands before what it depends on, or without it."""
        for place, part in enumerate(self.parts):
            name = type(part).__name__
            for kind in part.after:
                if not any(isinstance(other, kind) for other in self.parts[:place]):
                    raise UserError(f"{self.name}: {name} needs {kind.__name__} before it: add it to the parts.")
            for later in self.parts[place + 1 :]:
                if clash := part.reads & later.sets:
                    other = type(later).__name__
                    raise UserError(
                        f"{self.name}: {name} reads the {' and '.join(sorted(clash))} that {other} sets after it: "
                        f"put {other} first."
                    )
            if part.wants_optimizer and self.optimizer is None and self.lr > 0:  # at rate 0 nothing moves
                raise UserError(f"{self.name}: {name} {part.wants_optimizer}.")

    @cached_property
    def _places(self) -> tuple[str, ...]:
        """A name for each part's own memory: its kind, and its number if the rule has several of it."""
        seen: Counter[str] = Counter()
        names = []
        for part in self.parts:
            kind = type(part).__name__
            seen[kind] += 1
            names.append(kind if seen[kind] == 1 else f"{kind}-{seen[kind]}")
        return tuple(names)

    def _remembered(self, params: Tensor) -> dict[str, Tensor]:
        """What a server with these parameters remembers before the first step."""
        memory = {"stage": torch.ones((), dtype=torch.int64, device=params.device)}
        for place, part in zip(self._places, self.parts, strict=True):
            memory |= {f"{place}.{name}": value for name, value in part.memory(params).items()}
        return memory

    @cached_property
    def _first_memory(self) -> dict[str, Tensor]:
        """The same for a model of one parameter: which names there are, and how many rows their tables have."""
        return self._remembered(torch.zeros(1, device="meta"))

    @cached_property
    def _names(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """For each part the names of what it remembers: its own, and those in the server's memory."""
        probe = torch.zeros(1)
        return tuple(
            tuple((name, f"{place}.{name}") for name in part.memory(probe))
            for place, part in zip(self._places, self.parts, strict=True)
        )

    @cached_property
    def _widening(self) -> list[int]:
        """The numbers of the parts that add rows to the span."""
        return [number for number, part in enumerate(self.parts) if type(part).basis is not Part.basis]

    @cached_property
    def _finishing(self) -> list[int]:
        """The numbers of the parts that have something to do at the end."""
        return [number for number, part in enumerate(self.parts) if type(part).finish is not Part.finish]

    def _own(self, number: int, memory: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What the part of this number remembers, under its own names."""
        names = self._names[number]
        return {name: memory[whole] for name, whole in names} if names else NOTHING

    # One step

    def _advance(
        self, server: ServerState, arrivals: Arrivals, in_place: bool, lr: Tensor | None
    ) -> tuple[ServerState, Step]:
        if not self._first_memory.keys() <= server.memory.keys():
            server = self.prepared(server)
        sound = Usable.of(arrivals, server.params, self.table_clients)
        if not span.unreadable(server.params) and sound.surely():
            try:  # nearly always everything is finite, which then shows in what is computed anyway
                step = self._through_parts(server, sound, None, lr)
                return self._closed(server, step, in_place)
            except NotFinite:
                pass
        clean, usable = self._judged(sound)
        step = self._through_parts(server, clean, usable, lr)
        return self._closed(server, step, in_place)

    def _judged(self, sound: Usable) -> tuple[Usable, Tensor]:
        """The arrivals with zeros for rows that are not finite, and which of them can be used [K]."""
        rows = span.matrix(sound.rows)
        usable = sound.mask & span.finite(rows)
        starts, clients = sound.given.starts, sound.clients
        if self.needs_starts and starts is not None:
            usable = usable & span.finite(starts)
        if clients is not None and self.table_clients is not None:
            usable = usable & ~repeated(clients, usable)
            clients = where(usable, clients, self.table_clients)  # what is not usable goes to a row nobody reads
        rows = where(usable[:, None], rows, 0.0)  # 0 * NaN is NaN: rows not used become zero
        if self.needs_starts and starts is not None:
            starts = where(usable[:, None], starts, 0.0)
        given = replace(sound.given, starts=starts)
        return replace(sound, given=given, rows=rows, clients=clients, usable=usable), usable

    def _through_parts(self, server: ServerState, sound: Usable, usable: Tensor | None, lr: Tensor | None) -> Step:
        """The step after every part; `usable` None means all, which is then found out on the way."""
        blocks: dict[str, Block] = {"gradients": sound.rows}
        for number in self._widening:
            place, own = self._places[number], self._own(number, server.memory)
            rows = self.parts[number].basis(ServerState(server.params, server.step, own), sound.arrivals)
            blocks |= {f"{place}.{name}": block for name, block in rows.items()}
        basis = Basis(blocks, server.params.dtype, doubt=usable is None)
        if usable is not None:
            usable = usable & basis.others_finite()  # one in a memory makes nothing usable
        step = self._opened(server, sound, basis, usable, lr)
        for number, part in enumerate(self.parts):
            step = self._after(step, part, number)
        for number in self._finishing:
            step = self._after(step, self.parts[number].finish, number)
        step.turn_to("", server.memory)
        return step

    def _after(self, step: Step, formula: Callable[[Step], Any], number: int) -> Step:
        """The step that a part makes of a step, seeing its own memory; what cannot be one is refused by its name."""
        step.turn_to(self._places[number], self._own(number, step.everything))
        weights, coefficients, lr = step.weights, step.coefficients, step.lr
        step = formula(step)
        if type(step) is not Step:
            raise UserError(
                f"{type(self.parts[number]).__name__} returned {type(step).__name__}: end its formula with the new "
                f"step, as in return step.weighed(weights)."
            )
        if step.weights is not weights:
            self._check_made("weights", step.weights, weights, number)
        if step.coefficients is not coefficients:
            self._check_made("coefficients", step.coefficients, coefficients, number)
        if step.lr is not lr:
            self._check_made("lr", step.lr, lr, number)
        return step

    def _check_made(self, name: str, value: Tensor, old: Tensor, number: int) -> None:
        """Refuse what takes the place of another tensor without being of its kind."""
        if value.dtype != torch.float64 or value.shape != old.shape:
            raise UserError(
                f"{type(self.parts[number]).__name__} made {name} {value.dtype} of shape {list(value.shape)}: give "
                f"float64 of shape {list(old.shape)}."
            )

    def _factor(self, number: Tensor, device: torch.device) -> Tensor | float:
        """What the schedule makes of the learning rate in the step of this number []."""
        assert self.schedule is not None
        factor = self.schedule(number)
        return factor.to(device).double() if isinstance(factor, Tensor) else float(factor)

    def _opened(
        self, server: ServerState, sound: Usable, basis: Basis, usable: Tensor | None, lr: float | Tensor | None
    ) -> Step:
        """The step before its first part: each gradient as it came, equal weights."""
        rate = self.lr if lr is None else lr
        full = rate if isinstance(rate, Tensor) else constant(rate, torch.float64, basis.device)
        given = {
            "staleness": sound.staleness,
            "losses": sound.losses,
            "batch_sizes": sound.batch_sizes,
            "clients": sound.clients,
            "number": server.step,
            "memory": server.memory,
            "everything": server.memory,
            "lr": full if self.schedule is None else full * self._factor(server.step, basis.device),
            "full_lr": full,
            "stage": server.memory["stage"],
        }
        step = Step.opened(basis, basis.k, given)
        if usable is None:
            return step
        step = step.having(usable=usable, all_usable=not span.possible(~usable.all()))
        if step.all_usable:
            return step
        return step.having(
            dropped=(~usable).sum(),
            skipped=~usable.any(),
            staleness=step.kept(sound.staleness, 0.0),
            losses=None if sound.losses is None else step.kept(sound.losses, 0.0),
            batch_sizes=step.kept(sound.batch_sizes, 0.0),
            weights=step.equal_weights,
        )

    def _closed(self, server: ServerState, step: Step, in_place: bool) -> tuple[ServerState, Step]:
        """One pass over the rows for the update and all vectors to remember.

        A single run on a CPU may ask whether something was not usable; in a CUDA graph or a stack of runs nobody can,
        so there every outcome is computed and the right one chosen.
        """
        old, basis = server.memory, step.basis
        unreadable = not step.all_usable and span.unreadable(step.usable)
        if not step.all_usable and not unreadable and bool(step.skipped):
            return server, step
        self._check_kept(step, old)
        exact = [name for name in step.vectors if old[name].dtype != server.params.dtype]
        vectors = {name: row for name, row in step.vectors.items() if name not in exact} if exact else step.vectors
        state: dict[str, Tensor] = {}
        plain = basis.size == basis.k and step.coefficients is eye(basis.k, basis.k, basis.device)
        direction = step.weights if plain else step.direction  # [B]
        table = torch.stack([direction, *vectors.values()]) if vectors else direction
        if self.optimizer is None:
            made = basis.combined(table, server.params, step.lr)
            params, *long = made.unbind() if vectors else (made,)
        else:
            made = basis.combined(table)
            direction, *long = made.unbind() if vectors else (made,)
            params, state = optimizers.follow(self.optimizer, server.params, direction, step.lr, old, self.layers)
            if step.still is not None:
                params = where(step.still, server.params, params)
                state = {name: where(step.still, old.get(name, value), value) for name, value in state.items()}
        after = {**step.values, **state}
        if vectors:
            after |= zip(vectors, long, strict=True)
        if step.stage is not old["stage"]:
            after["stage"] = step.stage
        if exact:
            rows = basis.combined_exactly(torch.stack([step.vectors[name] for name in exact]))
            after |= dict(zip(exact, rows.unbind(), strict=True))
        if unreadable:
            if not after.keys() <= old.keys() and bool(step.skipped):
                return server, step  # an optimiser's first state has no earlier one to fall back on
            params = where(step.skipped, server.params, params)
            after = {name: where(step.skipped, old.get(name, value), value) for name, value in after.items()}
        memory = {**old, **{name: owned(value) for name, value in after.items()}}
        for name, written in step.rows.items():
            memory[name] = _written(old[name], written, basis, in_place)
        count = constant(1, torch.int64, basis.device) if step.all_usable else (~step.skipped).long()
        return ServerState(params, server.step + count, memory), step

    def _check_kept(self, step: Step, old: Mapping[str, Tensor]) -> None:
        """Refuse small values that are not what the part's memory said they would be."""
        for name, value in step.values.items():
            if value.dtype != old[name].dtype or value.shape != old[name].shape:
                part, _, short = name.partition(".")
                raise UserError(
                    f"{part} keeps {short} as {value.dtype} of shape {list(value.shape)}: its memory says "
                    f"{old[name].dtype} of shape {list(old[name].shape)}."
                )


def _takes_clients(part: Part) -> bool:
    return any(each.name == "clients" for each in fields(part))


def _written(table: Tensor, rows: TableRows, basis: Basis, in_place: bool) -> Tensor:
    """The table [rows, D] with the rows of this step's arrivals in it."""
    if rows.coefficients is None:
        fresh = span.matrix(basis.blocks["gradients"]).to(table.dtype)
    else:
        fresh = basis.combined(rows.coefficients).to(table.dtype)
    return table.index_put_((rows.index,), fresh) if in_place else table.index_put((rows.index,), fresh)
