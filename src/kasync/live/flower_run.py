"""One start() of the Flower strategy, from the first message to the result."""

from __future__ import annotations

import io
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from kasync import timelines
from kasync.errors import UserError
from kasync.live.deliveries import Accepted, Failure
from kasync.live.flower_messages import Layout, Mailbox, Reader, decoded, encoded
from kasync.live.journal import Journal, identity
from kasync.live.loop import Federation, Order, Update
from kasync.live.watch import as_text

if TYPE_CHECKING:
    from kasync.live.flower import KAsync

log = logging.getLogger("kasync.live")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
HISTORY = "history"  # of metrics, beside the checkpoint


class FlowerRun:
    """A federation, the messages that are out, and what came of it."""

    def __init__(self, strategy: KAsync, grid: Grid, initial: ArrayRecord, timeout: float) -> None:
        self.strategy, self.grid, self.timeout = strategy, grid, timeout
        arrays = {name: decoded(array) for name, array in initial.items()}
        self.layout = Layout.of(arrays, strategy.buffer_names)
        terms = replace(strategy.terms, timeout=timeout)
        self.reader = Reader(
            self.layout, strategy.examples_key, strategy.loss_keys, gradients=terms.brings == "gradients"
        )
        rule = strategy.rule.shaped(self.layout.shapes[name] for name in self.layout.trained)
        self.federation = Federation(
            rule,
            self.layout.vector(arrays).to(strategy.device),
            terms,
            self._journal(),
            strategy.privacy,
            now=time.monotonic(),
            buffers=self.layout.buffer_vector(arrays),
            sent=self.layout.sent if self.layout.rounded else None,
        )
        self.mailbox = Mailbox(grid, strategy.poll)
        self.tickets: dict[str, int] = {}  # message id -> ticket
        self.pending: dict[int, Order] = {}  # node -> order that is being sent
        self.evaluations = Evaluations(strategy, self.mailbox, timeout)
        self.encoded: tuple[int, ArrayRecord] = (-1, initial)  # the newest version, encoded once
        self.configured = -1  # the update that configure_train was last called for
        self.content = RecordDict()  # what clients are sent now
        self.made: Update | None = None  # the update that is being aggregated
        self.final = False  # whether the newest update is the last one
        self.result = Result()
        self.history = History(self.federation.journal, self.result, self.federation.updates)
        self.looked = self.shown = -math.inf
        self.ended = ""  # why, where it ended before its last update

    def train(
        self, rounds: int, config: ConfigRecord, evaluate_config: ConfigRecord, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Updates until there are so many; then the result."""
        began = time.monotonic()
        log.info("Starting %s: %d updates of %d deliveries", self.strategy.rule.name, rounds, self.strategy.terms.k)
        self.strategy.summary()
        self._say_buffers()
        federation, strategy = self.federation, self.strategy
        self.result.arrays = self.arrays()
        missing = federation.updates not in self.result.evaluate_metrics_serverapp  # the server died while it evaluated
        if missing and (federation.updates >= rounds or federation.updates % strategy.evaluate_every == 0):
            self._evaluate(federation.updates, evaluate_fn)
        try:
            with self.mailbox:
                while federation.updates < rounds and not self.ended:
                    self._look_who_is_here()
                    self.send(self._messages(config))
                    self.take(self._replies(strategy.poll))
                    while federation.updates < rounds and self._step():
                        self._updated(federation.updates == rounds, evaluate_fn, evaluate_config)
                        self.take(self._replies(0.0))
                        if federation.updates < rounds:
                            self.send(self._messages(config))
                    self._end_if_stuck()
                    self._show_table(strategy.table_every)
                self.evaluations.finish(self.history, strategy.evaluation_timeout)
        finally:
            self._finish()
        log.info("Finished %d updates in %.1f s: %s", federation.updates, time.monotonic() - began, federation.tally)
        for line in io.StringIO(f"Final results:\n\n{self.result}"):
            log.info("\t%s", line.rstrip("\n"))
        return self.result

    def arrays(self) -> ArrayRecord:
        """The newest model, as Flower has it; encoded once for each version."""
        version = self.federation.version
        if self.encoded[0] != version:
            arrays = self.layout.arrays(self.federation.server.params, self.federation.buffers)
            self.encoded = (version, ArrayRecord({name: encoded(array) for name, array in arrays.items()}))
        return self.encoded[1]

    def configure(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """What clients are sent from now on, and a message with it for every client that is to work."""
        told = ConfigRecord({**config, "server-round": number})
        self.content = RecordDict({self.strategy.arrayrecord_key: arrays, self.strategy.configrecord_key: told})
        return self.orders(number)

    def orders(self, number: int) -> list[Message]:
        """A message for every client that is to work; they share one content. None while another update is due."""
        now = time.monotonic()
        due = len(self.federation.waiting) >= self.federation.needed(now)
        orders = [] if due else self.federation.dispatch(now)
        self.pending = {int(order.node): order for order in orders}  # type: ignore[call-overload]
        return [
            Message(
                self.strategy.configure_dispatch(number, self.content, node),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                group_id=str(order.version),
                ttl=self.timeout,
            )
            for node, order in self.pending.items()
        ]

    def send(self, messages: Iterable[Message]) -> None:
        """Push one by one: a grid drops a failed push or names it None, and nothing may be mistaken for another."""
        for message in messages:
            node = message.metadata.dst_node_id
            order = self.pending.pop(node, None)
            if order is None:
                raise UserError(
                    f"configure_train gave a message for node {node}, which KAsync has no work for: change the "
                    f"messages that super().configure_train(...) returns, and choose nodes with select=."
                )
            sent = pushed(self.grid, message)
            if sent is None:
                self.federation.collect(order.ticket, order.node, Failure("it cannot be reached"), time.monotonic())
            else:
                self.tickets[sent] = order.ticket
                self.mailbox.watch(sent)
        for order in self.pending.values():
            self.federation.collect(order.ticket, order.node, Failure("nothing was sent to it"), time.monotonic())
        self.pending = {}

    def take(self, replies: Iterable[Message]) -> None:
        """Check and keep these replies, and give up what is overdue."""
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

    def aggregated(self) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model and its metrics."""
        return (None, None) if self.made is None else (self.arrays(), self._metrics(self.made))

    def _messages(self, config: ConfigRecord) -> Iterable[Message]:
        """Work for the idle; the strategy configures each update once."""
        number = self.federation.updates
        if self.configured == number:
            return self.orders(number + 1)
        self.configured = number
        return self.strategy.configure_train(number + 1, self.arrays(), config, self.grid)

    def _step(self) -> bool:
        """Make an update if k deliveries are there; whether one was made."""
        update = self.federation.step(time.monotonic())
        if update is None:
            return False
        self._forget_settled()
        self.made = update
        arrays, metrics = self.strategy.aggregate_train(update.number, [self._reply(used) for used in update.used])
        self.made = None
        if arrays is not None and arrays is not self.arrays():
            raise UserError(
                "aggregate_train returned other arrays than KAsync made: return those of super().aggregate_train(...), "
                "and write what is to be done to the model as a rule or an optimizer."
            )
        self.result.arrays = self.arrays()
        if metrics is not None:
            self.history.note("train_metrics_clientapp", update.number, metrics)
            log.info("update %d: %s", update.number, dict(metrics))
        self.strategy.watch.update(self.federation, update, metrics)
        return True

    def _reply(self, used: Accepted) -> Message:
        """A delivery as the message it came in, without its arrays, which are rows by now."""
        asked = Message(RecordDict(), dst_node_id=int(used.node), message_type=MessageType.TRAIN)  # type: ignore[call-overload]
        metrics = {**used.metrics, self.strategy.examples_key or "num-examples": used.examples}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=asked)

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

    def _updated(self, last: bool, evaluate_fn: EvaluateFn | None, evaluate_config: ConfigRecord) -> None:
        number, strategy, self.final = self.federation.updates, self.strategy, last
        self.history.flush(number)  # an evaluation may take long, and the server die in it
        if last or number % strategy.evaluate_every == 0:
            self._evaluate(number, evaluate_fn)
        every = strategy.evaluate_clients_every
        if every and (last or number % every == 0):
            config = ConfigRecord(dict(evaluate_config))
            self.evaluations.ask(
                number, strategy.configure_evaluate(number, self.arrays(), config, self.grid), self.grid
            )
        self.evaluations.gather(self.history)
        self.history.flush(number)

    def _evaluate(self, number: int, evaluate_fn: EvaluateFn | None) -> None:
        if evaluate_fn is not None:
            found = evaluate_fn(number, self.result.arrays)
            if found is not None:
                self.history.note("evaluate_metrics_serverapp", number, found)
                log.info("evaluation after update %d: %s", number, dict(found))
                self.strategy.watch.evaluated(self.federation, number, found, time.monotonic())

    def _metrics(self, update: Update) -> MetricRecord:
        """What the clients reported, averaged as Flower does, and what the server saw."""
        key = self.strategy.weighted_by_key
        records = [RecordDict({"metrics": MetricRecord({**used.metrics, key: used.examples})}) for used in update.used]
        same = {frozenset(next(iter(record.metric_records.values()))) for record in records}
        found = MetricRecord()
        if len(same) == 1:  # as Flower does: metrics that only some report are not averaged
            try:
                found = self.strategy.train_metrics_aggr_fn(records, key)
            except Exception as problem:  # lists of different lengths, say: one client must not end the training
                log.warning("what clients report for update %d is not averaged: %s", update.number, problem)
        found["staleness-mean"] = sum(update.staleness) / len(update.staleness)
        found["staleness-max"] = max(update.staleness)
        found["deliveries"] = len(update.used)
        if self.strategy.privacy is not None:
            found["epsilon"] = self.federation.epsilon()
        return found

    def _end_if_stuck(self) -> None:
        why = self.federation.stuck(time.monotonic())
        if why:
            self.ended = f"the run ends after {self.federation.updates} updates: {why}"
            log.error(self.ended)

    def _say_buffers(self) -> None:
        names = self.layout.buffers
        if names:
            does = "averaged by value" if self.strategy.terms.buffers == "average" else "kept as they were sent"
            log.info("%d arrays are buffers and %s, not trained: %s", len(names), does, ", ".join(names[:6]))

    def _show_table(self, every: float) -> None:
        now = time.monotonic()
        self.shown = now if self.shown == -math.inf else self.shown
        if now >= self.shown + every:
            self.shown = now
            log.info("clients:\n%s", as_text(self.federation.table(now)))

    def _finish(self) -> None:
        now = time.monotonic()
        self.federation.close(now)
        self.history.flush(self.federation.updates, whatever=True)
        log.info("clients:\n%s", as_text(self.federation.table(now)))
        self.strategy.watch.close(self.federation, now, self.ended)
        if self.strategy.timeline is not None:
            found = self.federation.timeline()
            if found is not None:
                timelines.save(found, self.strategy.timeline)

    def _journal(self) -> Journal | None:
        if self.strategy.checkpoint is None:
            return None
        terms = self.strategy.terms
        shapes = {name: (list(shape), self.layout.dtypes[name]) for name, shape in self.layout.shapes.items()}
        about = identity(
            arrays=(shapes, sorted(self.layout.kept)),
            rule=self.strategy.rule,
            privacy=self.strategy.privacy,
            terms=(terms.brings, terms.weigh, terms.buffers, terms.max_norm, self.strategy.examples_key),
        )
        return Journal(self.strategy.checkpoint, about, self.strategy.checkpoint_every)


