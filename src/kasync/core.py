"""What is a rule? A few parts, each a formula on K-sized numbers, between one Gram matrix and one matrix product.

    Arrivals      what K clients delivered
    ServerState   everything the server carries from step to step; a checkpoint is this value
    Step          one aggregation in progress: coefficients in the span of the rows, weights, learning rate
    Part          one formula: Step -> Step
    Rule          parts and a learning rate: (server, arrivals) -> (server, step)

No part branches on the value of a tensor, except to leave out what is not `possible`, so a whole step can be captured
in a CUDA graph; and nothing is written into a tensor that somebody else holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from kasync import checks, optimizers, span
from kasync.arrivals import Arrivals, Usable, repeated
from kasync.constants import constant, eye, filled, where
from kasync.kernel import Block, length
from kasync.optimizers import Layers, OptimizerFactory
from kasync.schedules import Constant, Schedule
from kasync.step import Step, TableRows

__all__ = ["Part", "Rule", "ServerState", "Step", "TableRows"]


@dataclass(frozen=True)
class ServerState:
    """The server after `step` updates: parameters, and what the parts of its rule remember."""

    params: Tensor  # [D]
    step: Tensor  # [] int64, updates applied so far
    memory: Mapping[str, Tensor] = field(default_factory=dict)  # vectors [D], tables [rows, D], small values

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
    """One formula of a rule. Fields are hyper-parameters; the call turns a step into the next."""

    needs_starts: ClassVar[bool] = False  # reads the parameters each client started from
    needs_clients: ClassVar[bool] = False  # keeps a table with a row for each of its `clients`

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        """What this part remembers between steps, as it is before the first one."""
        return {}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        """Rows [n, D] that this part adds to the span, by name."""
        return {}

    def __call__(self, step: Step) -> Step:
        raise TypeError(f"{type(self).__name__} has no formula: give it a __call__(step) that returns a step")


@dataclass(frozen=True)
class Rule:
    """What the server does with K deliveries: parts in order, then params - lr * direction."""

    name: str
    lr: float
    parts: tuple[Part, ...]
    optimizer: OptimizerFactory | None = None  # any torch.optim class, applied to the direction
    schedule: Schedule = field(default_factory=Constant)  # factor on the learning rate by step
    layers: Layers | None = None  # shapes of the model's arrays, for an optimiser that asks

    def __post_init__(self) -> None:
        checks.at_least("lr", self.lr, 0.0)
        optimizers.check(self.optimizer)

    def __call__(self, server: ServerState, arrivals: Arrivals) -> tuple[ServerState, Step]:
        """The server after this step, and what was done. Nothing given to it is changed."""
        return self._advance(server, arrivals, False, None)

    def advance(self, server: ServerState, arrivals: Arrivals, lr: Tensor | None = None) -> tuple[ServerState, Step]:
        """The same for an engine that owns the state: tables of per-client rows are overwritten, not copied.

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

    def prepared(self, server: ServerState) -> ServerState:
        """The state with everything the parts remember in place, at its first value where it is new."""
        optimizers.check_layers(self.layers, len(server.params))
        return replace(server, memory=self._remembered(server.params) | dict(server.memory))

    def _remembered(self, params: Tensor) -> dict[str, Tensor]:
        """What a server with these parameters remembers before the first step."""
        memory = {"stage": torch.ones((), dtype=torch.int64, device=params.device)}
        for part in self.parts:
            memory |= part.memory(params)
        return memory

    @cached_property
    def _first_memory(self) -> dict[str, Tensor]:
        """The same for a model of one parameter: which names there are, and how many rows their tables have."""
        return self._remembered(torch.zeros(1))

    def _advance(
        self, server: ServerState, arrivals: Arrivals, in_place: bool, lr: Tensor | None
    ) -> tuple[ServerState, Step]:
        if not self._first_memory.keys() <= server.memory.keys():
            server = self.prepared(server)
        sound = Usable.of(arrivals, server.params, self.clients)
        arrivals = sound.arrivals
        blocks: dict[str, Block] = {"gradients": sound.rows}
        for part in self._widening:
            blocks |= part.basis(server, arrivals)
        gram = span.gram(list(blocks.values()))  # [B, B]
        step = self._opened(server, sound, gram, blocks, self.lr if lr is None else lr)
        for part in self.parts:
            step = part(step)
        return self._closed(server, step, blocks, in_place)

    @cached_property
    def clients(self) -> int | None:
        """How many clients the tables have room for, where there is one."""
        return next((part.clients for part in self.parts if part.needs_clients), None)  # type: ignore[attr-defined]

    @cached_property
    def _widening(self) -> list[Part]:
        """The parts that add rows to the span."""
        return [part for part in self.parts if type(part).basis is not Part.basis]

    def _opened(
        self, server: ServerState, sound: Usable, gram: Tensor, blocks: Mapping[str, Block], lr: float | Tensor
    ) -> Step:
        """The step before its first part: each gradient as it came, equal weights."""
        k, size = sound.staleness.shape[0], gram.shape[0]
        clients, usable, all_usable = self._judged(sound, gram)
        if not all_usable:
            valid = torch.cat([usable, usable.new_ones(size - k)])
            gram = where(valid[:, None] & valid[None, :], gram, 0.0)
        layout, stop = {}, 0
        for name, rows in blocks.items():
            start, stop = stop, stop + length(rows)
            layout[name] = slice(start, stop)
        factor = self.schedule(server.step).to(gram.device)
        step = Step(
            gram=gram,
            layout=layout,
            usable=usable,
            staleness=sound.staleness,
            losses=sound.losses,
            batch_sizes=sound.batch_sizes,
            clients=clients,
            number=server.step,
            memory=server.memory,
            coefficients=eye(k, size, gram.device),
            weights=filled(1.0 / k, k, torch.float64, gram.device),
            lr=lr * factor.double(),
            full_lr=lr if isinstance(lr, Tensor) else constant(lr, torch.float64, gram.device),
            stage=server.memory["stage"],
            dropped=constant(0, torch.int64, gram.device),
            skipped=constant(False, torch.bool, gram.device),
            all_usable=all_usable,
        )
        if all_usable:
            return step
        return step.having(
            dropped=(~usable).sum(),
            skipped=~usable.any(),
            staleness=step.kept(sound.staleness, 0.0),
            losses=None if sound.losses is None else step.kept(sound.losses, 0.0),
            batch_sizes=step.kept(sound.batch_sizes, 0.0),
            weights=step.equal_weights,
        )

    def _judged(self, sound: Usable, gram: Tensor) -> tuple[Tensor | None, Tensor, bool]:
        """The clients [K], which arrivals are usable [K], and whether all of them are known to be.

        A norm that is finite shows that there is no NaN and no infinity; one in a memory makes nothing usable.
        """
        clients, k = sound.arrivals.client_index, sound.staleness.shape[0]
        if self.clients is None and sound.surely() and not span.blind(gram) and float(gram.trace()) < torch.inf:
            return clients, filled(True, k, torch.bool, gram.device), True
        finite = gram.diagonal() < torch.inf
        usable = sound.mask & finite[:k] & finite[k:].all()
        if clients is not None and self.clients is not None:
            usable = usable & ~repeated(clients, usable)
            clients = where(usable, clients, self.clients)  # what is not usable goes to a row nobody reads
        return clients, usable, not span.possible(~usable.all())

    def _closed(
        self, server: ServerState, step: Step, blocks: Mapping[str, Block], in_place: bool
    ) -> tuple[ServerState, Step]:
        """One product for the update and all vectors to remember.

        A single run on a CPU may ask whether something was not usable; in a CUDA graph or a stack of runs nobody can,
        so there every outcome is computed and the right one chosen.
        """
        clean, old = dict(blocks), server.memory
        blind = span.blind(step.usable)
        if not step.all_usable:  # 0 * NaN is NaN: rows not used become zero
            if not blind and bool(step.skipped):
                return server, step
            clean["gradients"] = where(step.usable[:, None], span.matrix(blocks["gradients"]), 0.0)
        state: dict[str, Tensor] = {}
        if self.optimizer is None:  # the parameters join as one more row, and the first combination is the update
            table = torch.stack([-step.lr * step.direction, *step.vectors.values()])  # [1 + vectors, B]
            table = torch.cat([table, eye(table.shape[0], 1, table.device)], dim=1)
            params, *vectors = span.combine(table, [*clean.values(), server.params[None]]).unbind()
        else:
            table = torch.stack([step.direction, *step.vectors.values()])
            direction, *vectors = span.combine(table, list(clean.values())).unbind()
            params, state = optimizers.follow(self.optimizer, server.params, direction, step.lr, old, self.layers)
        after = dict(zip(step.vectors, vectors, strict=True)) | dict(step.values) | state | {"stage": step.stage}
        if blind:
            if not after.keys() <= old.keys() and bool(step.skipped):
                return server, step  # an optimiser's first state has no earlier one to fall back on
            params = where(step.skipped, server.params, params)
            after = {name: where(step.skipped, old.get(name, value), value) for name, value in after.items()}
        memory = dict(old) | after
        for name, rows in step.rows.items():
            memory[name] = self._written(old[name], rows, clean, in_place)
        made = 1 if step.all_usable else (~step.skipped).long()
        return ServerState(params, server.step + made, memory), step

    @staticmethod
    def _written(table: Tensor, rows: TableRows, blocks: Mapping[str, Block], in_place: bool) -> Tensor:
        """The table [rows, D] with the rows of this step's arrivals in it."""
        if rows.coefficients is None:
            fresh = span.matrix(blocks["gradients"]).to(table.dtype)
        else:
            fresh = span.combine(rows.coefficients, list(blocks.values())).to(table.dtype)
        return table.index_put_((rows.index,), fresh) if in_place else table.index_put((rows.index,), fresh)
