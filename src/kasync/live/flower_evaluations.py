"""How do the clients evaluate a model while they train? They are asked like for anything else, and nobody waits."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from kasync.live.flower_mailbox import Mailbox

if TYPE_CHECKING:
    from kasync.live.flower import KAsync

log = logging.getLogger("kasync.live")
Push = Callable[[Grid, Message], str | None]


@dataclass
class Asked:
    """One evaluation that was asked for."""

    deadline: float
    open: set[str] = field(default_factory=set)  # message ids
    replies: list[Message] = field(default_factory=list)


class Evaluations:
    """Evaluations under way, by the number of the update they belong to."""

    def __init__(self, strategy: KAsync, mailbox: Mailbox, timeout: float) -> None:
        self.strategy, self.mailbox, self.timeout = strategy, mailbox, timeout
        self.asked: dict[int, Asked] = {}

    def ask(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, nodes: list[int], grid: Grid, push: Push
    ) -> None:
        """Send the model to a share of these nodes."""
        count = max(int(len(nodes) * self.strategy.fraction_evaluate), self.strategy.min_evaluate_nodes)
        if not 0 < count <= len(nodes):
            log.warning("no evaluation after update %d: %d nodes are there, it takes %d", number, len(nodes), count)
            return
        told = ConfigRecord({**config, "server-round": number})
        content = RecordDict({self.strategy.arrayrecord_key: arrays, self.strategy.configrecord_key: told})
        asked = Asked(time.monotonic() + self.timeout)
        for node in random.sample(nodes, count):
            sent = push(grid, Message(content, dst_node_id=node, message_type=MessageType.EVALUATE, ttl=self.timeout))
            if sent is not None:
                asked.open.add(sent)
                self.mailbox.watch(sent)
        self.asked[number] = asked

    def sort_out(self, replies: list[Message]) -> list[Message]:
        """Keep the replies to evaluations; return the others."""
        others = []
        for reply in replies:
            about = reply.metadata.reply_to_message_id
            mine = next((asked for asked in self.asked.values() if about in asked.open), None)
            if mine is None:
                others.append(reply)
            else:
                mine.open.discard(about)
                mine.replies.append(reply)
        return others

    def gather(self, result: Result) -> None:
        """Enter what is complete, or overdue, into the result."""
        now = time.monotonic()
        for number in [n for n, asked in self.asked.items() if not asked.open or now >= asked.deadline]:
            asked = self.asked.pop(number)
            for message in asked.open:
                self.mailbox.forget(message)
            try:
                found = self.strategy.aggregate_evaluate(number, asked.replies)
            except Exception as problem:  # replies that do not fit together must not end the training
                log.warning("the evaluation after update %d is dropped: %s", number, problem)
                continue
            if found is not None:
                result.evaluate_metrics_clientapp[number] = found
                log.info("evaluation by clients after update %d: %s", number, dict(found))

    def finish(self, result: Result) -> None:
        """Wait for the evaluations that are still under way."""
        while self.asked:
            self.sort_out(self.mailbox.take(self.strategy.poll))
            self.gather(result)
