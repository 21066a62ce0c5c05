"""What a client sends, the checks it must pass, and the accepted deliveries that wait for a step."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import torch
from torch import Tensor

BLOCK = 1 << 17  # numbers that are read twice while they are in cache, their squares summed in their own precision
VARIANCES = ("running_var", "moving_variance")  # ends of the names of buffers that are never negative


@dataclass(frozen=True)
class Delivery:
    """What a client brings: trained parameters or a gradient, with the loss and the number of examples it saw."""

    values: Tensor | Sequence[Tensor]  # [D], in one piece or in several one after the other
    loss: float | None = None
    examples: float = 1.0
    metrics: Mapping[str, Any] = field(default_factory=dict)  # whatever else it reported
    buffers: Tensor | None = None  # [B] what is no parameter, by value
    key: str | None = None  # who it is, where a node's name changes when it starts again


@dataclass(frozen=True)
class Garbage:
    """A reply that cannot be used, by the client's fault."""

    reason: str


@dataclass(frozen=True)
class Failure:
    """No reply: the client crashed, vanished or could not be reached."""

    reason: str


def filed(params: Tensor, folder: str | PathLike[str]) -> Tensor:
    """A copy of these parameters [D] in a file of this folder, which goes when the copy does, or with the process."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="kasync-version-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and a crash later
            os.posix_fallocate(file.fileno(), 0, params.nbytes)
        copy = torch.from_file(file.name, shared=True, size=len(params), dtype=params.dtype)
    return copy.copy_(params)


class RowPool:
    """Rows of one table [slots, D] that accepted deliveries are written into; a rule reads them where they lie."""

    def __init__(self, like: Tensor, slots: int) -> None:
        self.table = torch.empty(slots, len(like), dtype=like.dtype, device=like.device)
        self.free = list(range(slots))[::-1]

    def take(self) -> int:
        """A free row; the table doubles when there is none."""
        if not self.free:
            slots = len(self.table)
            table = torch.empty(2 * slots, *self.table.shape[1:], dtype=self.table.dtype, device=self.table.device)
            table[:slots] = self.table
            self.table, self.free = table, list(range(slots, 2 * slots))[::-1]
        return self.free.pop()

    def release(self, slot: int) -> None:
        self.free.append(slot)


@dataclass(frozen=True)
class Accepted:
    """An accepted delivery."""

    client: int
    node: Hashable  # its name in the transport
    version: int  # the model it worked on
    slot: int  # of the pool
    pool: RowPool
    start: Tensor | None  # [D] the model it worked on, for rules that read it
    loss: float | None
    examples: float
    metrics: Mapping[str, Any]
    buffers: Tensor | None = None  # [B]
    file: str = ""  # of the journal

    @property
    def row(self) -> Tensor:
        """[D] what the rule takes; overwritten by a later delivery once this one was used."""
        return self.pool.table[self.slot]


def write_row(
    delivery: Delivery, start: Tensor, buffers: Tensor | None, brings: str, max_norm: float, out: Tensor
) -> Garbage | None:
    """Check a delivery and write what a rule takes of it into out [D]: start minus trained model, or the gradient."""
    pieces = [delivery.values] if isinstance(delivery.values, Tensor) else list(delivery.values)
    if isinstance(delivery.values, Tensor) and delivery.values.shape != start.shape:
        return Garbage(f"it has shape {list(delivery.values.shape)}, not {list(start.shape)}")
    if sum(piece.numel() for piece in pieces) != start.numel():
        return Garbage(f"it has {sum(piece.numel() for piece in pieces)} numbers, not {start.numel()}")
    for piece in pieces:
        if not piece.dtype.is_floating_point:
            return Garbage(f"it is {piece.dtype}, not a floating-point type")
    if not sys.float_info.min <= delivery.examples < math.inf:  # what a rule takes for a batch size
        return Garbage(f"it reports {delivery.examples} examples")
    if delivery.loss is not None and not math.isfinite(delivery.loss):
        return Garbage(f"it reports a loss of {delivery.loss}")
    if delivery.buffers is not None and buffers is not None:
        if delivery.buffers.shape != buffers.shape:
            return Garbage(f"its buffers have shape {list(delivery.buffers.shape)}, not {list(buffers.shape)}")
        if not bool(torch.isfinite(delivery.buffers).all()):
            return Garbage("it has a buffer that is not finite")
    place, squares = 0, []
    for piece in pieces:
        flat = piece.detach().reshape(-1).to(out.device)
        for first in range(0, len(flat), BLOCK):
            part = flat[first : first + BLOCK]
            end = place + len(part)
            row = out[place:end]
            if brings == "models":
                torch.sub(start[place:end].to(out.device), part, out=row)
            else:
                row.copy_(part)
            squares.append(torch.dot(row, row))
            place = end
    norm = _root(squares, out)  # a NaN or an infinity anywhere shows in it
    if not math.isfinite(norm):
        return Garbage("it has a value that is not finite")
    if norm > max_norm:
        return Garbage(f"its norm {norm:.4g} is above max_norm = {max_norm:g}")
    return None


def length(row: Tensor) -> float:
    """The 2-norm of a row [D]; NaN or infinite where an entry is."""
    return _root([torch.dot(part, part) for part in row.split(BLOCK)], row)


def _root(squares: Sequence[Tensor], row: Tensor) -> float:
    """The 2-norm of a row from the sums of its blocks' squares."""
    total = float(squares[0]) if len(squares) == 1 else math.fsum(torch.stack(list(squares)).tolist())
    if math.isinf(total):  # the squares of finite numbers may be too large for float32
        return float(torch.linalg.vector_norm(row, dtype=torch.float64))
    return math.sqrt(total)
