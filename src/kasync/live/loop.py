"""What does a server do all day? Hands out work, collects what comes back, and steps when k deliveries are there.

    while ...:
        federation.present(nodes, now)                    who is there
        for order in federation.dispatch(now): ...        work for the idle: send the parameters of order.version
        federation.collect(ticket, node, brought, now)    a Delivery, Garbage or a Failure
        federation.expire(now)                            give up what takes too long
        while federation.step(now): ...                   k usable deliveries -> rule

It knows no transport and no clock. Every reply ends in exactly one way, and each way is counted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kasync.arrivals import Arrivals
from kasync.core import Rule, ServerState, Step
from kasync.errors import UserError
from kasync.live.deliveries import Delivery, Failure, Garbage, row_of
from kasync.live.diary import Diary
from kasync.live.journal import Journal
from kasync.live.privacy import Privacy
from kasync.live.roster import Client, Roster
from kasync.live.terms import Terms
from kasync.live.waiting import Waiting

log = logging.getLogger("kasync.live")
GIVEN_UP = 10_000  # a reply later than so many others that were given up counts as a duplicate


@dataclass(frozen=True)
class Order:
    """A piece of work: this client trains on this version."""

    ticket: int
    client: int
    node: Hashable
    version: int
    deadline: float


@dataclass(frozen=True)
class Update:
    """One step that was made."""

    number: int  # updates made so far, this one included
    time: float  # seconds of running
    used: tuple[Waiting, ...]  # the deliveries, in the order they came
    staleness: tuple[int, ...]
    step: Step


class Federation:
    """The server's side of a live run. It owns its state and changes it in place; time is an argument."""

    def __init__(
        self,
        rule: Rule,
        params: Tensor,  # [D]
        terms: Terms,
        journal: Journal | None = None,
        privacy: Privacy | None = None,
        now: float = 0.0,
    ) -> None:
        if rule.needs_layers and rule.layers is None:
            raise UserError(
                f"{rule.name} moves a model layer by layer: tell it their shapes, "
                f"rule.shaped(parameter.shape for parameter in model.parameters())."
            )
        self.rule, self.terms, self.journal, self.privacy = rule, terms, journal, privacy
        self.server = rule.prepared(ServerState.initial(params))
        self.roster = Roster(terms, next((part.clients for part in rule.parts if part.needs_clients), None))  # type: ignore[attr-defined]
        self.diary = Diary()
        self.orders: dict[int, Order] = {}
        self.given_up: deque[int] = deque(maxlen=GIVEN_UP)  # tickets whose reply would come too late, the last ones
        self.versions: dict[int, Tensor] = {}  # [D] each, only those somebody works on
        self.holders: dict[int, set[int]] = {}  # version -> tickets
        self.waiting: list[Waiting] = []  # accepted, not yet used
        self.issued = 0
        self.updates = 0  # calls of the rule
        self.began = now
        self.started = False
        self.warned: float | None = None  # of a shortage of clients, while there is one
        self._resume(now)

    @property
    def version(self) -> int:
        return int(self.server.step)

    @property
    def tally(self) -> dict[str, int]:
        """How many replies ended in which way, and what else happened."""
        return dict(self.diary.tally)

    def most_deliveries(self) -> int:
        """How often the work of the busiest client was used."""
        return max(self.diary.uses.values(), default=0)

    def params_of(self, version: int) -> Tensor:
        """[D] the parameters of a version that somebody works on."""
        return self.versions[version]

    def present(self, nodes: Iterable[Hashable], now: float) -> None:
        """Take note of who is there now."""
        came, went = self.roster.present(nodes)
        for client in came:
            self._count("joined", f"client {client.number} ({client.node}) is here", logging.INFO)
            if client.aside and client.offences == 0:
                log.warning("client %s gets no work: the rule has room for %s clients", client.node, self.roster.room)
        for client in went:
            self._count("left", f"client {client.number} ({client.node}) is gone")

    def dispatch(self, now: float) -> list[Order]:
        """Work on the newest version for every idle client."""
        idle = self.roster.idle(now)
        least = self.terms.k if self.terms.least is None else self.terms.least
        self.started = self.started or sum(client.present for client in self.roster) >= least
        if not self.started:
            return []
        orders = []
        for client in idle:
            ticket, self.issued = self.issued, self.issued + 1
            order = Order(ticket, client.number, client.node, self.version, now + self.terms.timeout)
            self.orders[ticket] = order
            client.ticket = ticket
            self.versions.setdefault(order.version, self.server.params)
            self.holders.setdefault(order.version, set()).add(ticket)
            orders.append(order)
        return orders

    def collect(self, ticket: object, node: Hashable, brought: Delivery | Garbage | Failure, now: float) -> str:
        """Deal with a reply; how it ended: accepted, stale, refused, failed, late, duplicate or unknown."""
        order = self.orders.get(ticket) if isinstance(ticket, int) else None
        if order is None or order.node != node:
            return self._unasked(ticket, node, order)
        start = self.versions[order.version]
        client = self._settle(order)
        if isinstance(brought, Delivery):
            row = row_of(brought, start, self.terms.brings, self.terms.max_norm)
            if isinstance(row, Tensor):
                kept = row if self.privacy is None else self.privacy.noised(row)
                return self._accept(order, client, brought, kept, start)
            brought = row
        if isinstance(brought, Garbage):
            aside = self.roster.offended(client, now)
            what = "and it is set aside" if aside else "and dropped"
            return self._count("refused", f"a delivery of client {client.number} is refused: {brought.reason}; {what}")
        rest = self.roster.failed(client, now)
        return self._count(
            "failed", f"client {client.number} failed ({brought.reason}) and is asked again in {rest:.0f} s"
        )

    def expire(self, now: float) -> list[Order]:
        """Give up the work that takes too long; its clients rest, and may be asked again."""
        overdue = [order for order in self.orders.values() if now >= order.deadline]
        for order in overdue:
            client = self._settle(order)
            self.given_up.append(order.ticket)
            rest = self.roster.failed(client, now)
            self._count("expired", f"client {client.number} did not answer in time and is asked again in {rest:.0f} s")
        return overdue

    @property
    def k(self) -> int:
        """Deliveries that make the next step."""
        able = self.roster.able()
        if able >= self.terms.k or self.terms.shortage == "wait":
            return self.terms.k
        return max(able, 1)

    def step(self, now: float) -> Update | None:
        """Use the k oldest deliveries, if there are as many."""
        k = self.k
        self._warn_of_shortage(k, now)
        if len(self.waiting) < k:
            return None
        used, self.waiting = tuple(self.waiting[:k]), self.waiting[k:]
        staleness = tuple(self.version - each.version for each in used)
        losses = [each.loss for each in used]
        self.server, step = self.rule.advance(
            self.server,
            Arrivals(
                torch.stack([each.row for each in used]),
                staleness,
                None if None in losses else losses,  # type: ignore[arg-type]
                [each.examples for each in used],
                [each.client for each in used],
                torch.stack([each.start for each in used]) if self.rule.needs_starts else None,  # type: ignore[misc]
            ),
        )
        for each in used:
            self.roster.clients[each.client].waiting = False
        self.updates += 1
        time = now - self.began
        self.diary.note([each.client for each in used], [each.version for each in used], time)
        self.diary.tally["used"] += k
        if bool(step.skipped):
            self._count("skipped", "a step is skipped: the rule could use none of its deliveries")
        if self.journal is not None:
            self.journal.save(self, now)
        return Update(self.updates, time, used, staleness, step)

    def _accept(self, order: Order, client: Client, brought: Delivery, row: Tensor, start: Tensor) -> str:
        client.failures = 0
        oldest = self.terms.max_staleness
        if oldest is not None and self.version - order.version > oldest:
            return self._count(
                "stale", f"a delivery of client {client.number} is not used: older than {oldest}", logging.DEBUG
            )
        kept = Waiting(
            client=client.number,
            node=client.node,
            version=order.version,
            row=row,
            start=start if self.rule.needs_starts else None,
            loss=brought.loss,
            examples=float(brought.examples),
            metrics=dict(brought.metrics),
        )
        if self.journal is not None:
            self.journal.keep(self.updates, len(self.waiting), kept)
        client.waiting = True
        self.waiting.append(kept)
        return self._count("accepted", f"client {client.number} delivered on version {order.version}", logging.DEBUG)

    def _settle(self, order: Order) -> Client:
        """The work is over, whatever came of it; a version nobody works on is freed."""
        del self.orders[order.ticket]
        holders = self.holders[order.version]
        holders.discard(order.ticket)
        if not holders:
            del self.holders[order.version], self.versions[order.version]
        client = self.roster.clients[order.client]
        client.ticket = None
        return client

    def _unasked(self, ticket: object, node: Hashable, order: Order | None) -> str:
        """A reply that belongs to no work, or to somebody else's."""
        if order is not None or not isinstance(ticket, int) or not 0 <= ticket < self.issued:
            return self._count("unknown", f"a reply of {node} answers nothing that it was asked")
        if ticket in self.given_up:
            return self._count("late", f"a reply of {node} came after its time")
        return self._count("duplicate", f"a reply of {node} came twice")

    def _warn_of_shortage(self, k: int, now: float) -> None:
        """Say it at once, and again every minute."""
        able = self.roster.able()
        if not self.started or able >= self.terms.k:
            if self.warned is not None:
                log.info("there are %d able clients again", able)
            self.warned = None
        elif self.warned is None or now >= self.warned + 60.0:
            self.warned = now
            does = "the run waits" if self.terms.shortage == "wait" or able == 0 else f"steps are made of {k}"
            self._count("shortage", f"{able} clients are able to work, k is {self.terms.k}: {does}")

    def _count(self, outcome: str, sentence: str, level: int = logging.WARNING) -> str:
        self.diary.tally[outcome] += 1
        log.log(level, sentence)
        return outcome

    def _resume(self, now: float) -> None:
        """Continue where the journal ends; work that was out when the run died is simply handed out again."""
        if self.journal is not None and self.journal.restore(self, now):
            log.info("resumed at update %d with %d deliveries waiting", self.updates, len(self.waiting))
