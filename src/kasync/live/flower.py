"""A Flower strategy that trains asynchronously, in the place of FedAvg.

strategy = KAsync(rule=kasync.rules.fedbuff(lr=1.0), k=10)
result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=500)
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from kasync import checks
from kasync.core import Rule
from kasync.errors import UserError, unknown
from kasync.live.privacy import Privacy
from kasync.live.terms import Terms
from kasync.live.watch import OnUpdate, Sink, Watch

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg, Result
except ImportError as problem:
    raise UserError(
        f"kasync.live.flower needs Flower 1.21 or newer, and finds none ({problem}): pip install -U 'kasync[flower]'."
    ) from problem

from kasync.live.flower_messages import BUFFER_NAMES, CLIENT_KEY, LOSSES
from kasync.live.flower_run import FlowerRun

log = logging.getLogger("kasync.live")
INSTEAD = {  # settings of FedAvg that mean nothing here -> what to do
    "fraction_train": "work goes to everybody who is idle; concurrency= limits how many work at a time",
    "min_train_nodes": "k= is how many deliveries make an update",
}


class KAsync(FedAvg):
    """A Flower strategy that updates the model as soon as k clients have delivered, whoever they are.

    A round of Flower is one update here. ClientApps stay as they are: the server knows which version each was sent,
    and a rule takes start minus trained model (`brings="gradients"`: what they return is taken as a gradient).

    rule                    what to do with k deliveries; lr = 1 takes the weighted mean of the trained models
    k                       deliveries that make an update
    min_available_nodes     nodes that must be connected before the first work is sent; k by default
    weighted_by_key         the metric by which a delivery counts, times the rule's own weight; None for equal counts
    evaluate_every          updates between two calls of evaluate_fn
    evaluate_clients_every  updates between two evaluations by the ClientApps; 0 for never. By default never, or after
                            every update where fraction_evaluate is given
    evaluation_timeout      seconds that the end of the run waits for evaluations
    fraction_evaluate, min_evaluate_nodes, arrayrecord_key, configrecord_key, train_metrics_aggr_fn,
    evaluate_metrics_aggr_fn                              as in FedAvg
    buffer_names            names, with * for any letters, of arrays that are no parameters; whole numbers always are
    loss_keys               metrics that may hold the training loss; the first that is there is taken
    checkpoint              a file, or an address for fsspec; a ServerApp that was killed continues from it
    checkpoint_every        updates between two saves of the whole state
    timeline                a file that gets the run's timeline, for the simulator to replay
    record                  a folder that gets the run's records as it goes on, for `kasync live` and `kasync report`
    privacy                 clip and noise the deliveries, and report the epsilon spent
    on_update, sinks        called with the record of every update: a function, and kasync.live.watch's TensorBoard,
                            MLflow, Prometheus or one of your own
    table_every             seconds between two tables of the clients in the log
    poll                    seconds between two looks for replies
    device                  where the server computes
    terms                   every other setting of Terms: min_k, grace, shortage, deadline, concurrency, select, ...
    """

    def __init__(
        self,
        rule: Rule,
        k: int,
        *,
        min_available_nodes: int | None = None,
        evaluate_every: int = 1,
        evaluate_clients_every: int | None = None,
        evaluation_timeout: float = 60.0,
        fraction_evaluate: float | None = None,
        min_evaluate_nodes: int = 1,
        weighted_by_key: str | None = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        buffer_names: Sequence[str] = BUFFER_NAMES,
        loss_keys: Sequence[str] = LOSSES,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 1,
        timeline: str | PathLike[str] | None = None,
        record: str | PathLike[str] | None = None,
        privacy: Privacy | None = None,
        on_update: OnUpdate | None = None,
        sinks: Sequence[Sink] = (),
        table_every: float = 300.0,
        poll: float = 0.3,
        device: str = "cpu",
        **terms: Any,
    ) -> None:
        known = {field.name for field in fields(Terms)} - {"k", "least", "timeout", "weigh"}
        for name in terms:
            if name in INSTEAD:
                raise UserError(f"{name} is a setting of FedAvg that KAsync has not: {INSTEAD[name]}.")
            if name not in known:
                raise unknown("setting of KAsync", name, known)
        checks.count("evaluate_every", evaluate_every)
        checks.count("checkpoint_every", checkpoint_every)
        checks.above("poll", poll, 0.0)
        checks.limit("table_every", table_every)
        checks.at_least("evaluation_timeout", evaluation_timeout, 0.0)
        if fraction_evaluate is not None:
            checks.between("fraction_evaluate", fraction_evaluate, 0.0, 1.0)
        if evaluate_clients_every is None:
            evaluate_clients_every = 1 if fraction_evaluate else 0
        checks.count("evaluate_clients_every", evaluate_clients_every, least=0)
        weigh = "equal" if weighted_by_key is None else "examples"
        self.rule, self.terms = rule, Terms(k=k, least=min_available_nodes, weigh=weigh, **terms)
        self.examples_key = weighted_by_key
        self.evaluate_every, self.evaluate_clients_every = evaluate_every, evaluate_clients_every
        self.evaluation_timeout, self.table_every = evaluation_timeout, table_every
        self.buffer_names, self.loss_keys = tuple(buffer_names), tuple(loss_keys)
        self.checkpoint = None if checkpoint is None else fspath(checkpoint)
        self.checkpoint_every = checkpoint_every
        self.timeline = None if timeline is None else Path(timeline)
        self.privacy, self.poll, self.device = privacy, poll, device
        self.watch = Watch(on_update, tuple(sinks), None if record is None else Path(record))
        self.run: FlowerRun | None = None  # while `start` runs, and of the last one after it
        super().__init__(
            fraction_evaluate=1.0 if fraction_evaluate is None else fraction_evaluate,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=k if min_available_nodes is None else min_available_nodes,
            weighted_by_key=weighted_by_key or "num-examples",
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )

    def summary(self) -> None:
        """Log the settings."""
        log.info("\t├──> Rule: %s", self.rule)
        log.info("\t└──> Terms: %s", self.terms)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What clients are sent from this update on, with the messages for those who are idle now.

        Called once for each update, as in FedAvg: what an override changes in `config` holds for every message of the
        update, and stays. To change single messages override configure_dispatch.
        """
        return self._running().configure(server_round, arrays, config)

    def configure_dispatch(self, server_round: int, content: RecordDict, node_id: int) -> RecordDict:
        """What this node is sent. An override returns a changed copy: the content given is everybody's."""
        return content

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model and its metrics. Called once for each update, with the replies it was made of.

        The replies hold metrics and no arrays: those were turned into rows when they came.
        """
        return self._running().aggregated()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask a share of the clients that are there; nobody is waited for.

        Who still owes an earlier evaluation is not given another one, except after the last update.
        """
        run = self._running()
        nodes = [int(client.node) for client in run.federation if client.present and not client.aside]  # type: ignore[call-overload]
        count = max(int(len(nodes) * self.fraction_evaluate), self.min_evaluate_nodes)
        if not 0 < count <= len(nodes):
            log.warning("no evaluation after update %d: %d are there, it takes %d", server_round, len(nodes), count)
            return []
        busy = set() if run.final else run.evaluations.busy
        free = [node for node in nodes if node not in busy]
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [
            Message(content, dst_node_id=node, message_type=MessageType.EVALUATE, ttl=run.timeout)
            for node in random.sample(free, min(count, len(free)))
        ]

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train until num_rounds updates are made. A node that has not answered after `timeout` seconds is given up."""
        checks.count("num_rounds", num_rounds)
        checks.limit("timeout", timeout)
        show_in_flowers_log()
        self.run = FlowerRun(self, grid, initial_arrays, min(timeout, math.inf))
        return self.run.train(
            num_rounds, train_config or ConfigRecord(), evaluate_config or ConfigRecord(), evaluate_fn
        )

    def _running(self) -> FlowerRun:
        if self.run is None:
            raise UserError(
                "KAsync has not been started: call its own start(grid, initial_arrays, ...). A wrapper that drives "
                "rounds itself (DifferentialPrivacyServerSideFixedClipping and its like, SecAgg+) cannot hold it; "
                "for differential privacy pass privacy=kasync.live.privacy.Privacy(...)."
            )
        return self.run


def client_key(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod for a ClientApp that says who it is, `ClientApp(mods=[client_key])`: `client-key` of the node's config.

    A node that starts again under another name is then the same client.
    """
    reply = call_next(message, context)
    key = context.node_config.get(CLIENT_KEY)
    if key is not None and not reply.has_error():
        reply.content["kasync"] = ConfigRecord({CLIENT_KEY: str(key)})
    return reply


def show_in_flowers_log() -> None:
    """Let what the loop has to say appear where Flower's own lines do."""
    if not log.handlers and not logging.getLogger().handlers:
        for handler in logging.getLogger("flwr").handlers:
            log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
