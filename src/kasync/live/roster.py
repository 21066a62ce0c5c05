"""Who can be given work, who rests after a failure, and who is set aside?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from kasync.live.terms import Terms


@dataclass(eq=False)
class Client:
    """What the server knows about one client."""

    number: int  # 0, 1, ... in the order of joining
    node: Hashable  # its name in the transport
    present: bool = True
    ticket: int | None = None  # the work it has
    waiting: bool = False  # it delivered, and the step that uses it has not come yet
    failures: int = 0  # in a row
    offences: int = 0  # unusable deliveries
    rests_until: float = 0.0
    aside: bool = False  # for good

    def is_idle(self, now: float) -> bool:
        return self.present and self.ticket is None and not self.waiting and not self.aside and now >= self.rests_until


class Roster:
    """The clients, numbered as they join. The loop owns it and changes it in place."""

    def __init__(self, terms: Terms, room: int | None) -> None:
        self.terms, self.room = terms, room  # room: for so many clients the rule has rows in its tables
        self.clients: list[Client] = []
        self.by_node: dict[Hashable, Client] = {}

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def join(self, node: Hashable) -> Client:
        """The client of this node, with a new number if it was never here."""
        if node not in self.by_node:
            client = Client(len(self.clients), node)
            client.aside = self.room is not None and client.number >= self.room
            self.clients.append(client)
            self.by_node[node] = client
        return self.by_node[node]

    def present(self, nodes: Iterable[Hashable]) -> tuple[list[Client], list[Client]]:
        """Take note of who is there; who came and who went since the last time."""
        here = list(nodes)
        there = set(here)
        came = [self.join(node) for node in here if node not in self.by_node or not self.by_node[node].present]
        went = [client for client in self.clients if client.present and client.node not in there]
        for client in came:
            client.present = True
            client.rests_until = 0.0
        for client in went:
            client.present = False
        return came, went

    def idle(self, now: float) -> list[Client]:
        return [client for client in self.clients if client.is_idle(now)]

    def able(self) -> int:
        """How many clients can be counted on for this step."""
        return sum(
            client.waiting or (client.present and not client.aside and client.failures < self.terms.patience)
            for client in self.clients
        )

    def failed(self, client: Client, now: float) -> float:
        """Let a client rest; for how many seconds."""
        client.failures += 1
        rest = min(self.terms.rest * 2.0 ** min(client.failures - 1, 60), self.terms.longest_rest)
        client.rests_until = now + rest
        return rest

    def offended(self, client: Client, now: float) -> bool:
        """Count an unusable delivery; whether the client is set aside for it."""
        client.offences += 1
        self.failed(client, now)
        client.aside = client.aside or (self.terms.offences is not None and client.offences >= self.terms.offences)
        return client.aside
