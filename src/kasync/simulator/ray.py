"""One run on the workers of a Ray cluster: work is sent ahead of need along the timeline, and rows come back.

Who delivers when is known before training, and a piece of work depends on its version, its client and its visit only.
So the server puts every version into the object store once, workers compute the most urgent pieces of those whose
version exists, and a step is made as soon as its K rows are there. What a dead worker had under way is done again
elsewhere: the same piece has the same bits, whoever computes it and however often.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import logging
import os
import queue
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kasync import fingerprint, kernel
from kasync.core import Rule, ServerState
from kasync.data.federated import FederatedData, FederatedTensors
from kasync.errors import UserError
from kasync.faults.work import WorkFaults
from kasync.kernel import Block, Rows
from kasync.simulator.memory import SHARE, VECTORS, Memory, available, capacity, data_bytes, free_on_disk, size
from kasync.simulator.plan import Inputs, Plan, Workload
from kasync.simulator.run import Carried, Prefetch, Run, StepInputs, new_store
from kasync.work import Work
from kasync.work.batches import Batches
from kasync.work.clients import Clients
from kasync.work.loop import Brought, Sent
from kasync.work.objective import Objective
from kasync.work.trial import Traits

try:
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError, RayTaskError
except ImportError as problem:
    raise UserError("engine='ray' needs Ray: pip install 'kasync[ray]'.") from problem

log = logging.getLogger("kasync.simulator")
PLACED_WITHIN = 600.0  # seconds in which one worker at least must find a place
LOOK = 2.0  # seconds between two looks at the cluster: has a node been added, is anybody there
ATTEMPTS = 4  # times that a piece may end its worker before it is the piece's fault
STARTS = 4  # workers that may die in a row before one of them is ready
SHORT = 0.02  # seconds that a task should take at least, so that calling it costs little beside
LONG = 1.0  # and at most, where so much waits that nobody is idle because others have much: fewer calls of Ray
MOST = 64  # pieces in a task
KEPT = 31 * 2**20  # bytes; blocks of 32 MiB and more teach the C library nothing
CHEAP = 64 * 2**20  # bytes of rows that may wait without asking
REWARDING = 4  # rows that may wait for each task under way, where rows are long


# ---- on the driver: the cluster


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to, and the workers that a run takes there."""

    workers: int | None  # None: as many as there is room for, more where nodes are added
    share: tuple[tuple[str, float], ...]  # of one worker, as Ray names them: num_cpus, num_gpus, and names of one's own
    job: str = ""  # this process's at the cluster

    @classmethod
    def connect(
        cls, address: str | None, workers: int | None, resources: Mapping[str, float] | None, device: str
    ) -> Cluster:
        """Join the cluster at the address, or the one that is there, or start one of this machine."""
        on_cuda = torch.device(device).type == "cuda"
        wanted = dict(resources or ({"num_cpus": 1, "num_gpus": 1} if on_cuda else {"num_cpus": 1}))
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise UserError(f"workers = {workers!r}: give a whole number of at least 1, or leave it out.")
        for name, share in wanted.items():
            if isinstance(share, bool) or not isinstance(share, int | float) or not share >= 0:
                raise UserError(f"resources_per_worker has {name} = {share!r}: give a number of at least 0.")
        wanted.setdefault("num_cpus", 1)
        connect(address, 0 if workers is None else workers * wanted["num_cpus"])
        here = ray.get_runtime_context()
        one = cls(workers, tuple(sorted(wanted.items())), f"{here.gcs_address} {here.get_job_id()}")
        one._refuse_impossible()
        dismiss(but=one)
        return one

    @property
    def resources(self) -> dict[str, float]:
        """Of one worker."""
        return dict(self.share)

    @property
    def threads(self) -> int:
        """Pieces that one worker computes side by side."""
        return max(1, int(self.resources["num_cpus"])) if not self.resources.get("num_gpus") else 1

    @property
    def needs(self) -> dict[str, float]:
        """Of one worker, by the names that nodes tell."""
        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        return {names.get(name, name): share for name, share in self.resources.items() if share}

    def room(self) -> int:
        """Workers that the nodes could hold together."""
        return sum(self._fitting(node["Resources"]) for node in ray.nodes() if node["Alive"])

    def count(self) -> int:
        """Workers that there should be now."""
        return self.workers if self.workers is not None else max(1, self.room())

    def options(self) -> dict[str, Any]:
        """For Ray's actors."""
        plain: dict[str, Any] = {n: self.resources[n] for n in ("num_cpus", "num_gpus") if n in self.resources}
        own = {name: share for name, share in self.resources.items() if name not in plain}
        return {**plain, "resources": own, "max_concurrency": self.threads + 2, "scheduling_strategy": "SPREAD"}

    def _fitting(self, has: Mapping[str, float]) -> int:
        if not self.needs:
            return 1
        return int(min(has.get(name, 0.0) / share for name, share in self.needs.items()))

    def _refuse_impossible(self) -> None:
        """Where no node could ever hold a worker, or all together not so many as asked for."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(map(self._fitting, nodes))
        if room < (self.workers or 1):
            most = {name: max((has.get(name, 0.0) for has in nodes), default=0.0) for name in self.needs}
            told = ", ".join(f"{most[name]:g} {name}" for name in most)
            raise UserError(
                f"workers = {self.workers or 1} with resources_per_worker = {self.resources}: the cluster has "
                f"room for {room} (a node has at most {told}); ask for less or add nodes."
            )

    def memory(self, plan: Plan, rule: Rule, data: FederatedData, length: int, hold: str, device: str) -> Memory:
        """What the driver holds: versions in the object store, which spills, and the rows that may wait."""
        if hold == "gradients":
            raise UserError("engine = 'ray' keeps versions in its object store: leave hold out, or engine='local'.")
        row, k = 4 * length, plan.timeline.k
        held = plan.versions * row
        free, store = available(device), _store_of_this_node()
        if held > store + SHARE * free_on_disk():
            raise UserError(
                f"this run keeps {size(held)} of model versions, the object store has {size(store)} and the disk it "
                f"spills to {size(free_on_disk())}: use fewer clients, a larger k, or a smaller model."
            )
        tasks = self.count() * (self.threads + 1)
        wanted = 2 * k + max(REWARDING * tasks, CHEAP // row)
        fixed = rule.table_rows * row + data_bytes(data) + (VECTORS + k) * row
        room = SHARE * free - fixed - (held if torch.device(device).type == "cpu" else 0)
        rows = min(wanted, int(room // row), plan.timeline.clients.size + k)
        if rows < k:
            least = size(int((fixed + k * row) / SHARE))
            raise UserError(
                f"the server of this run needs {least} and has {size(free)}: use a smaller model or a larger machine."
            )
        working = (VECTORS + k + rows) * row
        tables = rule.table_rows * row
        total = capacity(device)
        workers = self.count()
        return Memory(
            "versions", held, tables, data_bytes(data), working, free, total, 0, workers, "object store", rows
        )

    def run(
        self,
        memory: Memory,
        plan: Plan,
        inputs: Inputs,
        clients: Clients,
        rule: Rule,
        params: Tensor,
        carried: Carried,
        model: nn.Module,
        data: FederatedData,
        traits: Traits,
        settings: Mapping[str, Any],
    ) -> RayRun:
        """A run whose pieces of work are computed here."""
        code, arrays = packed(model, data, inputs, clients, traits, settings)
        store = new_store(memory.rows, params, "cpu")
        server = rule.prepared(ServerState.initial(params))
        nothing = torch.zeros(plan.versions + 1, device=params.device)
        run = RayRun(plan, inputs, clients, rule, server, store, nothing, Prefetch.beside(1), carried)
        run.crew = Crew(self, plan, inputs, store, carried, params.device, ray.put((code, arrays)), str(params.device))
        return run


def connect(address: str | None, cpus: float = 0) -> bool:
    """Be connected to Ray; whether this call started or joined it. It goes on until this process ends."""
    if ray.is_initialized():
        return False
    if address is not None and address.startswith("ray://"):
        raise UserError(f"address = {address!r} is Ray's client: start this on a node of the cluster, address='auto'.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports usage to its makers otherwise
    own = address is None and "RAY_ADDRESS" not in os.environ
    cores = max(os.cpu_count() or 1, int(cpus)) if own else None
    quiet: dict[str, Any] = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    try:
        ray.init(address="local" if own else address, num_cpus=cores, **quiet)  # never by chance somebody else's
    except Exception as problem:
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        if own:
            raise UserError(
                f"Ray cannot be started here ({reason}): try again, or give the address of a cluster."
            ) from None
        raise UserError(f"no Ray cluster answers at {address!r} ({reason}): start one or leave it out.") from None
    _STARTED[:] = [ray.get_runtime_context().gcs_address] if own else []
    return True


def disconnect() -> None:
    """Leave the cluster, and end it if it was started here."""
    _RESTING.clear()
    _STARTED.clear()
    ray.shutdown()


def _store_of_this_node() -> int:
    """Bytes of the object store that versions are put into."""
    here = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
    return int(nodes.get(here, {}).get("object_store_memory", 0))


# ---- on the driver: the run


@dataclass(eq=False)
class RayRun(Run):
    """A run whose rows come from workers; `store` are the rows that wait, the versions lie in Ray's object store."""

    crew: Crew = field(default=None)  # type: ignore[assignment]

    def steps(self, start: int, stop: int) -> Iterator[dict[str, NDArray]]:
        self.crew.begin(start)
        yield from super().steps(start, stop)

    def _arrived(
        self, number: int, work: Workload, told: StepInputs
    ) -> tuple[Block, Tensor, list[Brought], Tensor | None]:
        slot = int(self.plan.version_slots[number])
        if slot >= 0:
            if any(self.carried.now):
                self.carried.versions[slot] = self.carried.now
            self.crew.publish(number, self.sent)
        places, brought = self.crew.take(number)
        losses = torch.stack([each.loss for each in brought]).to(self.device)
        rows: Block = Rows(self.store, places) if self._in_place else self._taken(torch.tensor(places))
        starts = self.crew.versions_of(number) if self.rule.needs_starts else None
        return rows, losses, brought, starts

    def rest(self) -> None:
        self.crew.stop()

    def tensors(self, with_store: bool = True) -> dict[str, Tensor]:
        """As a run on one machine that keeps versions has it, so that either can go on where the other was."""
        state = super().tensors(with_store=False)
        if not with_store:
            return state
        held = torch.zeros(self.plan.versions + 1, len(self.server.params))
        for version, sent in self.crew.held():
            held[int(self.plan.version_slots[version])] = sent
        return state | {"store": held, "losses": self.losses}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        super().restore({name: value for name, value in tensors.items() if name not in ("store", "losses")})
        if "store" in tensors:
            self.crew.restore(int(self.server.step), tensors["store"])


