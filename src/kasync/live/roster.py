"""The clients of a live federation: who they are, what they did, who can be given work and who rests."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kasync.live.terms import Terms


@dataclass(eq=False)
class Client:
    """What the server knows about one client."""

    node: Hashable  # its name in the transport
    number: int | None = None  # of its row in the rule's tables; None where the rule has no room for it
    key: str | None = None  # who it is, whatever its node is called
    present: bool = True
    ticket: int | None = None  # the work it has
    waiting: int = 0  # deliveries that wait for a step
    failures: int = 0  # in a row
    offences: int = 0  # unusable deliveries
    rests_until: float = 0.0
    aside: bool = False  # for good
    began: float = 0.0  # when it got the work it has
    allowance: float = 1.0  # factor on the time it is given; doubled when it was given up
    last_seen: float | None = None  # seconds of running
    delivered: int = 0
    used: int = 0
    newest: int = 0  # version that its last used delivery helped to make
    refused: int = 0
    failed: int = 0
    seconds: float = 0.0  # of work, of all that it delivered
    longest: float = 0.0  # piece of work, in seconds
    staleness: float = 0.0  # summed over what was used
    influence: float = 0.0  # share of the rule's weights, summed over the updates
    spent: float = 0.0  # sum of 1 / noise_multiplier^2 over what was used
    why: str = ""  # the last refusal or failure

    def is_idle(self, now: float) -> bool:
        free = self.number is not None and self.ticket is None and not self.waiting
        return free and self.present and not self.aside and now >= self.rests_until

    @property
    def name(self) -> str:
        return f"client {'without a place' if self.number is None else self.number}"


KEPT = tuple(  # what outlives the server
    field.name
    for field in fields(Client)
    if field.name not in ("node", "present", "ticket", "waiting", "failures", "rests_until", "began")
)


SUMMED = ("offences", "refused", "failed", "delivered", "used", "spent", "seconds", "staleness", "influence")


class Roster:
    """The clients in the order of joining. The loop owns it and changes it in place.

    A rule with tables has room for so many; a client that finds no place takes that of one that left, the longest
    gone first, or waits until one leaves or the loop makes more room.
    """

    def __init__(self, terms: Terms, room: int | None) -> None:
        self.terms, self.room = terms, room
        self.clients: list[Client] = []
        self.by_node: dict[Hashable, Client] = {}
        self.by_key: dict[str, Client] = {}
        self.seats: dict[int, Client] = {}  # number -> client
        self.turns = 0  # of selection "in_turn"
        self.longest = 0.0  # piece of work of anybody, in seconds

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def population(self) -> int:
        """Numbers that were ever given: clients of the run's timeline."""
        return max(self.seats, default=-1) + 1

    def join(self, node: Hashable, number: int | None = None) -> Client:
        """The client of this node, a new one if it was never here; with this number, if one is given."""
        if node not in self.by_node:
            client = Client(node, present=False)
            self.clients.append(client)
            self.by_node[node] = client
            if number is None:
                self.seat(client)
        client = self.by_node[node]
        if number is not None and client.number != number:
            self.move(client, number)
        return client

    def homeless(self) -> list[Client]:
        """Those who are there and have no place."""
        return [client for client in self.clients if client.present and client.number is None and not client.aside]

    def seat(self, client: Client) -> None:
        """Give it a number if there is one."""
        number = next(n for n in range(len(self.seats) + 1) if n not in self.seats)
        if self.room is not None and number >= self.room:
            gone = [c for c in self.seats.values() if not (c.present or c.waiting) and c.ticket is None]
            leaver = min(gone, key=lambda c: -1.0 if c.last_seen is None else c.last_seen, default=None)
            if leaver is None or leaver.number is None:
                return
            number, leaver.number = leaver.number, None
        client.number = number
        self.seats[number] = client

    def move(self, client: Client, number: int) -> None:
        """Give it this number; whoever had it gets the client's."""
        other = self.seats.get(number)
        if client.number is not None:
            del self.seats[client.number]
        if other is not None and other is not client:
            other.number = client.number
            if client.number is not None:
                self.seats[client.number] = other
        client.number = number
        self.seats[number] = client

    def identify(self, client: Client, key: str, version: int) -> Client:
        """The client that this key belongs to; what was new under another node's name is the old one again.

        Not with work on a version before the old one's last delivery was used: nobody delivers on a model that is
        older than its last delivery. It is the old one with its next.
        """
        if client.key not in (None, key):
            return client  # whoever it calls itself now
        known = self.by_key.setdefault(key, client)
        if known is client:
            client.key = key
            return client
        if known.present and known.node != client.node:
            return client  # two nodes with one key at a time are two clients
        if known.newest > version:
            return client
        self.by_node.pop(known.node, None)
        known.node, known.present, known.failures = client.node, True, 0
        for name in SUMMED:
            setattr(known, name, getattr(known, name) + getattr(client, name))
        self._set_aside_if_due(known)
        self.by_node[known.node] = known
        self.clients.remove(client)
        if client.number is not None:
            del self.seats[client.number]
            if known.number is None:
                self.move(known, client.number)
        elif known.number is None:
            self.seat(known)
        return known

    def restore(self, tables: Sequence[dict[str, Any]]) -> None:
        """The clients as they were saved; they are absent until they are seen."""
        unsaved = [client for client in self.clients if all(client.node != table["node"] for table in tables)]
        self.clients, self.by_node, self.by_key, self.seats = [], {}, {}, {}
        for table in tables:
            client = Client(table["node"], present=False, **{name: table[name] for name in KEPT if name in table})
            self.clients.append(client)
            self.by_node[client.node] = client
            if client.number is not None:
                self.seats[client.number] = client
            if client.key is not None:
                self.by_key[client.key] = client
        for client in unsaved:
            self.join(client.node)
        self.longest = max((client.longest for client in self.clients), default=0.0)

    def present(self, nodes: Iterable[Hashable]) -> tuple[list[Client], list[Client]]:
        """Take note of who is there; who came and who went since the last time."""
        here = list(nodes)
        there = set(here)
        went = [client for client in self.clients if client.present and client.node not in there]
        for client in went:
            client.present = False
        came = [self.by_node[node] for node in here if node in self.by_node and not self.by_node[node].present]
        for client in came:  # first of all, so that nobody new takes the place of one who is back
            client.present, client.rests_until = True, 0.0
        for node in here:
            if node not in self.by_node:
                came.append(self.join(node))
                came[-1].present = True
        for client in self.clients if self.room is not None else ():
            if client.present and client.number is None:
                self.seat(client)
        return came, went

    def idle(self, now: float) -> list[Client]:
        return [client for client in self.clients if client.is_idle(now)]

    def chosen(self, idle: Sequence[Client], count: int, draw: int) -> list[Client]:
        """So many of the idle, by the terms' selection; `draw` seeds the chance."""
        select = self.terms.select
        if count >= len(idle):
            return list(idle)
        if callable(select):
            order = list(select(idle))
        elif select == "least_heard":
            order = sorted(idle, key=lambda client: client.delivered)
        elif select == "in_turn":
            order = sorted(idle, key=lambda client: ((client.number or 0) - self.turns) % max(len(self.seats), 1))
        else:
            order = random.Random(draw).sample(list(idle), len(idle))
        taken = order[: max(count, 0)]
        if taken and select == "in_turn":
            self.turns = (taken[-1].number or 0) + 1
        return taken

    def able(self) -> int:
        """How many clients can be counted on for this step."""
        return sum(
            client.waiting > 0
            or (
                client.present
                and not client.aside
                and client.number is not None
                and client.failures < self.terms.patience
            )
            for client in self.clients
        )

    def hopeless(self) -> bool:
        """Whether somebody is there and all who are were set aside for good."""
        there = [client for client in self.clients if client.present]
        return bool(there) and all(client.aside for client in there)

    def usual(self, client: Client) -> float:
        """Seconds that a piece of work of this client may take: its longest so far, else anybody's; 0 if unknown."""
        return (client.longest or self.longest) * client.allowance

    def delivered(self, client: Client, took: float) -> None:
        """Take note of a piece of work that was done, in so many seconds."""
        client.failures, client.allowance = 0, 1.0
        client.delivered, client.seconds = client.delivered + 1, client.seconds + took
        client.longest = max(client.longest, took)
        self.longest = max(self.longest, took)

    def failed(self, client: Client, now: float, why: str) -> float:
        """Let a client rest; for how many seconds."""
        client.failures += 1
        client.why = why
        rest = min(self.terms.rest * 2.0 ** min(client.failures - 1, 60), self.terms.longest_rest)
        client.rests_until = now + rest
        return rest

    def offended(self, client: Client, now: float, why: str) -> bool:
        """Count an unusable delivery; whether the client is set aside for it."""
        client.offences += 1
        client.refused += 1
        self.failed(client, now, why)
        self._set_aside_if_due(client)
        return client.aside

    def _set_aside_if_due(self, client: Client) -> None:
        """Give no more work to a client with so many offences, under whatever names it made them."""
        limit = self.terms.offences
        client.aside = client.aside or (limit is not None and client.offences >= limit)