@dataclass
class History:
    """The metrics of a result, and where the journal keeps them for a run that is started again."""

    journal: Journal | None
    result: Result
    updates: int  # made so far
    size: int = 0  # bytes on disk
    fresh: list[str] = field(default_factory=list)  # lines not on disk yet

    def __post_init__(self) -> None:
        if self.journal is None or not self.updates:
            return
        try:
            text = self.journal.storage.text(HISTORY, None)
        except UserError:
            return
        for line in text.splitlines(keepends=True):
            try:
                kind, number, metrics = json.loads(line)
            except ValueError:  # the last one was being written
                break
            self.size += len(line.encode())
            if number <= self.updates:
                getattr(self.result, kind)[number] = MetricRecord(metrics)

    def note(self, kind: str, number: int, metrics: MetricRecord) -> None:
        getattr(self.result, kind)[number] = metrics
        if self.journal is not None:
            self.fresh.append(json.dumps([kind, number, dict(metrics)]) + "\n")

    def flush(self, number: int, whatever: bool = False) -> None:
        if self.journal is None or not self.fresh or (number % self.journal.every and not whatever):
            return
        text, self.fresh = "".join(self.fresh), []
        self.journal.storage.append(HISTORY, text, self.size)
        self.size += len(text.encode())


@dataclass
class Asked:
    """One evaluation that was asked for."""

    deadline: float
    open: dict[str, int] = field(default_factory=dict)  # message id -> node
    replies: list[Message] = field(default_factory=list)


