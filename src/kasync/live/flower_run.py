"""How does one start() of the Flower strategy go, from the first message to the result?"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from kasync import timelines
from kasync.live.deliveries import Failure
from kasync.live.flower_evaluations import Evaluations
from kasync.live.flower_mailbox import Mailbox
from kasync.live.flower_replies import Reader
from kasync.live.journal import Journal
from kasync.live.layout import Layout
from kasync.live.loop import Federation, Order, Update

if TYPE_CHECKING:
    from kasync.live.flower import KAsync

log = logging.getLogger("kasync.live")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FlowerRun:
    """A federation, the messages that are out, and what came of it."""

    def __init__(self, strategy: KAsync, grid: Grid, initial: ArrayRecord, timeout: float) -> None:
        self.strategy, self.grid, self.timeout = strategy, grid, timeout
        arrays = {name: array.numpy() for name, array in initial.items()}
        self.layout = Layout.of(arrays)
        terms = replace(strategy.terms, timeout=timeout)
        self.reader = Reader(
            self.layout, strategy.weighted_by_key, strategy.loss_keys, gradients=terms.brings == "gradients"
        )
        journal = None if strategy.checkpoint is None else Journal(strategy.checkpoint, self._identity())
        rule = strategy.rule.shaped(self.layout.shapes[name] for name in self.layout.trained)
        self.federation = Federation(
            rule, self.layout.vector(arrays), terms, journal, strategy.privacy, now=time.monotonic()
        )
        self.mailbox = Mailbox(grid, strategy.poll)
        self.tickets: dict[str, int] = {}  # message id -> ticket
        self.pending: dict[int, Order] = {}  # node -> order that is being sent
        self.evaluations = Evaluations(strategy, self.mailbox, timeout)
        self.content: tuple[int, ArrayRecord] = (-1, initial)  # the newest version, encoded once
        self.result = Result()
        self.looked = -float("inf")

    def train(
        self, rounds: int, config: ConfigRecord, evaluate_config: ConfigRecord, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Updates until there are so many; then the result."""
        log.info("Starting %s: %d updates of %d deliveries", self.strategy.rule.name, rounds, self.strategy.terms.k)
        self.strategy.summary()
        federation, strategy = self.federation, self.strategy
        self.result.arrays = self.arrays()
        if federation.updates == 0:
            self._evaluate(0, evaluate_fn)
        try:
            with self.mailbox:
                while federation.updates < rounds:
                    self._look_who_is_here()
                    self.send(strategy.configure_train(federation.updates + 1, self.arrays(), config, self.grid))
                    arrays, metrics = strategy.aggregate_train(federation.updates + 1, self._replies(strategy.poll))
                    while arrays is not None:
                        self._updated(arrays, metrics, federation.updates == rounds, evaluate_fn, evaluate_config)
                        if federation.updates >= rounds:
                            break
                        arrays, metrics = strategy.aggregate_train(federation.updates + 1, self._replies(0.0))
                self.evaluations.finish(self.result)
        finally:
            self._write_timeline()
        log.info("Finished: %s", federation.tally)
        return self.result

    def arrays(self) -> ArrayRecord:
        """The newest model, as Flower has it; encoded once for each version."""
        version = self.federation.version
        if self.content[0] != version:
            arrays = self.layout.arrays(self.federation.server.params)
            self.content = (version, ArrayRecord({name: Array(array) for name, array in arrays.items()}))
        return self.content[1]

    def orders(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """A message for every idle node; they share one content."""
        orders = self.federation.dispatch(time.monotonic())
        told = ConfigRecord({**config, "server-round": number})
        content = RecordDict({self.strategy.arrayrecord_key: arrays, self.strategy.configrecord_key: told})
        self.pending = {order.node: order for order in orders}  # type: ignore[misc]
        return [
            Message(
                content,
                dst_node_id=int(order.node),  # type: ignore[call-overload]
                message_type=MessageType.TRAIN,
                group_id=str(order.version),
                ttl=self.timeout,
            )
            for order in orders
        ]

    def send(self, messages: Iterable[Message]) -> None:
        """Push one by one: a grid drops a failed push or names it None, and nothing may be mistaken for another."""
        for message in messages:
            order = self.pending.pop(message.metadata.dst_node_id)
            sent = pushed(self.grid, message)
            if sent is None:
                self.federation.collect(order.ticket, order.node, Failure("it cannot be reached"), time.monotonic())
            else:
                self.tickets[sent] = order.ticket
                self.mailbox.watch(sent)
        for order in self.pending.values():
            self.federation.collect(order.ticket, order.node, Failure("nothing was sent to it"), time.monotonic())
        self.pending = {}

    def collect(self, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take these replies; the new model and its metrics if a step was made."""
        now = time.monotonic()
        for reply in replies:
            about = reply.metadata.reply_to_message_id
            ticket = self.tickets.get(about, about)
            order = self.federation.orders.get(ticket) if isinstance(ticket, int) else None
            # Errors may be written by the SuperLink or by our side of the grid, in the node's name.
            node = order.node if order is not None and reply.has_error() else reply.metadata.src_node_id
            self.federation.collect(ticket, node, self.reader.read(reply), now)
        overdue = {order.ticket for order in self.federation.expire(now)}
        if overdue:
            for message in [name for name, ticket in self.tickets.items() if ticket in overdue]:
                self.mailbox.forget(message)
        update = self.federation.step(now)
        if update is None:
            return None, None
        self._forget_settled()
        return self.arrays(), self._metrics(update)

    def _forget_settled(self) -> None:
        """Message ids are kept a while, so that a second reply is known for what it is."""
        if len(self.tickets) > 2 * len(self.federation.orders) + 1000:
            oldest = list(self.tickets)[: len(self.tickets) // 2]
            for name in oldest:
                if self.tickets[name] not in self.federation.orders:
                    del self.tickets[name]

    def _replies(self, wait: float) -> list[Message]:
        """What came from training; always looked at before anything is given up, however long an evaluation took."""
        return self.evaluations.sort_out(self.mailbox.take(wait))

    def _look_who_is_here(self) -> None:
        now = time.monotonic()
        if now - self.looked < self.strategy.poll:
            return
        self.looked = now
        try:
            nodes = list(self.grid.get_node_ids())
        except Exception as problem:  # the SuperLink may be away for a while
            log.warning("the SuperLink does not say who is there (%s); trying again", type(problem).__name__)
            return
        self.federation.present(nodes, now)

    def _updated(
        self,
        arrays: ArrayRecord,
        metrics: MetricRecord | None,
        last: bool,
        evaluate_fn: EvaluateFn | None,
        evaluate_config: ConfigRecord,
    ) -> None:
        number = self.federation.updates
        self.result.arrays = arrays
        if metrics is not None:
            self.result.train_metrics_clientapp[number] = metrics
            log.info("update %d: %s", number, dict(metrics))
        if last or number % self.strategy.evaluate_every == 0:
            self._evaluate(number, evaluate_fn)
        every = self.strategy.evaluate_clients_every
        if every and (last or number % every == 0):
            nodes = [int(client.node) for client in self.federation.roster if client.present and not client.aside]  # type: ignore[call-overload]
            self.evaluations.ask(number, arrays, evaluate_config, nodes, self.grid, pushed)
        self.evaluations.gather(self.result)

    def _evaluate(self, number: int, evaluate_fn: EvaluateFn | None) -> None:
        if evaluate_fn is not None:
            found = evaluate_fn(number, self.result.arrays)
            if found is not None:
                self.result.evaluate_metrics_serverapp[number] = found
                log.info("evaluation after update %d: %s", number, dict(found))

    def _metrics(self, update: Update) -> MetricRecord:
        """What the clients reported, averaged as Flower does, and what the server saw."""
        records = [
            RecordDict({"metrics": MetricRecord({**used.metrics, self.strategy.weighted_by_key: used.examples})})
            for used in update.used
        ]
        same = {frozenset(next(iter(record.metric_records.values()))) for record in records}
        found = MetricRecord()
        if len(same) == 1:  # as Flower does: metrics that only some report are not averaged
            found = self.strategy.train_metrics_aggr_fn(records, self.strategy.weighted_by_key)
        found["staleness-mean"] = sum(update.staleness) / len(update.staleness)
        found["staleness-max"] = max(update.staleness)
        found["deliveries"] = len(update.used)
        if self.strategy.privacy is not None:
            found["epsilon"] = self.strategy.privacy.epsilon(self.federation.most_deliveries())
        return found

    def _write_timeline(self) -> None:
        if self.strategy.timeline is not None:
            found = self.federation.diary.timeline(len(self.federation.roster), self.strategy.rule.name)
            if found is not None:
                timelines.save(found, self.strategy.timeline)

    def _identity(self) -> dict[str, str]:
        shapes = {name: (list(shape), self.layout.dtypes[name]) for name, shape in self.layout.shapes.items()}
        return {
            "arrays": f"{len(shapes)} arrays {hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]}",
            "rule": re.sub(r" at 0x[0-9a-f]+", "", repr(self.strategy.rule)),
        }


def pushed(grid: Grid, message: Message) -> str | None:
    """The id of the message, or None where it could not be sent."""
    try:
        sent = list(grid.push_messages([message]))
    except Exception as problem:
        log.warning("a message could not be sent (%s: %s)", type(problem).__name__, problem)
        return None
    return sent[0] if sent and sent[0] else None
