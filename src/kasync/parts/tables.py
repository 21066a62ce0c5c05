"""Parts that remember a row for every client.

A part names the K rows of its table that it needs, which join the basis for one step, and the rows to put in their
place. Every table has one row more than there are clients: what is not usable goes there. Running sums over all clients
are in float64, so that what is added and taken away again leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from kasync import checks
from kasync.arrivals import Arrivals
from kasync.constants import where
from kasync.core import Part, ServerState, Step, TableRows

NEVER = -(2**62)  # the version of a gradient that has not come yet
OLDEST = 2.0**53  # a staleness beyond it is no longer told apart


def _index(arrivals: Arrivals) -> Tensor:
    """[K] int64 row of each arrival's client."""
    index = arrivals.client_index
    assert index is not None
    return index


def client_rows(table: Tensor, arrivals: Arrivals) -> Tensor:
    """[K, D] the rows of a table that belong to the clients that delivered."""
    return table[_index(arrivals)]


@dataclass(frozen=True)
class ClientPart(Part):
    """A part with something for each of so many clients; the rule, which is told their number, fills it in."""

    clients: int = field(default=0, kw_only=True)
    needs_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.count("clients", self.clients, least=0)


@dataclass(frozen=True)
class Calibrate(ClientPart):
    """g_i - trust (h_i - h),  h_i the last delivery of client i, h their mean over all clients   (CA2FL, FedStale)"""

    trust: float = 1.0
    means: ClassVar[frozenset[str]] = frozenset({"mean"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between("trust", self.trust, 0.0, 1.0)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        last = params.new_zeros(self.clients + 1, len(params))
        return {"last": last, "mean": torch.zeros_like(params, dtype=torch.float64)}

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        return {"last": client_rows(server.memory["last"], arrivals), "mean": server.memory["mean"][None]}

    def __call__(self, step: Step) -> Step:
        assert step.clients is not None
        mean, last = step.unit("mean")[0], step.unit("last")
        news = step.coefficients - last  # [K, B]
        step = step.overwrite(last=TableRows(step.clients))
        step = step.remember(mean=mean + step.usable.double() @ news / self.clients)
        return step.having(coefficients=step.coefficients - self.trust * (last - mean))


@dataclass(frozen=True)
class BalanceClients(ClientPart):
    """weights_i * n / n_i,  n_i how often client i has delivered, n the mean over the clients heard   (Rescaled ASGD)

    A client that takes T_i for its work delivers in proportion to 1 / T_i: its deliveries weigh in proportion to T_i,
    so that every client contributes the same in total.
    """

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"counts": torch.zeros(self.clients + 1, dtype=torch.float64, device=params.device)}

    def __call__(self, step: Step) -> Step:
        assert step.clients is not None
        counts = step.memory["counts"].index_add(0, step.clients, step.usable.double())
        heard = (counts > 0).sum().clamp(min=1)
        factors = counts.sum() / heard / counts[step.clients].clamp(min=1.0)  # [K]
        return step.keep(counts=counts).weighed(step.weights * factors)


@dataclass(frozen=True)
class AverageEveryone(ClientPart):
    """direction = mean of the latest gradient of every client seen   (ACE)

    With max_staleness, only gradients computed at most so many steps ago take part (ACED); that reads the whole
    table in every step.
    """

    max_staleness: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_staleness is not None:
            checks.count("max_staleness", self.max_staleness, least=0)

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        table = params.new_zeros(self.clients + 1, len(params))
        never = torch.full((self.clients + 1,), NEVER, dtype=torch.int64, device=params.device)
        sums = {} if self.max_staleness is not None else {"sum": torch.zeros_like(params, dtype=torch.float64)}
        return {"latest": table, "version": never} | sums

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        table, index = server.memory["latest"], _index(arrivals)
        if self.max_staleness is None:
            return {"latest": table[index], "sum": server.memory["sum"][None]}
        present = self._recent(server.memory["version"], server.step).to(table.dtype)
        return {"latest": table[index], "sum": (present @ table)[None]}

    def __call__(self, step: Step) -> Step:
        assert step.clients is not None
        versions = step.memory["version"]
        before = self._recent(versions, step.number)[step.clients]  # [K] whose old gradient is in the sum
        fresh = where(step.usable, step.number - step.staleness.clamp(max=OLDEST).long(), NEVER)
        versions = versions.index_copy(0, step.clients, fresh)
        now = self._recent(versions, step.number)
        taken = now[step.clients]  # [K] whose new gradient joins it
        total = step.unit("sum")[0] + taken.double() @ step.coefficients - before.double() @ step.unit("latest")
        step = step.overwrite(latest=TableRows(step.clients)).keep(version=versions)
        if self.max_staleness is None:
            step = step.remember(sum=total)
        mean = total / now.sum().clamp(min=1)
        return step.having(coefficients=mean.expand_as(step.coefficients)).weighed(step.equal_weights)

    def _recent(self, versions: Tensor, number: Tensor) -> Tensor:
        """[clients + 1] whose latest gradient takes part at this step."""
        seen = versions > NEVER
        return seen if self.max_staleness is None else seen & (number - versions <= self.max_staleness)


@dataclass(frozen=True)
class AverageRounds(ClientPart):
    """direction = mean over all clients of the mean of their gradients in this round   (Ringleader ASGD)

    A round first gathers until every client has delivered; then every client's next delivery triggers one update,
    while what clients deliver beyond that is gathered for the round to come. Nothing is discarded. The means of this
    round and of the next lie in one table of 2 * clients rows; `half` says which half is this round's.
    """

    grows: ClassVar[bool] = False  # a round is of those who were there when it began

    def memory(self, params: Tensor) -> dict[str, Tensor]:
        device = params.device
        return {
            "means": params.new_zeros(2 * self.clients + 1, len(params)),
            "mean_now": torch.zeros_like(params),
            "mean_next": torch.zeros_like(params),
            "counts": torch.zeros(2 * self.clients + 1, dtype=torch.int64, device=device),
            # whose update of phase two is due
            "waiting": torch.zeros(self.clients + 1, dtype=torch.bool, device=device),
            "half": torch.zeros((), dtype=torch.int64, device=device),
        }

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        rows = {name: server.memory[name][None] for name in ("mean_now", "mean_next")}
        return {"means": server.memory["means"][self._place(server.memory, _index(arrivals))]} | rows

    def __call__(self, step: Step) -> Step:
        assert step.clients is not None
        waiting, counts, half = (step.memory[name] for name in ("waiting", "counts", "half"))
        updating = waiting.any()  # phase two
        counted = step.usable & (~updating | waiting[step.clients])  # [K] belongs to this round, else to the next
        place = self._place(step.memory, step.clients)
        seen = counts[place].double()  # [K] gradients in the mean so far
        mean = where(seen > 0, 1.0, 0.0)[:, None] * step.unit("means")  # [K, B]
        change = (step.coefficients - mean) / (seen + 1.0)[:, None]
        counts = counts.index_add(0, place, step.usable.long())
        now = step.unit("mean_now")[0] + counted.double() @ change / self.clients
        later = step.unit("mean_next")[0] + (step.usable & ~counted).double() @ change / self.clients

        halves = counts[:-1].view(2, -1)
        delivered = halves.index_select(0, half[None]) > 0  # [1, clients]; halves[half] would read half in Python
        begins = ~updating & delivered.all()  # the last missing client delivered: phase two starts now
        everyone = torch.arange(self.clients + 1, device=counts.device) < self.clients
        had = torch.zeros_like(waiting).index_put((step.clients,), counted)
        left = where(begins, everyone, waiting) & ~had
        over = (begins | updating) & ~left.any()  # every client had its update: the next round becomes this one
        applied = begins | (updating & counted.any())
        emptied = where(torch.arange(2, device=counts.device)[:, None] == half, 0, halves).flatten()
        step = step.remember(mean_now=where(over, later, now), mean_next=where(over, 0.0, later)).keep(
            counts=where(over, torch.cat([emptied, counts[-1:]]), counts),
            waiting=left,
            half=where(over, 1 - half, half),
        )
        step = step.overwrite(means=TableRows(place, mean + change))
        direction = where(applied, now, 0.0)
        return step.having(coefficients=direction.expand_as(step.coefficients)).weighed(step.equal_weights)

    def _place(self, memory: Mapping[str, Tensor], clients: Tensor) -> Tensor:
        """[K] row of the table for each arrival: in this round's half, or in the next's if it had its update."""
        waiting, half = memory["waiting"], memory["half"]
        ahead = waiting.any() & ~waiting[clients]
        row = where(ahead, 1 - half, half) * self.clients + clients
        return where(clients < self.clients, row, 2 * self.clients)