class Evaluations:
    """Evaluations by the ClientApps that are under way, by the number of the update they belong to.

    Clients are asked like for anything else, and nobody waits but the end of the run.
    """

    def __init__(self, strategy: KAsync, mailbox: Mailbox, timeout: float) -> None:
        self.strategy, self.mailbox, self.timeout = strategy, mailbox, timeout
        self.asked: dict[int, Asked] = {}

    @property
    def busy(self) -> set[int]:
        """The nodes that have not answered yet."""
        return {node for asked in self.asked.values() for node in asked.open.values()}

    def ask(self, number: int, messages: Iterable[Message], grid: Grid) -> None:
        """Send these."""
        asked = Asked(time.monotonic() + self.timeout)
        for message in messages:
            sent = pushed(grid, message)
            if sent is not None:
                asked.open[sent] = message.metadata.dst_node_id
                self.mailbox.watch(sent)
        if asked.open:
            self.asked[number] = asked

    def sort_out(self, replies: Sequence[Message]) -> list[Message]:
        """Keep the replies to evaluations; return the others."""
        others = []
        for reply in replies:
            about = reply.metadata.reply_to_message_id
            mine = next((asked for asked in self.asked.values() if about in asked.open), None)
            if mine is None:
                others.append(reply)
            else:
                del mine.open[about]
                mine.replies.append(reply)
        return others

    def gather(self, history: History) -> None:
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
                history.note("evaluate_metrics_clientapp", number, found)
                log.info("evaluation by clients after update %d: %s", number, dict(found))

    def finish(self, history: History, timeout: float) -> None:
        """Wait a while for the evaluations that are still under way."""
        until = time.monotonic() + timeout
        while self.asked:
            if time.monotonic() >= until:
                silent = sum(len(asked.open) for asked in self.asked.values())
                log.warning("%d clients did not answer an evaluation within %.0f s of the end", silent, timeout)
                for asked in self.asked.values():
                    asked.deadline = -math.inf
            else:
                self.sort_out(self.mailbox.take(self.strategy.poll))
            self.gather(history)


def pushed(grid: Grid, message: Message) -> str | None:
    """The id of the message, or None where it could not be sent."""
    try:
        sent = list(grid.push_messages([message]))
    except Exception as problem:
        log.warning("a message could not be sent (%s: %s)", type(problem).__name__, problem)
        return None
    return sent[0] if sent and sent[0] else None
