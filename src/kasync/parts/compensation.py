"""Parts that correct each coordinate of a stale gradient by how far the model has moved since it was computed.

Where no starts are given, every client started from the server's parameters, and there is nothing to correct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.core import Part, ServerState, Step

LONGEST = 1e15  # entries beyond it have no square in float32
TINY = 1e-7  # beside a mean square, against division by zero: that of the authors' code


def gaps(server: ServerState, arrivals: Arrivals) -> Tensor:
    """[K, D] how far the model has moved since each client received it."""
    rows = arrivals.matrix
    if arrivals.starts is None:
        return torch.zeros_like(rows)
    return server.params - arrivals.starts.to(server.params)


@dataclass(frozen=True)
class CompensateDelay(Part):
    """g_i + c g_i (.) g_i (.) (w - start_i),  with a decay c = compensation / sqrt(mean square + 1e-7)   (DC-ASGD)"""

    compensation: float
    decay: float | None = None
    needs_starts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.at_least("compensation", self.compensation, 0.0)
        if self.decay is not None:
            checks.between("decay", self.decay, 0.0, 1.0)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {} if self.decay is None else {"square": torch.zeros_like(params)}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        rows = arrivals.matrix
        squares = rows.square()
        if self.decay is None:
            return {"corrected": rows + self.compensation * squares * gaps(server, arrivals)}
        square = torch.lerp(arrivals.mean(squares), server.memory["square"], self.decay)  # [D]
        factors = self.compensation / (square + TINY).sqrt()
        return {"corrected": rows + factors * squares * gaps(server, arrivals), "square": square[None]}

    def __call__(self, step: Step) -> Step:
        if self.decay is not None:
            step = step.remember(square=step.unit("square")[0])
        return step.having(coefficients=step.unit("corrected"))


@dataclass(frozen=True)
class DivideByGap(Part):
    """g_i / (1 + |w - start_i| / C) by coordinate,  C = rate (sqrt(mean square of g) + 1e-8)   (Gap-Aware)

    C is how far a usual step moves the coordinate; the mean square is a running one, corrected for its first steps.
    """

    rate: float
    decay: float = 0.999
    needs_starts: ClassVar[bool] = True
    of_lr: ClassVar[str] = "rate"  # the field that is the rule's learning rate once more

    def __post_init__(self) -> None:
        checks.at_least("lr", self.rate, 0.0)
        checks.between("decay", self.decay, 0.0, 1.0)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"square": torch.zeros_like(params), "left": params.new_ones((), dtype=torch.float64)}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        rows = arrivals.matrix
        square = torch.lerp(
            arrivals.mean(rows.clamp(-LONGEST, LONGEST).square()), server.memory["square"], self.decay
        )  # [D]
        known = 1.0 - self.decay * server.memory["left"]  # share of the running mean that is not the zeros of the start
        usual = self.rate * ((square / known.to(square.dtype).clamp(min=TINY)).sqrt() + 1e-8)
        gap = gaps(server, arrivals).abs()
        divided = rows * (usual / (usual + gap)) if self.rate > 0 else rows
        return {"divided": divided, "square": square[None]}

    def __call__(self, step: Step) -> Step:
        step = step.remember(square=step.unit("square")[0]).keep(left=self.decay * step.memory["left"])
        return step.having(coefficients=step.unit("divided"))
