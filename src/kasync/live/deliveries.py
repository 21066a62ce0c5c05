"""Is what a client sent fit to be used? Everything is looked at before anything is computed with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Delivery:
    """What a client brings: trained parameters or a gradient, with the loss and the number of examples it saw."""

    values: Tensor  # [D]
    loss: float | None = None
    examples: float = 1.0
    metrics: Mapping[str, Any] = field(default_factory=dict)  # whatever else it reported


@dataclass(frozen=True)
class Garbage:
    """A reply that cannot be used, by the client's fault."""

    reason: str


@dataclass(frozen=True)
class Failure:
    """No reply: the client crashed, vanished or could not be reached."""

    reason: str


def row_of(delivery: Delivery, start: Tensor, brings: str, max_norm: float) -> Tensor | Garbage:
    """[D] the row that a rule takes: start minus trained model, or the gradient; or why there is none."""
    values = delivery.values
    if values.shape != start.shape:
        return Garbage(f"it has shape {list(values.shape)}, not {list(start.shape)}")
    if not values.dtype.is_floating_point:
        return Garbage(f"it is {values.dtype}, not a floating-point type")
    if not (math.isfinite(delivery.examples) and delivery.examples > 0):
        return Garbage(f"it reports {delivery.examples} examples")
    if delivery.loss is not None and not math.isfinite(delivery.loss):
        return Garbage(f"it reports a loss of {delivery.loss}")
    values = values.detach().to(start)
    row = start - values if brings == "models" else values
    norm = float(torch.linalg.vector_norm(row, dtype=torch.float64))  # a NaN or an infinity anywhere shows in it
    if not math.isfinite(norm):
        return Garbage("it has a value that is not finite")
    if norm > max_norm:
        return Garbage(f"its norm {norm:.4g} is above max_norm = {max_norm:g}")
    return row
