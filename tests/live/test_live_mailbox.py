"""A reply that is stuck holds up no other, and none is taken twice."""

import threading
import time

from fake_grid import FakeGrid
from flwr.app import Message, RecordDict

from kasync.live.flower_messages import Mailbox


class StickyGrid(FakeGrid):
    """A pull that asks for a stuck message blocks until it is let go, as when a sender was killed in mid-upload."""

    def __init__(self) -> None:
        super().__init__([], lambda message: [Message(RecordDict(), reply_to=message)])
        self.stuck: set[str] = set()
        self.let_go = threading.Event()
        self.broken = 0

    def pull_messages(self, message_ids):
        asked = list(message_ids)
        if self.broken:
            self.broken -= 1
            raise ConnectionError("the SuperLink is away")
        if self.stuck & set(asked):
            self.let_go.wait(20)
        return super().pull_messages(asked)

    def send(self, count: int) -> list[str]:
        return [
            name
            for _ in range(count)
            for name in self.push_messages([Message(RecordDict(), dst_node_id=1, message_type="train")])
        ]


def taken(mailbox: Mailbox, count: int) -> list[str]:
    found, deadline = [], time.monotonic() + 15
    while len(found) < count and time.monotonic() < deadline:
        found += [message.metadata.reply_to_message_id for message in mailbox.take(0.05)]
    return sorted(found)


def test_a_stuck_reply_holds_up_nobody_and_comes_when_it_is_free():
    grid = StickyGrid()
    names = grid.send(5)
    grid.stuck = {names[2]}
    with Mailbox(grid, poll=0.01, patience=0.1) as mailbox:
        for name in names:
            mailbox.watch(name)
        assert taken(mailbox, 4) == sorted(set(names) - grid.stuck)
        later = grid.send(3)
        for name in later:
            mailbox.watch(name)
        assert taken(mailbox, 3) == sorted(later)
        grid.let_go.set()
        assert taken(mailbox, 1) == [names[2]]
        assert mailbox.take(0.1) == []


def test_a_superlink_that_is_away_for_a_while_is_waited_for():
    grid = StickyGrid()
    names = grid.send(2)
    grid.broken = 3
    with Mailbox(grid, poll=0.01) as mailbox:
        for name in names:
            mailbox.watch(name)
        assert taken(mailbox, 2) == sorted(names)


def test_what_is_forgotten_is_no_longer_asked_for():
    grid = StickyGrid()
    (name,) = grid.send(1)
    with Mailbox(grid, poll=0.05) as mailbox:
        mailbox.watch(name)
        mailbox.forget(name)
        assert mailbox.take(0.2) == []
