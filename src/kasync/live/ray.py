"""The live loop over Ray: clients are actors on your own machines that stay warm.

    with WarmClients(clients_of(model, data, Gradient(16))) as clients:
        federation = RayFederation(rules.wkafl(0.1), flat_parameters(model), k=4, clients=clients)
        for update in federation.run(steps=500): ...

Ray trusts its own cluster (it pickles); for clients that are not yours there is kasync.live.flower.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kasync import timelines
from kasync.core import Rule
from kasync.errors import UserError
from kasync.live.deliveries import Delivery, Failure
from kasync.live.journal import Journal, identity
from kasync.live.loop import Federation, Order, Update
from kasync.live.privacy import Privacy
from kasync.live.terms import Terms
from kasync.live.watch import OnUpdate, Sink, Watch
from kasync.timelines.durations import Durations

try:
    import ray
    from ray.exceptions import GetTimeoutError
except ImportError as problem:
    raise UserError("kasync.live.ray needs Ray: pip install 'kasync[ray]'.") from problem

log = logging.getLogger("kasync.live")
PLACED_WITHIN = 600  # seconds


class LiveClient(Protocol):
    """What an actor holds: called with parameters [D] and the number of its deliveries so far."""

    def __call__(self, params: Tensor, visit: int) -> Delivery: ...


class Actor:
    """One client in a process of its own, with all it needs in memory."""

    def __init__(self, client: LiveClient, number: int, slowness: Durations | None, seed: int) -> None:
        torch.set_num_threads(1)
        self.client, self.number, self.slowness, self.seed = client, number, slowness, seed

    def work(self, params: np.ndarray, visit: int) -> tuple[np.ndarray, float | None, float]:
        """A piece of work on these parameters [D]; arrays travel through the object store without a copy."""
        if self.slowness is not None:
            who, piece = np.array([self.number]), np.array([visit])
            time.sleep(float(self.slowness.seconds(self.seed, who, piece)[0]))
        brought = self.client(torch.from_numpy(params.copy()), visit)
        values = brought.values if isinstance(brought.values, torch.Tensor) else torch.cat(list(brought.values))
        return values.detach().cpu().numpy(), brought.loss, brought.examples

    def ready(self) -> bool:
        return True


class WarmClients:
    """Actors for these clients, on this machine or on the cluster at `address`; Ray restarts those that die.

    slowness is slept before every piece of work, to show what stragglers do: any kasync.timelines.durations.
    """

    def __init__(
        self,
        clients: Sequence[LiveClient],
        address: str | None = None,
        slowness: Durations | None = None,
        seed: int = 0,
        gpus_each: float = 0.0,
    ) -> None:
        if not clients:
            raise UserError("clients is empty: a federation needs at least one.")
        self.ours = not ray.is_initialized()
        if self.ours:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports usage to its makers otherwise
            try:
                ray.init(address=address, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
            except ConnectionError as problem:
                raise UserError(f"no Ray cluster answers at {address!r} ({problem}): start one.") from None
        kind: Any = ray.remote(Actor).options(  # type: ignore[attr-defined]
            max_restarts=-1,
            num_cpus=0,  # more clients than cores share them, so nobody waits for a free one
            num_gpus=gpus_each,
            scheduling_strategy="SPREAD",
        )
        self.kept = [ray.put(client) for client in clients]  # an actor that is restarted needs its client again
        self.actors = [kind.remote(client, number, slowness, seed) for number, client in enumerate(self.kept)]
        try:
            ray.get([actor.ready.remote() for actor in self.actors], timeout=PLACED_WITHIN)
        except GetTimeoutError:
            self.close()
            raise UserError(
                f"gpus_each = {gpus_each}: {len(clients)} clients found no place in {PLACED_WITHIN} s; ask for less."
            ) from None

    def __len__(self) -> int:
        return len(self.actors)

    def __enter__(self) -> WarmClients:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the actors go, and Ray too if it was started here."""
        for actor in self.actors:
            ray.kill(actor)
        if self.ours:
            ray.shutdown()


