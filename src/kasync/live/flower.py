"""How does a Flower federation train asynchronously? With this strategy in the place of FedAvg.

strategy = KAsync(rule=kasync.rules.wkafl(lr=1.0), k=10)
result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=500)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from kasync import checks
from kasync.core import Rule
from kasync.errors import UserError, unknown
from kasync.live.privacy import Privacy
from kasync.live.terms import Terms

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg, Result
except ImportError as problem:
    raise UserError("kasync.live.flower needs Flower: pip install 'kasync[flower]'.") from problem

from kasync.live.flower_replies import LOSSES
from kasync.live.flower_run import FlowerRun

log = logging.getLogger("kasync.live")


class KAsync(FedAvg):
    """A Flower strategy that updates the model as soon as k clients have delivered, whoever they are.

    A round of Flower is one update here. ClientApps stay as they are: the server knows which version each was sent,
    and a rule takes start minus trained model (`brings="gradients"`: what they return is taken as a gradient).

    rule                    what to do with k deliveries; lr = 1 takes the weighted mean of the trained models
    k                       deliveries that make an update
    min_available_nodes     nodes that must be connected before the first work is sent; k by default
    evaluate_every          updates between two calls of evaluate_fn
    evaluate_clients_every  updates between two evaluations by the ClientApps; 0 for never
    fraction_evaluate, min_evaluate_nodes, weighted_by_key, arrayrecord_key, configrecord_key,
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn       as in FedAvg
    loss_keys               metrics that may hold the training loss; the first that is there is taken
    checkpoint              a file; a ServerApp that was killed continues from it
    timeline                a file that gets the run's timeline, for the simulator to replay
    privacy                 clip and noise every delivery, and report the epsilon spent
    poll                    seconds between two looks for replies
    terms                   shortage, rest, longest_rest, patience, offences, max_norm, max_staleness, brings: see Terms
    """

    def __init__(
        self,
        rule: Rule,
        k: int,
        *,
        min_available_nodes: int | None = None,
        evaluate_every: int = 1,
        evaluate_clients_every: int = 0,
        fraction_evaluate: float = 1.0,
        min_evaluate_nodes: int = 1,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        loss_keys: Sequence[str] = LOSSES,
        checkpoint: str | PathLike[str] | None = None,
        timeline: str | PathLike[str] | None = None,
        privacy: Privacy | None = None,
        poll: float = 0.3,
        **terms: Any,
    ) -> None:
        known = {field.name for field in fields(Terms)} - {"k", "least", "timeout"}
        for name in terms:
            if name not in known:
                raise unknown("setting of KAsync", name, known)
        checks.count("evaluate_every", evaluate_every)
        checks.count("evaluate_clients_every", evaluate_clients_every, least=0)
        checks.above("poll", poll, 0.0)
        self.rule, self.terms = rule, Terms(k=k, least=min_available_nodes, **terms)
        self.evaluate_every, self.evaluate_clients_every = evaluate_every, evaluate_clients_every
        self.loss_keys = tuple(loss_keys)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.timeline = None if timeline is None else Path(timeline)
        self.privacy, self.poll = privacy, poll
        self.run: FlowerRun | None = None  # while `start` runs, and of the last one after it
        super().__init__(
            fraction_evaluate=fraction_evaluate,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=k if min_available_nodes is None else min_available_nodes,
            weighted_by_key=weighted_by_key,
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
        """Work on the newest model for every idle node; override it to add to what is sent."""
        return self._running().orders(server_round, arrays, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and keep these replies; the new model and its metrics if they completed k."""
        return self._running().collect(replies)

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
        show_in_flowers_log()
        self.run = FlowerRun(self, grid, initial_arrays, timeout)
        return self.run.train(
            num_rounds, train_config or ConfigRecord(), evaluate_config or ConfigRecord(), evaluate_fn
        )

    def _running(self) -> FlowerRun:
        if self.run is None:
            raise UserError("KAsync has not been started: call start(grid, initial_arrays, ...).")
        return self.run


def show_in_flowers_log() -> None:
    """Let what the loop has to say appear where Flower's own lines do."""
    if not log.handlers and not logging.getLogger().handlers:
        for handler in logging.getLogger("flwr").handlers:
            log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
