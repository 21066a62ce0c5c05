"""State machine of a live K-async server, independent of the transport and of the clock.

    while ...:
        federation.present(nodes, now)                    who is there
        for order in federation.dispatch(now): ...        work for the idle: send the parameters of order.version
        federation.collect(ticket, node, brought, now)    a Delivery, Garbage or a Failure
        federation.expire(now)                            give up what takes too long
        while federation.step(now): ...                   k usable deliveries -> rule

Every reply ends in exactly one way, and each way is counted.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kasync import parts
from kasync.arrivals import Arrivals
from kasync.core import Part, Rule, ServerState, Step
from kasync.errors import UserError
from kasync.kernel import Rows
from kasync.live.deliveries import Accepted, Delivery, Failure, Garbage, RowPool, filed, write_row
from kasync.live.journal import Journal, StepLog
from kasync.live.privacy import Privacy, spent
from kasync.live.roster import Client, Roster
from kasync.live.terms import Terms

log = logging.getLogger("kasync.live")
GIVEN_UP = 10_000  # a reply later than so many others that were given up counts as a duplicate
REMINDER = 30.0  # seconds after which what the run waits for is said again
WEIGH_THEMSELVES = (parts.WeighByStaleness, parts.WeighByAgeAndDirection)  # by examples
KEEP_A_MEAN = (parts.AverageEveryone, parts.AverageModels, parts.AverageQueue, parts.AverageRounds)  # of their own
BELIEVE_NOBODY = (  # parts that were made not to believe a client, so not the number it says either
    parts.AcceptByScore,
    parts.AcceptNearServer,
    parts.CenterAndClip,
    parts.FindMedian,
    parts.PickCentral,
    parts.TrustByServer,
)
FIX_DIRECTION = (parts.ApproximateMomentum,)  # after which weights no longer matter
NEEDS_K = (parts.CenterAndClip, parts.FindMedian, parts.PickCentral)  # few deliveries are no majority


@dataclass(frozen=True)
class WeighByExamples(Part):
    """weights_i * m_i, scaled so that their sum stays what it was;  m_i the examples of delivery i   (FedAvg)"""

    linear = True  # no number in a delivery decides the weights

    def __call__(self, step: Step) -> Step:
        weights = step.weights * step.kept(step.batch_sizes, 0.0)
        total = weights.sum()
        return step.weighed(weights * (step.weights.sum() / torch.where(total > 0, total, 1.0)))


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
    used: tuple[Accepted, ...]  # the deliveries, in the order they came
    staleness: tuple[int, ...]
    step: Step
    shares: tuple[float, ...]  # of each delivery in the rule's weights


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
        *,
        buffers: Tensor | None = None,  # [B] float64, what is no parameter
        members: Iterable[Hashable] = (),  # nodes known beforehand, numbered in this order
        sent: Callable[[Tensor], Tensor]
        | None = None,  # [D] what clients get of parameters [D], where it is not the same
    ) -> None:
        if rule.needs_layers and rule.layers is None:
            raise UserError(
                f"{rule.name} moves a model layer by layer: tell it their shapes, "
                f"rule.shaped(parameter.shape for parameter in model.parameters())."
            )
        self.rule, self.terms = composed(rule, terms, privacy), terms
        self.believed = _has(rule, BELIEVE_NOBODY) is None
        if terms.weigh == "examples" and (part := _has(rule, KEEP_A_MEAN + BELIEVE_NOBODY)):
            log.info("%s counts every client the same, whatever its number of examples (%s)", rule.name, part)
        self.min_k = least_deliveries(rule, terms)
        self.journal, self.privacy = journal, privacy
        if journal is not None and journal.every > 1 and privacy is not None and privacy.noise == "sum":
            raise UserError(
                f"checkpoint_every = {journal.every} with noise = 'sum' would noise an update twice after a death: "
                f"take checkpoint_every = 1."
            )
        self.server = self.rule.prepared(ServerState.initial(params))
        self.buffers, self.sent = buffers, sent
        self.pool = RowPool(params, terms.k)
        self.roster = Roster(terms, rule.table_clients)
        known = list(members)
        self._make_room(len(known) - (self.roster.room or 0))
        for node in known:
            self.roster.join(node)
        self.step_log = StepLog()
        self.orders: dict[int, Order] = {}
        self.given_up: deque[int] = deque(maxlen=GIVEN_UP)  # tickets whose reply would come too late, the last ones
        self.versions: dict[int, Tensor] = {}  # [D] each, only those somebody works on
        self.holders: dict[int, set[int]] = {}  # version -> tickets
        self.waiting: list[Accepted] = []  # accepted, not yet used
        self.issued = 0
        self.updates = 0  # calls of the rule
        self.whole = True  # not in the middle of an update
        self.remade = (0, terms.k)  # up to this update they were made before a death, each of so many deliveries
        self.began = now
        self.started = False
        self.short_since: float | None = None  # when a shortage of clients began, while there is one
        self.hopeless_since: float | None = None
        self.reminded: dict[str, float] = {}  # what the run waits for -> when it was said
        self._resume(now)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.roster)

    @property
    def version(self) -> int:
        return int(self.server.step)

    @property
    def tally(self) -> dict[str, int]:
        """How many replies ended in which way, and what else happened."""
        return dict(self.step_log.tally)

    def epsilon(self) -> float:
        """What the client has spent that spent most."""
        assert self.privacy is not None
        return spent(max((client.spent for client in self.roster), default=0.0), self.privacy.delta)

    def params_of(self, version: int) -> Tensor:
        """[D] the parameters of a version that somebody works on, as they were sent."""
        return self.versions[version]

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold of the model and the rule."""
        return self.server.state_dict() | ({} if self.buffers is None else {"buffers": self.buffers})

    def timeline(self) -> Any:
        """Who delivered when, for the simulator to replay."""
        return self.step_log.timeline(max(self.roster.population, 1), self.rule.name)

    def present(self, nodes: Iterable[Hashable], now: float) -> None:
        """Take note of who is there now."""
        came, went = self.roster.present(nodes)
        self._make_room(len(self.roster.homeless()))
        for client in came:
            client.last_seen = now - self.began
            self._count("joined", f"{client.name} ({client.node}) is here", logging.INFO)
            if client.number is None:
                log.warning("client %s gets no work: the rule has room for %s clients", client.node, self.roster.room)
        for client in went:
            client.last_seen = now - self.began
            self._count("left", f"{client.name} ({client.node}) is gone")

    def dispatch(self, now: float) -> list[Order]:
        """Work on the newest version for the idle clients, as many as the terms let work at a time."""
        least = self.terms.k if self.terms.least is None else self.terms.least
        there = sum(client.present for client in self.roster)
        self.started = self.started or there >= least
        if not self.started:
            self._remind(now, "nodes", f"waiting for nodes: {there} of {least}", logging.INFO)
            return []
        idle = self.roster.idle(now)
        if self.terms.concurrency is not None:
            busy = len(self.orders) + (len(self.waiting) if self.terms.restart == "update" else 0)
            idle = self.roster.chosen(idle, self.terms.concurrency - busy, self.issued)
        orders = []
        for client in idle:
            ticket, self.issued = self.issued, self.issued + 1
            assert client.number is not None
            order = Order(ticket, client.number, client.node, self.version, now + self._time_for(client))
            self.orders[ticket] = order
            client.ticket, client.began = ticket, now
            if order.version not in self.versions:
                self.versions[order.version] = (
                    self.server.params if self.sent is None else self.sent(self.server.params)
                )
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
        if not isinstance(brought, Failure):
            client.last_seen = now - self.began
        if isinstance(brought, Delivery):
            return self._judge(order, client, brought, start, now)
        if isinstance(brought, Garbage):
            return self._refuse(client, brought, now)
        client.failed += 1
        rest = self.roster.failed(client, now, brought.reason)
        return self._count("failed", f"{client.name} failed ({brought.reason}) and is asked again in {rest:.0f} s")

    def expire(self, now: float) -> list[Order]:
        """Give up the work that takes too long; its clients rest, and may be asked again."""
        overdue = [order for order in self.orders.values() if now >= self._deadline(order)]
        for order in overdue:
            client = self._settle(order)
            self.given_up.append(order.ticket)
            client.allowance *= 2.0
            client.failed += 1
            after = now - client.began
            rest = self.roster.failed(client, now, f"no answer after {after:.0f} s")
            self._count(
                "expired", f"{client.name} did not answer within {after:.0f} s and is asked again in {rest:.0f} s"
            )
        return overdue

    def needed(self, now: float, able: int | None = None) -> int:
        """Deliveries that make the next step, where so many clients are able to work."""
        if self.updates < self.remade[0]:
            return self.remade[1]
        able = self.roster.able() if able is None else able
        if able >= self.terms.k or self.terms.shortage == "wait":
            return self.terms.k
        if self.short_since is None or now < self.short_since + self.terms.grace:
            return self.terms.k
        return max(able, self.min_k)

    def step(self, now: float) -> Update | None:
        """Use the k oldest deliveries, if there are as many."""
        able = self.roster.able()
        self._watch(now, able)
        k = self.needed(now, able)
        if len(self.waiting) < k:
            return None
        self.whole = False
        used, self.waiting = tuple(self.waiting[:k]), self.waiting[k:]
        staleness = tuple(self.version - each.version for each in used)
        losses = [each.loss for each in used]
        if self.version in self.versions and self.terms.versions != "memory":
            self._file_version()
        self.server, step = self.rule.advance(
            self.server,
            Arrivals(
                Rows(self.pool.table, [each.slot for each in used]),
                staleness,
                None if None in losses else losses,  # type: ignore[arg-type]
                [each.examples if self.believed else 1.0 for each in used],
                [each.client for each in used],
                self._starts(used) if self.rule.needs_starts else None,
            ),
        )
        weights = step.weights.clamp(min=0.0)
        shares = (weights / weights.sum().clamp(min=1e-300)).tolist()
        self._average_buffers(used, shares)
        self.updates += 1
        for each, stale, share in zip(used, staleness, shares, strict=True):
            client = self.roster.seats[each.client]
            client.waiting -= 1
            client.used += 1
            client.newest = self.version
            client.staleness += stale
            client.influence += share
            client.spent += 0.0 if self.privacy is None else self.privacy.cost
            self.pool.release(each.slot)
        time = now - self.began
        self.step_log.note([each.client for each in used], [each.version for each in used], time)
        self.step_log.tally["used"] += k
        if bool(step.skipped):
            self._count("skipped", "a step is skipped: the rule could use none of its deliveries")
        self._drop_stale()
        self.whole = True
        if self.journal is not None:
            self.journal.save(self, now, whatever=k != self.terms.k)  # updates made again are of k deliveries
        return Update(self.updates, time, used, staleness, step.handed_out(), tuple(shares))

    def stuck(self, now: float) -> str | None:
        """Why the run cannot go on, once that has lasted long enough; None while it can."""
        if self.hopeless_since is not None and now >= self.hopeless_since + self.terms.grace and not self.orders:
            reasons = sorted({client.why for client in self.roster if client.aside and client.why})
            why = f"the last reasons: {'; '.join(reasons[:3])}" if reasons else "see the log"
            return f"every client that is there was set aside after {self.terms.offences} unusable deliveries ({why})"
        if self.short_since is not None and now >= self.short_since + self.terms.give_up:
            return f"for {self.terms.give_up:.0f} s fewer than {self.needed(now)} clients were able to work (give_up)"
        return None

    def close(self, now: float) -> None:
        """Put on disk what the journal has not saved yet; an update that an error broke off will be made again."""
        if self.journal is not None and self.whole and self.updates % self.journal.every:
            self.journal.save(self, now, whatever=True)

    def table(self, now: float) -> list[dict[str, Any]]:
        """A row for each client: who it is, when it was seen, how long it works, how stale it is, what became of it."""
        running = now - self.began
        return [
            {
                "client": client.number,
                "node": str(client.node),
                "key": client.key,
                "state": _state(client, now),
                "seen": None if client.last_seen is None else round(running - client.last_seen, 1),
                "seconds": round(client.seconds / client.delivered, 2) if client.delivered else None,
                "staleness": round(client.staleness / client.used, 2) if client.used else None,
                "used": client.used,
                "influence": round(client.influence / self.updates, 4) if self.updates else None,
                "refused": client.refused,
                "failed": client.failed,
                "epsilon": None if self.privacy is None else round(spent(client.spent, self.privacy.delta), 4),
                "why": client.why,
            }
            for client in self.roster
        ]

    def admit(self, client: Client, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Let a delivery wait for a step: one that was just accepted, or one that the journal had."""
        slot = self.pool.take()
        self.pool.table[slot] = tensors["row"].to(self.pool.table.device)
        client.waiting += 1
        start, buffers = (tensors.get(name) for name in ("start", "buffers"))
        self.waiting.append(
            Accepted(node=client.node, slot=slot, pool=self.pool, start=start, buffers=buffers, **about)
        )

    def _judge(self, order: Order, client: Client, brought: Delivery, start: Tensor, now: float) -> str:
        slot = self.pool.take()
        row = self.pool.table[slot]
        wrong = write_row(brought, start, self.buffers, self.terms.brings, self.terms.max_norm, row)
        if wrong is not None:
            self.pool.release(slot)
            return self._refuse(client, wrong, now)
        took = now - client.began
        if brought.key is not None:
            client = self.roster.identify(client, brought.key, order.version)
        self.roster.delivered(client, took)
        unused = self._unused(client, self.version - order.version)
        if unused:
            self.pool.release(slot)
            return self._count("stale", f"a delivery of {client.name} is not used: {unused}", logging.DEBUG)
        assert client.number is not None
        if self.privacy is not None:
            self.privacy.prepare_(row)
        kept = Accepted(
            client=client.number,
            node=client.node,
            version=order.version,
            slot=slot,
            pool=self.pool,
            start=start if self.rule.needs_starts else None,
            loss=brought.loss,
            examples=float(brought.examples),
            metrics=dict(brought.metrics),
            buffers=brought.buffers if self.buffers is not None and self.terms.buffers == "average" else None,
        )
        if self.journal is not None:
            kept = replace(kept, file=self.journal.keep(self.updates, kept, self.terms.k))
        client.waiting += 1
        self.waiting.append(kept)
        return self._count("accepted", f"{client.name} delivered on version {order.version}", logging.DEBUG)

    def _unused(self, client: Client, staleness: int) -> str:
        """Why a sound delivery is not used, if it is not."""
        oldest = self.terms.max_staleness
        if oldest is not None and staleness > oldest:
            return f"older than {oldest}"
        if client.aside:
            return "it was set aside under another node's name"
        if client.waiting:
            return "another of its deliveries waits"
        return "the rule has no room for it" if client.number is None else ""

    def _drop_stale(self) -> None:
        """What waits and is too stale for the new version is not used; it was accepted, and is counted as stale now."""
        oldest, waiting = self.terms.max_staleness, self.waiting
        if oldest is None:
            return
        self.waiting = [each for each in waiting if self.version - each.version <= oldest]
        for each in waiting:
            if self.version - each.version <= oldest:
                continue
            client = self.roster.seats[each.client]
            client.waiting -= 1
            self.pool.release(each.slot)
            self.step_log.tally["accepted"] -= 1
            self._count("stale", f"a delivery of {client.name} is not used: older than {oldest}", logging.DEBUG)

    def _refuse(self, client: Client, brought: Garbage, now: float) -> str:
        aside = self.roster.offended(client, now, brought.reason)
        what = "and it is set aside" if aside else "and dropped"
        return self._count("refused", f"a delivery of {client.name} is refused: {brought.reason}; {what}")

    def _average_buffers(self, used: Sequence[Accepted], shares: Sequence[float]) -> None:
        """Buffers by value: the mean over the deliveries that brought them, weighted as the rule weighted those."""
        brought = [(each.buffers, share) for each, share in zip(used, shares, strict=True) if each.buffers is not None]
        total = sum(share for _, share in brought)
        if self.buffers is None or total <= 0.0:
            return
        self.buffers = sum(
            (buffers.to(self.buffers) * (share / total) for buffers, share in brought), torch.zeros_like(self.buffers)
        )

    def _starts(self, used: Sequence[Accepted]) -> Tensor:
        """[k, D] what each client started from, where the server computes; versions in files lie at the host."""
        return torch.stack([each.start.to(self.server.params.device) for each in used if each.start is not None])

    def _file_version(self) -> None:
        """Put the newest version, which will be an old one, into a file; it stays in memory if that cannot be."""
        try:
            self.versions[self.version] = filed(self.versions[self.version], self.terms.versions)
        except OSError as problem:
            log.warning("version %d stays in memory: %s", self.version, problem)

    def _time_for(self, client: Client) -> float:
        """Seconds this client is given for a piece of work."""
        if self.terms.deadline is not None:
            return min(self.terms.deadline, self.terms.timeout)
        usual = self.roster.usual(client)
        if not usual or math.isinf(self.terms.slack):
            return self.terms.timeout
        return min(max(self.terms.slack * usual, self.terms.grace * client.allowance), self.terms.timeout)

    def _deadline(self, order: Order) -> float:
        """When a piece of work is given up; for a client never heard, by what others have needed meanwhile."""
        client = self.roster.seats[order.client]
        return order.deadline if client.longest else min(order.deadline, client.began + self._time_for(client))

    def _settle(self, order: Order) -> Client:
        """The work is over, whatever came of it; a version nobody works on is freed."""
        del self.orders[order.ticket]
        holders = self.holders[order.version]
        holders.discard(order.ticket)
        if not holders:
            del self.holders[order.version], self.versions[order.version]
        client = self.roster.seats[order.client]
        client.ticket = None
        return client

    def _unasked(self, ticket: object, node: Hashable, order: Order | None) -> str:
        """A reply that belongs to no work, or to somebody else's."""
        if order is not None or not isinstance(ticket, int) or not 0 <= ticket < self.issued:
            return self._count("unknown", f"a reply of {node} answers nothing that it was asked")
        if ticket in self.given_up:
            return self._count("late", f"a reply of {node} came after its time")
        return self._count("duplicate", f"a reply of {node} came twice")

    def _watch(self, now: float, able: int) -> None:
        """Take note of a shortage of clients and of its end; say it at once, and again every while."""
        hopeless = self.started and self.roster.hopeless()
        asked = now - min((self.roster.seats[order.client].began for order in self.orders.values()), default=now)
        if asked >= REMINDER and not any(each.delivered or each.refused or each.failed for each in self.roster):
            limit = self.terms.deadline or self.terms.timeout
            said = f"no answer yet from {len(self.orders)} clients at work; each has {limit:.0f} s"
            self._remind(now, "answers", said, logging.INFO)
        self.hopeless_since = (self.hopeless_since if self.hopeless_since is not None else now) if hopeless else None
        if not self.started or able >= self.terms.k:
            if self.short_since is not None:
                log.info("there are %d able clients again", able)
            self.short_since = None
            self.reminded.pop("clients", None)
            return
        self.short_since = now if self.short_since is None else self.short_since
        k = self.needed(now, able)
        does = f"steps are made of {k}" if k <= able else f"the run waits for {k}"
        if self.terms.shortage == "adapt" and k > able >= self.min_k:
            does += f", for {self.terms.grace:.0f} s"
        said = f"{able} clients are able to work, k is {self.terms.k}: {does}"
        self._remind(now, "clients", said, logging.WARNING, "shortage")

    def _remind(self, now: float, about: str, sentence: str, level: int, outcome: str | None = None) -> None:
        """Say what the run waits for: at once when it changes, else every REMINDER seconds."""
        key = f"{about}: {sentence}"
        last = self.reminded.get(about), self.reminded.get(key)
        if last[1] is not None and last[0] is not None and now < last[0] + REMINDER:
            return
        self.reminded = {name: when for name, when in self.reminded.items() if not name.startswith(about)}
        self.reminded |= {about: now, key: now}
        if outcome is not None:
            self.step_log.tally[outcome] += 1
        log.log(level, sentence)

    def _make_room(self, more: int) -> None:
        """Let the rule remember so many more clients, where it remembers something of each."""
        room = self.roster.room
        if room is None or more <= 0 or self.terms.tables == "fixed" or not self.rule.grows:
            return
        before = self.tensors()
        self.rule, self.server = self.rule.grown(self.server, room + more)
        self.roster.room = room + more
        bytes_more = sum(value.nbytes - before[name].nbytes for name, value in self.tensors().items())
        about = (self.rule.name, room + more, room, bytes_more / 1e6)
        log.info("%s remembers %d clients, not %d: %.1f MB more", *about)
        for client in self.roster.homeless():
            self.roster.seat(client)

    def _count(self, outcome: str, sentence: str, level: int = logging.WARNING) -> str:
        self.step_log.tally[outcome] += 1
        log.log(level, sentence)
        return outcome

    def _resume(self, now: float) -> None:
        """Continue where the journal ends; work that was out when the run died is simply handed out again."""
        if self.journal is not None and self.journal.restore(self, now):
            self.started = True  # `least` is for the first work, which was handed out before
            self._make_room(self.roster.population - (self.roster.room or 0))
            self._drop_stale()
            log.info("resumed at update %d with %d deliveries waiting", self.updates, len(self.waiting))


def composed(rule: Rule, terms: Terms, privacy: Privacy | None) -> Rule:
    """The rule with what the terms and the privacy add to it."""
    if terms.weigh == "examples" and not _has(rule, WEIGH_THEMSELVES + KEEP_A_MEAN + BELIEVE_NOBODY):
        ends = (place for place, part in enumerate(rule.parts) if isinstance(part, FIX_DIRECTION))
        place = next(ends, len(rule.parts))
        rule = replace(rule, parts=(*rule.parts[:place], WeighByExamples(), *rule.parts[place:]))
    return rule if privacy is None else privacy.around(rule)


def _has(rule: Rule, kinds: tuple[type[Part], ...]) -> str | None:
    """The name of the first part of one of these kinds."""
    return next((type(part).__name__ for part in rule.parts if isinstance(part, kinds)), None)


def least_deliveries(rule: Rule, terms: Terms) -> int:
    """The fewest deliveries of a step."""
    needs = next((part for part in rule.parts if isinstance(part, NEEDS_K)), None)
    if needs is None:
        return (terms.k + 1) // 2 if terms.min_k is None else terms.min_k
    if terms.min_k is not None and terms.min_k < terms.k:
        raise UserError(
            f"min_k = {terms.min_k} is less than k = {terms.k}, but {rule.name} looks for a majority among k "
            f"({type(needs).__name__}): leave min_k out."
        )
    return terms.k


def _state(client: Client, now: float) -> str:
    if client.aside:
        return "set aside"
    if not client.present:
        return "gone"
    if client.number is None:
        return "no place"
    if client.waiting:
        return "delivered"
    if client.ticket is not None:
        return "works"
    return "rests" if now < client.rests_until else "idle"