class RayFederation:
    """A live run on warm clients: iterate over `run(steps)`; `params` is the model as far as it got.

    k = len(clients) is fully synchronous; max_staleness=0 is K-sync; else K-async. `terms` are those of Terms, with
    brings="gradients" (a client brings a gradient, or start minus trained model) and weigh="equal", as the simulator
    does it. `on_update`, `sinks` and `record` are those of KAsync.
    """

    def __init__(
        self,
        rule: Rule,
        params: Tensor,  # [D]
        k: int,
        clients: WarmClients,
        *,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 1,
        privacy: Privacy | None = None,
        on_update: OnUpdate | None = None,
        sinks: Sequence[Sink] = (),
        record: str | PathLike[str] | None = None,
        **terms: Any,
    ) -> None:
        if k > len(clients):
            raise UserError(f"k = {k} is more than the {len(clients)} clients: lower k or add clients.")
        agreed = Terms(**{"k": k, "brings": "gradients", **terms})
        journal = None
        if checkpoint is not None:
            about = identity(
                arrays=(len(params), str(params.dtype)),
                rule=rule,
                privacy=privacy,
                terms=(agreed.brings, agreed.weigh, agreed.buffers, agreed.max_norm),
            )
            journal = Journal(checkpoint, about, checkpoint_every)
        self.clients = clients
        self.federation = Federation(
            rule, params, agreed, journal, privacy, now=time.monotonic(), members=range(len(clients))
        )
        self.watch = Watch(on_update, tuple(sinks), None if record is None else Path(record))
        self.orders: dict[Any, Order] = {}  # what Ray will answer -> the order it answers
        self.sent: tuple[int, Any] = (-1, None)  # the newest version in the object store
        self.ended = ""  # why, where it ended before its last step

    @property
    def params(self) -> Tensor:
        """[D] the server's parameters now."""
        return self.federation.server.params

    def timeline(self) -> timelines.Timeline | None:
        """Who delivered when, for the simulator to replay."""
        return self.federation.step_log.timeline(len(self.clients), self.federation.rule.name)

    def run(self, steps: int, patience: float = 1.0) -> Iterator[Update]:
        """Updates, until there are `steps` of them in all."""
        federation = self.federation
        federation.present(range(len(self.clients)), time.monotonic())
        try:
            while federation.updates < steps and not self.ended:
                missing = federation.needed(time.monotonic()) - len(federation.waiting)
                if missing > 0:  # else an update is due, and nobody is given the model before it
                    self._work(missing, patience)
                overdue = set(federation.expire(time.monotonic()))
                self.orders = {answer: order for answer, order in self.orders.items() if order not in overdue}
                update = federation.step(time.monotonic())
                if update is not None:
                    self.watch.update(federation, update)
                    yield update
                why = federation.stuck(time.monotonic())
                if why:
                    self.ended = f"the run ends after {federation.updates} updates: {why}"
                    log.error(self.ended)
        finally:
            federation.close(time.monotonic())
            self.watch.close(federation, time.monotonic(), self.ended)

    def _work(self, missing: int, patience: float) -> None:
        """Give work to the idle, and wait a while for so many deliveries."""
        for order in self.federation.dispatch(time.monotonic()):
            self._send(order)
        if not self.orders:
            time.sleep(0.01)  # everybody rests
            return
        count = min(missing, len(self.orders))
        ready, _ = ray.wait(list(self.orders), num_returns=count, timeout=patience, fetch_local=True)
        for answer in ready:
            self._take(answer)

    def _send(self, order: Order) -> None:
        if self.sent[0] != order.version:
            self.sent = (order.version, ray.put(self.params.cpu().numpy()))  # once for each version
        actor = self.clients.actors[order.node]  # type: ignore[call-overload]
        visit = self.federation.roster.seats[order.client].used  # nothing of a client at work waits
        self.orders[actor.work.remote(self.sent[1], visit)] = order

    def _take(self, answer: Any) -> None:
        order = self.orders.pop(answer)
        brought: Delivery | Failure
        try:
            values, loss, examples = ray.get(answer)
            brought = Delivery(torch.from_numpy(np.array(values)), loss, examples)
        except Exception as problem:  # the actor died, or the client's own code raised
            brought = Failure(f"{type(problem).__name__}: {str(problem)[-200:]}")
        self.federation.collect(order.ticket, order.node, brought, time.monotonic())
