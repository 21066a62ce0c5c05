"""K deliveries as a rule gets them, and which of them are sound."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kasync.constants import column, filled, where
from kasync.kernel import Block, Rows, length
from kasync.span import unreadable

Gradients = Block | Sequence[Tensor]  # rows of a table are an engine's own: of the parameters' length and type

LEAST = (0.0, sys.float_info.min, -sys.float_info.max)  # of a staleness, a batch size, a loss; a NaN is not at least it


@dataclass(frozen=True)
class Arrivals:
    """K deliveries. Everything but the gradients may be given as a plain list."""

    gradients: Gradients  # [K, D]
    staleness: Tensor | Sequence[float]  # [K] updates applied since the client received its model
    losses: Tensor | Sequence[float] | None = None  # [K]
    batch_sizes: Tensor | Sequence[float] | None = None  # [K]
    clients: Tensor | Sequence[int] | None = None  # [K]
    starts: Tensor | None = None  # [K, D] the parameters each client started from
    usable: Tensor | None = None  # [K] bool, found out by the rule; None means all; those that are not have zeros

    def __post_init__(self) -> None:
        k = len(self)
        if k == 0:
            raise ValueError("k = 0: a step needs at least one delivery")
        if isinstance(self.gradients, Tensor) and self.gradients.dim() != 2:
            raise ValueError(f"gradients must be rows [k, D], got shape {list(self.gradients.shape)}")
        for name in ("staleness", "losses", "batch_sizes", "clients", "starts"):
            value = getattr(self, name)
            if value is not None and length(value) != k:
                raise ValueError(f"{name} has {len(value)} entries for {k} gradients: give one each")

    def __len__(self) -> int:
        return length(self.gradients)

    @property
    def matrix(self) -> Tensor:
        """[K, D] the gradients in one piece."""
        if isinstance(self.gradients, Rows):
            return self.gradients.gathered()
        return self.gradients if isinstance(self.gradients, Tensor) else torch.stack(list(self.gradients))

    def mean(self, rows: Tensor) -> Tensor:
        """[D] the mean of the rows [K, D] that belong to usable arrivals."""
        if self.usable is None:
            return rows.mean(0)
        return where(self.usable[:, None], rows, 0.0).sum(0) / self.usable.sum().clamp(min=1).to(rows.dtype)

    @property
    def client_index(self) -> Tensor | None:
        """[K] int64 client of each arrival."""
        if self.clients is None or (isinstance(self.clients, Tensor) and self.clients.dtype == torch.int64):
            return self.clients
        return torch.as_tensor(self.clients, dtype=torch.int64)


@dataclass(eq=False)  # one that is frozen takes three times as long to make, and this is made in every step
class Usable:
    """Arrivals as tensors on the server's device, and which are sound in everything but their gradient's values."""

    given: Arrivals
    rows: Block  # [K, D] the gradients
    staleness: Tensor  # [K] float64
    losses: Tensor | None  # [K] float64
    batch_sizes: Tensor  # [K] float64
    clients: Tensor | None  # [K] int64
    right: Tensor | None  # [K] bool, whose gradient has the right length, where one has not
    table: int | None  # clients that the rule's tables have a row for, where it has tables
    usable: Tensor | None = None  # [K] bool, once it was found out that some are not

    @classmethod
    def of(cls, arrivals: Arrivals, params: Tensor, clients: int | None) -> Usable:
        """Check lengths, staleness, losses, batch sizes and, for a rule with a table of `clients` rows, client ids."""
        device, sizes = params.device, arrivals.batch_sizes
        rows, right = _block(arrivals.gradients, params)
        staleness = _numbers(arrivals.staleness, device)
        losses = None if arrivals.losses is None else _numbers(arrivals.losses, device)
        sizes = filled(1.0, len(arrivals), torch.float64, device) if sizes is None else _numbers(sizes, device)
        index = arrivals.client_index
        if clients is not None:
            if index is None:
                raise ValueError(
                    "clients is missing: this rule remembers something for each client, so name who delivered"
                )
            index = index.to(device)
        if arrivals.starts is not None and arrivals.starts.shape[1:] != params.shape:
            raise ValueError(
                f"starts has rows of shape {list(arrivals.starts.shape[1:])}: each must be as long as the parameters, "
                f"{len(params)}"
            )
        return cls(arrivals, rows, staleness, losses, sizes, index, right, clients)

    @property
    def arrivals(self) -> Arrivals:
        """The same as the parts of a rule see them."""
        seen = object.__new__(Arrivals)  # as many of each as was checked before
        own = {name: self.__dict__[name] for name in ("staleness", "losses", "batch_sizes", "clients", "usable")}
        seen.__dict__.update(self.given.__dict__, gradients=self.rows, **own)
        return seen

    @property
    def reports(self) -> list[Tensor]:
        """[K] each: staleness, batch size and, where there is one, loss."""
        return [values for values in (self.staleness, self.batch_sizes, self.losses) if values is not None]

    @property
    def mask(self) -> Tensor:
        """[K] bool, which are sound."""
        reports = torch.stack(self.reports)  # [2 or 3, K]
        least = column(LEAST, reports.device)[: len(reports)]  # [2 or 3, 1]
        sound = ((reports >= least) & (reports < torch.inf)).all(0)
        if self.right is not None:
            sound = sound & self.right
        if self.table is not None:
            index = self.clients
            assert index is not None
            sound = sound & (index >= 0) & (index < self.table)
        return sound

    def surely(self) -> bool:
        """Whether all of them are for certain, which costs less to ask than which are."""
        if self.right is not None:
            return False
        if self.table is not None:
            index = self.clients
            assert index is not None
            if unreadable(index):
                return False
            ids = index.tolist()
            if min(ids) < 0 or max(ids) >= self.table or len(set(ids)) < len(ids):
                return False
        for values, least in zip((self.staleness, self.batch_sizes, self.losses), LEAST, strict=True):
            if values is None:  # no losses
                continue
            if unreadable(values):
                return False
            numbers = values.tolist()
            if not (min(numbers) >= least and sum(numbers) < math.inf):  # a NaN fails one of the two
                return False
        return True


def _numbers(values: Tensor | Sequence[float], device: torch.device) -> Tensor:
    """[K] float64, on this device."""
    if not isinstance(values, Tensor):
        values = torch.as_tensor(values, dtype=torch.float64)
    known = values.dtype is torch.float64 and values.device == device
    return values if known else values.to(device, torch.float64, non_blocking=True)


def _block(gradients: Gradients, params: Tensor) -> tuple[Block, Tensor | None]:
    """[K, D] rows with zeros where a gradient has the wrong length, and [K] which have the right one, if not all."""
    length, device = params.shape[0], params.device  # a tensor's len takes ten times as long
    if isinstance(gradients, Rows):
        return gradients, None
    if isinstance(gradients, Tensor):
        if gradients.shape[1] == length:
            known = gradients.dtype is params.dtype and gradients.device == device and not gradients.requires_grad
            return gradients if known else gradients.detach().to(params), None
        return params.new_zeros(len(gradients), length), torch.zeros(len(gradients), dtype=torch.bool, device=device)
    right = [row.dim() == 1 and len(row) == length for row in gradients]
    rows = [
        row.detach().to(params) if ok else params.new_zeros(length) for row, ok in zip(gradients, right, strict=True)
    ]
    return torch.stack(rows), torch.tensor(right, device=device)


def repeated(clients: Tensor, usable: Tensor) -> Tensor:
    """[K] whether the client of this arrival already delivered something usable in the same step."""
    same = (clients[:, None] == clients[None, :]) & usable[None, :]
    return same.tril(-1).any(1)
