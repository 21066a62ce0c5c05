"""Recall's memory of every client, trusted the less the further the model has moved since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import ServerState, Step, TableRows
from kasync.errors import unknown
from kasync.parts.tables import ClientPart, client_rows

PRECISIONS = ("full", "half")
FORGETS = 4.0  # times in a round, the measurement of what memories are worth
NEVER = -(2.0**1000)  # halvings before a gradient that has not come yet
MOST = 1000.0  # halvings in one step: nothing is left of what came before
LEAST = 1e-30  # trust in all clients together below which nothing is remembered


@dataclass(frozen=True)
class Recall(ClientPart):
    """g_i - f b_i (h_i - m),  b_i = 2^(-(r_i / half_distance)^2),  m the mean of all h_j, each counted b_j times

    h_i is the last delivery of client i, and r_i how far the model has gone since it was computed: steps of length lr
    that follow different clients go as far as a random walk, r_i^2 = sum of lr^2. So all trust halves equally often,
    whoever it is in, and the sum behind m is kept up to date with the K rows that change. In half precision the table
    is in bfloat16, and the sum is of what the table holds. It comes after whatever sets the learning rate.

    f is 1, or, where it is `measured`, how much of b_i (h_i - m) was found in g_i - m: the coefficient of a regression
    over the arrivals of about a quarter of a round, between 0 and 1.
    """

    half_distance: float
    memory_precision: str = "full"
    measured: bool = False
    reads: ClassVar[frozenset[str]] = frozenset({"lr"})
    means: ClassVar[frozenset[str]] = frozenset({"trusted_sum", "trust"})
    wants_optimizer: ClassVar[str] = (
        "takes every step to be as long as the learning rate: give optimizer=optimizers.Muon, whose steps are, or "
        "optimizers.Plain to do without"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.limit("half_distance", self.half_distance)
        if self.memory_precision not in PRECISIONS:
            raise unknown("memory_precision", self.memory_precision, PRECISIONS)
        checks.flag("measured", self.measured)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        kind = params.dtype if self.memory_precision == "full" else torch.bfloat16
        nothing = torch.zeros((), dtype=torch.float64, device=params.device)
        found = {"found": nothing.clone(), "expected": nothing.clone()} if self.measured else {}
        return found | {
            "last": params.new_zeros(self.clients + 1, len(params), dtype=kind),
            "last_halvings": nothing.new_full((self.clients + 1,), NEVER),  # when it was computed
            "trusted_sum": torch.zeros_like(params, dtype=torch.float64),  # of b_j h_j / clients
            "trust": nothing,  # sum of b_j / clients
            "halvings": nothing.clone(),  # how often all trust has halved so far
        }

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        table = server.memory["last"]
        rows = {"last": client_rows(table, arrivals), "trusted_sum": server.memory["trusted_sum"][None]}
        if table.dtype == server.params.dtype:
            return rows
        return rows | {"kept": arrivals.matrix.to(table.dtype)}  # [K, D] as it will be subtracted again

    def __call__(self, step: Step) -> Step:
        assert step.clients is not None
        pace = (step.lr / self.half_distance).square().clamp(max=MOST)  # [] halvings in this step
        now, computed, trust = (step.memory[name] for name in ("halvings", "last_halvings", "trust"))
        before = computed[step.clients]  # [K]
        since = torch.maximum(now - pace * step.staleness, before)  # nothing grows older by a delivery
        old, new = _trust(now - before), _trust(now - since)  # [K]
        total = step.unit("trusted_sum")[0]  # [B]
        last = step.unit("last")  # [K, B]
        mean = total / where(trust > LEAST, trust, 1.0)
        fade, share = _trust(pace), step.usable.double() / self.clients  # [], [K]
        step = step.overwrite(last=TableRows(step.clients)).keep(
            last_halvings=computed.index_copy(0, step.clients, step.kept(since, NEVER)),
            trust=fade * (trust + share @ (new - old)),
            halvings=now + pace,
        )
        kept = step.unit("kept") if step.has("kept") else step.coefficients
        news = new[:, None] * kept - old[:, None] * last  # [K, B]
        step = step.remember(trusted_sum=fade * (total + share @ news))
        own = old[:, None] * (last - mean)  # [K, B] of each delivery, as the memory has it
        if self.measured:
            step, factor = self._worth(step, own, mean)
            own = factor * own
        return step.having(coefficients=step.coefficients - own)

    def _worth(self, step: Step, own: Tensor, mean: Tensor) -> tuple[Step, Tensor]:
        """The step that keeps the sums, and [] the regression coefficient of the deliveries on what was expected."""
        kept = (1.0 - FORGETS * step.count / self.clients).clamp(min=0.0)
        found = kept * step.memory["found"] + step.dots(own, step.coefficients - mean).sum()
        expected = kept * step.memory["expected"] + step.dots(own, own).sum()
        factor = where(expected > 0, found / where(expected > 0, expected, 1.0), 1.0).clamp(0.0, 1.0)
        return step.keep(found=found, expected=expected), factor


def _trust(halvings: Tensor) -> Tensor:
    """[...] in a gradient since which it has halved so often; one that never came has none."""
    return where(halvings < -NEVER / 2, torch.exp2(-halvings), 0.0)
