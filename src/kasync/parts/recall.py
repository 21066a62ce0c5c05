"""What does a client's last gradient still say when it is old?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import ServerState, Step, TableRows
from kasync.errors import unknown
from kasync.parts.tables import ClientPart, client_rows

PRECISIONS = ("full", "half")
NEVER = -(2.0**1000)  # the round of a gradient that has not come yet


@dataclass(frozen=True)
class Recall(ClientPart):
    """g_i - b_i (h_i - m),  b_i = 2^(-age of h_i / half_life),  m the mean of all h_j, each counted b_j times

    h_i is the last delivery of client i. Its age is the time since it was computed, in rounds of clients / k steps:
    the time in which everybody delivers once, on average. All trust fades by the same factor in a step, so the sum
    behind m is kept up to date with the K rows that change. In half precision the table is in bfloat16.
    """

    half_life: float
    memory_precision: str = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.limit("half_life", self.half_life)
        if self.memory_precision not in PRECISIONS:
            raise unknown("memory_precision", self.memory_precision, PRECISIONS)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        kind = params.dtype if self.memory_precision == "full" else torch.bfloat16
        nothing = torch.zeros((), dtype=torch.float64, device=params.device)
        return {
            "last": params.new_zeros(self.clients + 1, len(params), dtype=kind),
            "last_round": nothing.new_full((self.clients + 1,), NEVER),  # when it was computed
            "trusted_sum": torch.zeros_like(params),  # of b_j h_j / clients
            "trust": nothing,  # sum of b_j / clients
            "round": nothing.clone(),
        }

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        rows = client_rows(server.memory["last"], arrivals).to(server.params.dtype)
        return {"last": rows, "trusted_sum": server.memory["trusted_sum"][None]}

    def __call__(self, step: Step) -> Step:
        assert step.clients is not None
        pace = step.count / self.clients  # [] rounds in this step
        now, rounds, trust = (step.memory[name] for name in ("round", "last_round", "trust"))
        before = rounds[step.clients]  # [K]
        since = torch.maximum(now - pace * step.staleness, before)  # nothing grows older by a delivery
        old, new = self._trust(now - before), self._trust(now - since)  # [K]
        total = step.unit("trusted_sum")[0]  # [B]
        last = step.unit("last")  # [K, B]
        mean = total / where(trust > 0, trust, 1.0)
        fade, share = self._trust(pace), step.usable.double() / self.clients  # [], [K]
        step = step.overwrite(last=TableRows(step.clients)).keep(
            last_round=rounds.index_copy(0, step.clients, step.kept(since, NEVER)),
            trust=fade * (trust + share @ (new - old)),
            round=now + pace,
        )
        news = new[:, None] * step.coefficients - old[:, None] * last  # [K, B]
        step = step.remember(trusted_sum=fade * (total + share @ news))
        return step.having(coefficients=step.coefficients - old[:, None] * (last - mean))

    def _trust(self, age: Tensor) -> Tensor:
        """[...] in a gradient that is so many rounds old; one that never came has none, however long trust lasts."""
        return where(age < -NEVER / 2, torch.exp2(-age / self.half_life), 0.0)