@dataclass(eq=False)
class Worker:
    """An actor, and what it has under way."""

    actor: Any
    node: str = "that never answered"
    place: str = ""  # the node as Ray names it
    ready: bool = False
    asked: dict[int, list[int]] = field(default_factory=dict)  # task -> pieces

    @property
    def tasks(self) -> int:
        return len(self.asked)


@dataclass(frozen=True, eq=False)
class Version:
    """A model as it was sent, in the object store."""

    ref: Any
    last: int  # the last step that delivers something computed on it


class Crew:
    """The workers of a run and what they are asked for.

    One thread of its own sends pieces and takes what comes back, so that workers have work while the server makes a
    step or evaluates. Whatever changes is changed by that thread: others leave a call in its inbox.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        inputs: Inputs,
        store: Tensor,
        carried: Carried,
        device: torch.device,
        spec: Any,
        where: str,
    ) -> None:
        self.cluster, self.plan, self.inputs, self.store, self.carried = cluster, plan, inputs, store, carried
        self.device, self.spec, self.where = device, spec, where
        self.k, self.steps = plan.timeline.k, plan.timeline.steps
        self.order = np.argsort(plan.computed_on, axis=None, kind="stable")  # copies too: each is a row
        self.bounds = np.r_[0, np.cumsum(np.bincount(plan.computed_on.ravel(), minlength=self.steps))]
        self.versions: dict[int, Version] = {}
        self.seconds = 0.0  # of a piece, as workers measured it lately
        self.waited = 0.0  # seconds that the server waited for rows
        self.made = 0  # pieces that came back
        self.busy = 0.0  # seconds that workers took for them
        self.computing = 0.0  # seconds of a processor in them
        self.redone = 0  # pieces that were sent again
        self.sending = 0.0  # seconds of a processor that sending and taking took
        self.thread: threading.Thread | None = None
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.changed = threading.Condition()
        self.problem: BaseException | None = None

    # -- what the run calls

    def begin(self, step: int) -> None:
        """Start workers and have everything done that is needed from this step on."""
        if self.thread is not None:
            return
        self.inbox, self.problem, self.stopped = queue.SimpleQueue(), None, False
        self.current, self.later = step, 0
        self.free = list(range(len(self.store)))
        self.slots: dict[int, int] = {}  # delivery under way or waiting -> its row of the store
        self.results: dict[int, Brought] = {}  # delivery -> what it brought, once it is there
        self.held_by: Counter[int] = Counter()  # step -> rows of it under way or waiting
        self.heap: list[int] = []  # deliveries that can be computed and were not sent
        self.attempts: Counter[int] = Counter()
        self.workers: list[Worker] = []
        self.numbers = itertools.count()
        self.deaths, self.looked = 0, time.monotonic()
        self.alone_since = time.monotonic()  # since when nobody is ready
        self.remote: Any = ray.remote(_actor())
        for version in self.versions:
            self._can_be_done(version)
        self.thread = threading.Thread(target=self._serve, name="kasync-crew", daemon=True)
        self.thread.start()

    def publish(self, version: int, sent: Sent) -> None:
        """This version exists: its pieces can be computed."""
        chosen = self._on(version)
        if len(chosen):
            self.versions[version] = Version(self._put(sent), int(chosen.max()) // self.k)
            self.inbox.put(partial(self._can_be_done, version))

    def take(self, step: int) -> tuple[list[int], list[Brought]]:
        """Wait for the deliveries of a step: their rows of the store, and what they bring beside them."""
        self.inbox.put(partial(self._at, step))
        wanted = range(step * self.k, (step + 1) * self.k)
        began = time.perf_counter()
        with self.changed:
            self.changed.wait_for(lambda: self.problem or all(piece in self.results for piece in wanted))
        self.waited += time.perf_counter() - began
        if self.problem is not None:
            raise self.problem
        brought = [self.results[piece] for piece in wanted]
        for piece, each in zip(wanted, brought, strict=True):
            self.carried.keep(self.plan.timeline, piece, each.state)
        return [self.slots[piece] for piece in wanted], brought

    def versions_of(self, step: int) -> Tensor:
        """[K, D] the versions that a step's deliveries were computed on."""
        refs = [self.versions[version].ref for version in self.plan.computed_on[step].tolist()]
        return torch.stack([_tensor(sent["params"]) for sent in ray.get(refs)]).to(self.device)

    def held(self) -> Iterator[tuple[int, Tensor]]:
        """Every version that is still needed."""
        for version, each in list(self.versions.items()):
            yield version, _tensor(ray.get(each.ref)["params"])

    def restore(self, step: int, table: Tensor) -> None:
        """Put the versions of a checkpoint, written after so many steps, into the object store."""
        self.versions = {}
        for version in range(step):
            chosen = self._on(version)
            slot = int(self.plan.version_slots[version])
            if len(chosen) and slot >= 0 and chosen.max() >= step * self.k:
                beside = self.carried.versions.get(slot, ({}, {}))
                ref = self._put(Sent(table[slot].clone(), *beside))
                self.versions[version] = Version(ref, int(chosen.max()) // self.k)

    def stop(self) -> None:
        """Let the workers go; versions stay for whoever goes on."""
        if self.thread is None:
            return
        self.stopped = True
        self.inbox.put(lambda: None)
        self.thread.join()
        self.thread = None
        for worker in self.workers:
            rests = self.cluster.job.partition(" ")[0] in _STARTED and self.problem is None
            if rests and worker.ready and not worker.tasks:
                _RESTING.setdefault(self.cluster, []).append(worker.actor)
            else:
                _end(worker.actor)
        self.workers = []

    # -- the thread that sends and takes

    def _serve(self) -> None:
        try:
            self._staff()
            spent = time.thread_time()
            while not self.stopped:
                with suppress(queue.Empty):
                    self.inbox.get(timeout=LOOK)()
                    while True:
                        self.inbox.get_nowait()()
                if self.stopped:
                    return
                self._send()
                self.sending += time.thread_time() - spent
                spent = time.thread_time()
                if time.monotonic() - self.looked > LOOK:
                    self._look()
        except BaseException as problem:
            with self.changed:
                self.problem = problem
                self.changed.notify_all()

    def _can_be_done(self, version: int) -> None:
        for piece in self._on(version).tolist():
            if piece >= self.current * self.k and piece not in self.slots:
                heapq.heappush(self.heap, piece)

    def _at(self, step: int) -> None:
        """The server waits for this step: what earlier ones needed is free again."""
        while self.current < step:
            for piece in range(self.current * self.k, (self.current + 1) * self.k):
                self.results.pop(piece)
                self.free.append(self.slots.pop(piece))
            del self.held_by[self.current]
            self.current += 1
            self.later -= self.held_by[self.current]
        for version, each in list(self.versions.items()):  # in one go: the server adds to them meanwhile
            if each.last < step:
                del self.versions[version]

    def _send(self) -> None:
        """Give the most urgent pieces to workers that have little to do, as far as their rows have room.

        Workers have one more place for what the server waits for, which overtakes what they were given before.
        """
        while self.heap:
            urgent = self.heap[0] // self.k <= self.current
            depth = self.cluster.threads + 1 + urgent
            idle = [worker for worker in self.workers if worker.ready and worker.tasks < depth]
            if not idle:
                return
            pieces = self._next(self._together(len(idle)))
            if not pieces:
                return
            self._submit(min(idle, key=lambda worker: worker.tasks), pieces)

    def _together(self, idle: int) -> int:
        """Pieces of the next task: a call costs milliseconds of processors, however many pieces it is for."""
        if not self.seconds:
            return 1
        waiting, tasks = len(self.heap), (self.cluster.threads + 1) * sum(worker.ready for worker in self.workers)
        few = min(int(SHORT / self.seconds), -(-waiting // idle))
        many = min(int(LONG / self.seconds), waiting // tasks)
        return max(1, min(max(few, many), MOST))

    def _next(self, count: int) -> list[int]:
        """Up to so many pieces; those of later steps leave room for all rows of the step that is waited for.

        What is waited for goes without them, and what ended a worker goes alone.
        """
        pieces: list[int] = []
        while self.heap and len(pieces) < count:
            piece = self.heap[0]
            later = piece // self.k > self.current
            if later and self.later >= len(self.store) - self.k:
                break
            if pieces and (later > (pieces[0] // self.k > self.current) or self.attempts[piece]):
                break
            heapq.heappop(self.heap)
            self.slots[piece] = self.free.pop()
            self.held_by[piece // self.k] += 1
            self.later += later
            pieces.append(piece)
            if self.attempts[piece]:
                break
        return pieces

    def _submit(self, worker: Worker, pieces: list[int]) -> None:
        numbers = [int(self.plan.computed_on.flat[piece]) for piece in pieces]
        distinct = list(dict.fromkeys(numbers))
        told = [
            (
                piece,
                *self.inputs.piece(self.plan.original(piece)),
                _arrays(self.carried.begun_with(self.plan.timeline, piece)),
                distinct.index(number),
            )
            for piece, number in zip(pieces, numbers, strict=True)
        ]
        task = next(self.numbers)
        worker.asked[task] = pieces
        ref = worker.actor.work.remote(told, *(self.versions[number].ref for number in distinct))
        self._tell(ref, partial(self._answered, worker, task))

    def _tell(self, ref: Any, call: Any) -> None:
        """Have the inbox hear of an answer."""
        inbox = self.inbox
        ref.future().add_done_callback(lambda done: inbox.put(partial(call, done)))

    def _answered(self, worker: Worker, task: int, done: Any) -> None:
        pieces = worker.asked.pop(task, None)
        if pieces is None:  # others do it: this worker was given up
            return
        try:
            answer = done.result()
        except BaseException as problem:
            self._again(worker, pieces, problem)
            if not isinstance(problem, RayTaskError):
                self._give_up(worker, problem)
            return
        if isinstance(answer, str):
            raise UserError(f"a worker on node {worker.node} stopped: {answer}")
        self.deaths = 0
        seconds, computing, told = answer
        self.computing += computing
        self.made += len(pieces)
        self.busy += seconds
        self.seconds = seconds / len(pieces) if not self.seconds else 0.8 * self.seconds + 0.2 * seconds / len(pieces)
        for piece, (row, *beside) in zip(pieces, told, strict=True):
            self.store[self.slots[piece]].copy_(_tensor(row))
            loss, statistics, extras, state = (_tensors(each, self.device) for each in beside)
            self.results[piece] = Brought(loss["loss"], statistics, extras, state)
        with self.changed:
            self.changed.notify_all()

    def _again(self, worker: Worker, pieces: list[int], problem: BaseException) -> None:
        """What was under way is lost: others do it."""
        self.redone += len(pieces)
        for piece in pieces:
            self.attempts[piece] += 1
            if self.attempts[piece] >= ATTEMPTS:
                client, visit, *_ = self.inputs.piece(piece)
                raise UserError(
                    f"the work of client {client} on its visit {visit} ended {ATTEMPTS} workers, the last on node "
                    f"{worker.node} ({_first_line(problem)}): give workers more memory, or fewer workers to a node."
                )
            self.free.append(self.slots.pop(piece))
            self.held_by[piece // self.k] -= 1
            self.later -= piece // self.k > self.current
            heapq.heappush(self.heap, piece)

    def _give_up(self, worker: Worker, problem: BaseException) -> None:
        """The worker is gone: what it had under way too, and what it answered may lie in the memory of a dead node."""
        for task in list(worker.asked):
            self._again(worker, worker.asked.pop(task), problem)
        self._replace(worker)

    # -- workers that come and go

    def _staff(self) -> None:
        while len(self.workers) < self.cluster.count():
            resting = _RESTING.get(self.cluster)
            actor = resting.pop() if resting else self.remote.options(**self.cluster.options()).remote()
            worker = Worker(actor)
            self.workers.append(worker)
            self._tell(worker.actor.prepare.remote([self.spec], self.where), partial(self._prepared, worker))

    def _prepared(self, worker: Worker, done: Any) -> None:
        try:
            told = done.result()
        except BaseException as problem:
            self.deaths += 1
            if self.deaths >= STARTS + len(self.workers):
                raise UserError(
                    f"{self.deaths} workers died before they were ready ({_first_line(problem)}): "
                    "look into Ray's logs on the nodes, or give workers more memory."
                ) from None
            self._replace(worker)
            return
        worker.node, worker.place = told["node"], told["place"]
        if "problem" in told:
            raise UserError(f"a worker on node {worker.node} cannot start: {told['problem']}")
        for what, ours in made_with().items():
            theirs = told["made with"][what]
            if ours != theirs and what == "versions":
                raise UserError(
                    f"node {worker.node} has {theirs}, this one {ours}: install the same versions, else bits differ."
                )
            if ours != theirs:
                log.warning("node %s has %s %s, this one %s: last digits may differ.", worker.node, what, theirs, ours)
        worker.ready = True

    def _replace(self, worker: Worker) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
            _end(worker.actor)
            self._staff()

    def _look(self) -> None:
        """Give up workers on nodes that died, take some on nodes that were added; end where nobody finds a place."""
        self.looked = time.monotonic()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for worker in [each for each in self.workers if each.ready and each.place not in alive]:
            self._give_up(worker, RayError("its node died"))
        if self.cluster.workers is None:
            self._staff()
        if any(worker.ready for worker in self.workers):
            self.alone_since = time.monotonic()
        elif time.monotonic() - self.alone_since > PLACED_WITHIN:
            raise UserError(
                f"no worker with resources_per_worker = {self.cluster.resources} found a place in "
                f"{PLACED_WITHIN:.0f} s: ask for less, or add nodes."
            )

    def _on(self, version: int) -> NDArray[np.int64]:
        return self.order[self.bounds[version] : self.bounds[version + 1]]

    def _put(self, sent: Sent) -> Any:
        params = sent.params.detach().cpu().numpy()
        return ray.put({"params": params, "beside": (_arrays(sent.statistics), _arrays(sent.extras))})


_STARTED: list[str] = []  # the cluster that this process started and nobody else uses
_RESTING: dict[Cluster, list[Any]] = {}  # actors there of runs that are over, for the next run like them


def dismiss(but: Cluster | None = None) -> None:
    """Let actors go that wait for another run, so that others get their places."""
    for cluster in [each for each in _RESTING if each != but]:
        for actor in _RESTING.pop(cluster):
            _end(actor)


def _end(actor: Any) -> None:
    with suppress(RayError, ValueError, RuntimeError):
        ray.kill(actor)


def _first_line(problem: BaseException) -> str:
    """What an error says: of Ray's long ones the line with the cause."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    told = next((line for line in lines if "memory" in line.lower()), lines[0] if lines else "")
    return f"{type(problem).__name__}: {told}"[:300]


def made_with() -> dict[str, str]:
    """What decides about bits on a node."""
    kinds = {"versions": fingerprint.versions(), "compiled kernel": str(kernel.available())}
    return kinds | {"processor": torch.backends.cpu.get_cpu_capability()}


# ---- arrays between processes: numpy travels through the object store without a copy, tensors do not

Arrays = dict[str, Any]


def _arrays(named: Mapping[str, Tensor]) -> Arrays:
    return {name: _array(value) for name, value in named.items()}


def _array(value: Tensor) -> Any:
    held = value.detach().cpu()
    try:
        return held.numpy()
    except TypeError:  # numpy knows no bfloat16
        return str(held.dtype).removeprefix("torch."), held.contiguous().view(torch.uint8).numpy(), tuple(held.shape)


def _tensors(named: Arrays, device: torch.device) -> dict[str, Tensor]:
    return {name: _tensor(value).to(device, copy=True) for name, value in named.items()}


def _tensor(value: Any) -> Tensor:
    """A window of memory that must not be written to."""
    if isinstance(value, tuple):
        kind, content, shape = value
        return _tensor(content).view(getattr(torch, kind)).view(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the array is read-only, and nobody writes to it
        return torch.from_numpy(np.asarray(value))


# ---- on a worker


def packed(
    model: nn.Module,
    data: FederatedData,
    inputs: Inputs,
    clients: Clients,
    traits: Traits,
    settings: Mapping[str, Any],
) -> tuple[bytes, Arrays]:
    """What a worker needs: code and small things as bytes, data and frozen weights as arrays that a node has once."""
    frozen = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    empty = {id(value): nn.Parameter(torch.empty(0), requires_grad=False) for value in frozen.values()}
    bare = copy.deepcopy(model, cast(dict[int, Any], empty))
    columns = data.train.inputs if isinstance(data.train.inputs, dict) else {"": data.train.inputs}
    arrays: Arrays = {f"input.{name}": np.ascontiguousarray(column) for name, column in columns.items()}
    if data.train.labels is not None:
        arrays["labels"] = np.ascontiguousarray(data.train.labels)
    arrays |= {"indices": inputs.batches.indices, "offsets": inputs.batches.offsets}
    arrays |= {f"frozen.{name}": _array(value) for name, value in frozen.items()}
    objective = replace(clients.objective, metrics={})
    spec = Spec(bare, objective, clients.work, traits, {**settings, "backend": clients.backend}, inputs.work_faults)
    return _pickled(spec), arrays


@dataclass(frozen=True, eq=False)
class Spec:
    """The small things that a worker needs."""

    model: nn.Module
    objective: Objective
    work: Work
    traits: Traits
    settings: Mapping[str, Any]  # of Clients.of
    work_faults: WorkFaults | None


def _pickled(spec: Spec) -> bytes:
    """As bytes; what the user wrote by its code, so that no worker has to import it, if that can be done."""
    own = [module for name, module in list(sys.modules.items()) if name != "__main__" and _of_the_user(module)]
    registered = []
    try:
        for module in own:
            with suppress(ValueError):
                cloudpickle.register_pickle_by_value(module)
                registered.append(module)
        return cloudpickle.dumps(spec)
    except Exception:  # its code reads something that cannot travel
        log.debug("the user's code is imported by the workers", exc_info=True)
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)
    try:
        return cloudpickle.dumps(spec)
    except Exception as problem:
        raise UserError(
            f"the model, loss or work cannot be sent to workers ({_first_line(problem)}): use engine='local', or keep "
            "locks, files and generators out of them."
        ) from None


def _of_the_user(module: Any) -> bool:
    """Whether a module is neither installed nor Python's nor ours."""
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        return False
    return not fingerprint.of_library_file(file)


@dataclass(frozen=True)
class SharedData:
    """The training set of a worker, in memory that all workers of its node share."""

    arrays: Arrays

    def tensors(self, device: torch.device | str = "cpu") -> FederatedTensors:
        """Nothing to test on: a worker only trains."""
        columns = {n.removeprefix("input."): _tensor(v).to(device) for n, v in self.arrays.items() if "input." in n}
        inputs: Any = columns[""] if list(columns) == [""] else columns
        labels = _tensor(self.arrays["labels"]).to(device) if "labels" in self.arrays else None
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        return FederatedTensors(inputs, labels, nothing, nothing, inputs, labels)


class Bench:
    """A worker's own part: computes pieces of work, `threads` at a time, of all that it was given the most urgent."""

    def __init__(self, code: bytes, arrays: Arrays, device: str, threads: int) -> None:
        spec: Spec = cloudpickle.loads(code)
        for name, parameter in spec.model.named_parameters():
            if not parameter.requires_grad:
                parameter.data = _tensor(arrays[f"frozen.{name}"])
        batches = Batches(arrays["indices"], arrays["offsets"], spec.work, int(spec.settings["seed"]))
        self.inputs = Inputs(cast(Plan, None), batches, False, spec.work_faults)
        data = cast(FederatedData, SharedData(arrays))
        self.clients = Clients.of(
            spec.model.to(device), data, spec.work, spec.objective, device, self.inputs.draw, traits=spec.traits,
            threads=threads, **spec.settings,
        )  # fmt: skip
        self.device = torch.device(device)
        keep_freed_memory()
        self.length = sum(value.numel() for value in spec.model.parameters() if value.requires_grad)
        self.threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        self.waiting: queue.PriorityQueue[tuple[int, int, Future[Any], Any]] = queue.PriorityQueue()
        self.order = itertools.count()  # breaks ties: a piece may be asked for again

    def work(self, pieces: Sequence[tuple[Any, ...]], versions: Sequence[Any]) -> Any:
        """Seconds of the clock and of a processor, and of each piece what it brings.

        That is its row, loss, statistics, extras and what its client keeps. Where something is wrong, what.
        """
        try:
            sent = [self._sent(each) for each in versions]
            asked = [self._asked(urgency, sent[which], *piece) for urgency, *piece, which in pieces]
            seconds, spent, brought = zip(*(each.result() for each in asked), strict=True)
        except Exception as problem:
            return str(problem) if isinstance(problem, UserError) else _first_line(problem)
        return sum(seconds), sum(spent), brought

    def _asked(self, urgency: int, sent: Sent, *piece: Any) -> Future[Any]:
        """What a piece takes and brings, once nothing more urgent waits."""
        answer: Future[Any] = Future()
        self.waiting.put((urgency, next(self.order), answer, partial(self._one, sent, *piece)))
        self.threads.submit(self._do_most_urgent)
        return answer

    def _do_most_urgent(self) -> None:
        *_, answer, call = self.waiting.get_nowait()  # as many are called as wait
        began, spent = time.perf_counter(), time.thread_time()
        try:
            brought = call()
        except BaseException as problem:
            answer.set_exception(problem)
        else:
            answer.set_result((time.perf_counter() - began, time.thread_time() - spent, brought))

    def _sent(self, version: Any) -> Sent:
        statistics, extras = (_tensors(each, self.device) for each in version["beside"])
        return Sent(_tensor(version["params"]).to(self.device), statistics, extras)

    def _one(self, sent: Sent, client: int, visit: int, before: int, steps: int | None, kept: Arrays) -> Any:
        row = torch.empty(self.length, device=self.device)
        if self.clients.alone:
            state = _tensors(kept, self.device)
            found = self.clients.visit(sent, client, visit, before, steps, state, row)
            beside = (found.statistics, found.extras, found.state)
            return (_array(row), {"loss": _array(found.loss)}, *map(_arrays, beside))
        who, when = np.array([client]), np.array([visit])
        drawn, weights = self.inputs.batches.draw(who, when)
        if self.inputs.work_faults is not None:
            drawn = self.inputs.work_faults.samples(drawn, who, when)
        samples, shares = torch.from_numpy(drawn).to(self.device), torch.from_numpy(weights).to(self.device)
        losses = self.clients.compute(sent.params[None], samples, shares, row[None])
        return _array(row), {"loss": _array(losses[0])}, {}, {}, {}


def keep_freed_memory() -> None:
    """Have this process keep what it frees, up to some tens of megabytes, for the next piece of work.

    The GNU C library hands memory back once more is free than twice the largest block that was returned so far. In a
    process whose data lie in shared memory that is little, and every mini-batch would be given new pages by the kernel.
    """
    torch.empty(KEPT, dtype=torch.uint8)


def _actor() -> type:
    """The class of the actors: made in a function it travels by its code, and can say that kasync is not installed."""

    class KasyncWorker:
        def prepare(self, boxed: list[Any], device: str) -> dict[str, Any]:
            """Make ready; what this node is, or what is missing here."""
            import ray

            context = ray.get_runtime_context()
            place = context.get_node_id()
            node = f"{ray.util.get_node_ip_address()} ({place[:8]})"
            try:
                from kasync.simulator import ray as here
            except Exception as problem:
                reason = f"{type(problem).__name__}: {problem}"
                return {"node": node, "place": place, "problem": f"it has no kasync ({reason}): install it there."}
            try:
                code, arrays = ray.get(boxed[0])
                threads = max(1, int(context.get_assigned_resources().get("CPU", 1)))
                self.bench = here.Bench(code, arrays, device, threads)
            except Exception as problem:
                reason = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
                told = f"{reason}; install there what this machine has, or give the worker more memory."
                return {"node": node, "place": place, "problem": told}
            return {"node": node, "place": place, "made with": here.made_with()}

        def work(self, pieces: Any, *versions: Any) -> Any:
            return self.bench.work(pieces, versions)

    return KasyncWorker
