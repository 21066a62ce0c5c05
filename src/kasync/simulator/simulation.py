"""Runs asynchronous training in simulation: replays a timeline through work and rule and records what happens."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kasync import fingerprint, notebook
from kasync.checkpoint import Checkpoint, identity_of
from kasync.core import Rule
from kasync.data.federated import FederatedData
from kasync.errors import UserError, unknown
from kasync.faults import Fault, inject
from kasync.faults.kinds import listed
from kasync.faults.work import WorkFaults
from kasync.optimizers import PREFIX
from kasync.simulator.evaluate import Evaluation, PerClient, at_once, evaluate, per_client
from kasync.simulator.graph import CapturedRun
from kasync.simulator.memory import Memory, available, choose, size, spilling
from kasync.simulator.plan import Inputs, Plan, next_stop
from kasync.simulator.records import METRIC, History, Progress, Record
from kasync.simulator.run import BLOCK, Carried, Run, new_store
from kasync.simulator.validation import check
from kasync.timelines import Timeline
from kasync.work import Gradient, Local, Work
from kasync.work.batches import Batches
from kasync.work.clients import MOST, Clients, failed
from kasync.work.loop import Bench, Cost, Sent, Visit, bytes_of, flat_parameters
from kasync.work.objective import Loss, Objective, copied
from kasync.work.trial import CHANCE, Traits, Watch, first_line, out_of_memory, sharing, tried, untouched

ENGINES = ("local", "ray")
FIRST_CHECKPOINT = 5.0  # seconds: what is killed early loses little


def simulate(
    model: nn.Module,
    data: FederatedData,
    rule: Rule,
    timeline: Timeline,
    work: Work | None = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    hold: str = "auto",
    staleness: str = "true",
    evaluate_every: int = 100,
    loss: Loss | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    buffers: str = "average",
    precision: str = "float32",
    backend: str = "auto",
    faults: Fault | Iterable[Fault] | None = None,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
    progress: bool = False,
    engine: str = "local",
    workers: int | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    address: str | None = None,
) -> Simulation:
    """A run, to be looped over: `for record in simulate(...)`. What cannot work is refused before it starts.

    work         Gradient(8) by default; Local(batch_size, steps= or epochs=, lr=, optimizer=) or Custom(loop, ...)
    hold         "gradients" computes early and lets gradients wait, "versions" keeps models and computes at delivery;
                 both give the same numbers; "auto" takes the faster one that fits, on the device, the host or disk
    staleness    "true"; "published-code", the aliased semantics of the authors' code; "none", the fresh limit
    loss         (outputs, labels) -> loss of each sample, or (model, batch) -> losses or their mean; by default
                 cross-entropy for classes, binary cross-entropy for booleans, squared error for numbers
    metrics      name -> function of all test outputs and labels, beside accuracy and loss
    buffers      of layers with statistics: "average" over the deliveries of a step, "local" to each client, "frozen"
    precision    "float32", or "bfloat16": autocast in the clients' work, never in the rule
    backend      "chain", "vmap", "loop" or "auto", see kasync.work.clients; `simulation.backend` says which
    faults       what goes wrong, see kasync.faults; those that concern arrivals may make the timeline shorter
    checkpoint   a file; a run that was killed continues from it and yields the same records as one that was not
    engine       "local", or "ray": clients' work is computed by `workers` of the Ray cluster at `address`, each with
                 `resources_per_worker` ({"num_cpus": 1}, or {"num_gpus": 0.25}); as many as it holds, and a cluster of
                 this machine, without them. The numbers are those of one machine with hold="versions"
    """
    work = work if work is not None else Gradient(8)
    check(
        model, data, rule, timeline, work, seed, device, evaluate_every, checkpoint_every, buffers, precision, metrics,
        checkpoint
    )  # fmt: skip
    wrong = listed(faults)
    plan = Plan(inject(timeline, wrong, seed), staleness)
    work_faults, read = WorkFaults.of(wrong, data, timeline.population, seed)
    objective = Objective.of(data, loss, metrics, precision)
    length = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    cluster = _cluster(engine, address, workers, resources_per_worker, device)
    if cluster is None:
        choose(plan, rule, read, length, hold, device)  # before the model is copied
    template = placed(model, device)
    traits = tried(template, read.tensors(device), objective)
    params = flat_parameters(template)
    rule = rule.shaped(parameter.shape for parameter in model.parameters() if parameter.requires_grad)
    path = Path(checkpoint) if checkpoint is not None else None
    if path is not None and hold == "auto":
        hold = identity_of(path).get("hold", hold)  # what was begun one way goes on the same way
    batches = Batches.of(data, work, seed)
    if not isinstance(work, Gradient | Local):
        traits = _with_loop(template, read, objective, work, traits, buffers, batches, plan)
    ragged = getattr(plan.timeline, "local_steps", None) is not None
    inputs = Inputs(plan, batches, True, work_faults)
    settings: dict[str, Any] = {"backend": backend, "buffers": buffers, "seed": seed, "ragged": ragged}
    clients = Clients.of(template, read, work, objective, device, inputs.draw, traits=traits, **settings)
    carried = _carried(template, traits, work)
    if cluster is None:
        cost = _measured(clients, inputs, plan, params, carried)
        clients.room.samples = at_once(params.device, cost.sample)
        way = "loop" if clients.alone else clients.backend
        given = (plan, rule, read, len(params), hold, device, *_pieces(clients, plan, cost, batches.width), way)
        memory = choose(*given, cost.kept, cost.brought, _outputs(clients, params, carried))
        clients.limit(memory.workers)
    else:
        memory = cluster.memory(plan, rule, read, len(params), hold, device)
    drawn = not clients.alone and cluster is None
    inputs = Inputs(plan, batches, memory.hold == "gradients", work_faults, drawn)
    identity = _identity(model, data, rule, plan, work, seed, memory.hold, device, objective, buffers, clients, wrong)
    place = None
    if path is not None:
        place = Checkpoint(path, identity())
        place.ready()
    if cluster is not None:
        run: Run = cluster.run(memory, plan, inputs, clients, rule, params, carried, template, read, traits, settings)
        return Simulation(run, data, evaluate_every, memory, place, checkpoint_every, progress, identity)
    captured = torch.device(device).type == "cuda" and not clients.alone and memory.place == "device"
    kind = CapturedRun if captured else Run
    run = kind.begin(plan, inputs, clients, rule, params, _store(memory, plan, params), carried)
    return Simulation(run, data, evaluate_every, memory, place, checkpoint_every, progress, identity)


def _cluster(
    engine: str, address: str | None, workers: int | None, resources: Mapping[str, float] | None, device: str
) -> Any:
    """The Ray cluster that computes clients' work; None where this machine does it alone."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "ray":
        from kasync.simulator.ray import Cluster

        return Cluster.connect(address, workers, resources, device)
    for name, value in (("address", address), ("workers", workers), ("resources_per_worker", resources)):
        if value is not None:
            raise UserError(f"{name} = {value!r} is for engine='ray': give that too, or leave {name} out.")
    return None


def placed(model: nn.Module, device: str) -> nn.Module:
    """A copy of the model on the device, trained in float32; on a CPU it shares what is frozen."""
    made = sharing(model) if torch.device(device).type == "cpu" else copy.deepcopy(model).to(device)
    for parameter in made.parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    return made


def _outputs(clients: Clients, params: Tensor, carried: Carried) -> int:
    """Bytes of the outputs for the whole test set, which metrics read together."""
    if not clients.objective.metrics:
        return 0
    inputs = clients.data.test_inputs
    one = clients.outputs(Sent(params, *carried.now), copied(inputs, slice(0, 1)))
    count = len(inputs if isinstance(inputs, Tensor) else next(iter(inputs.values())))
    return 2 * count * bytes_of({"": one})  # in parts, and in one piece


def _pieces(clients: Clients, plan: Plan, cost: Cost, width: int) -> tuple[int, int]:
    """Bytes of what one thread has under way, and how many do so; on a GPU of a client, and how many go into a call."""
    looking = (clients.room.samples or 0) * cost.sample  # while the model is evaluated
    if clients.alone:
        return max(cost.piece, looking if clients.pool is not None else looking // clients.beside), clients.beside
    if clients.pool is None:
        return cost.piece, max(plan.timeline.k, min(BLOCK, int(plan.bounds[1])))
    together = MOST if isinstance(clients.work, Gradient) else 1
    return max(cost.piece + (together - 1) * width * cost.sample, looking), clients.threads


def _measured(clients: Clients, inputs: Inputs, plan: Plan, params: Tensor, carried: Carried) -> Cost:
    """What a piece of work needs and leaves, measured on the first client that works."""
    client, batches = int(plan.timeline.clients[0, 0]), inputs.batches
    steps = None if inputs.local_steps is None else int(inputs.local_steps[0, 0])
    drawn = clients.draw(client, 0, steps)
    rows = np.resize(drawn[0], batches.width)  # as long as a batch can be
    device = params.device
    visit = Visit(client, 0, 0, [torch.from_numpy(each).to(device) for each in drawn], {})
    try:
        _try_smallest(clients, batches, plan)
        sent = Sent(params, *carried.now)
        return clients.new_bench().measure(
            sent, visit, clients.data.inputs, clients.data.labels, torch.from_numpy(rows).to(device)
        )
    except Exception as problem:
        if not out_of_memory(problem):
            raise failed(visit, problem) from problem
    free = size(available(str(clients.data.indices.device)))
    raise UserError(f"one mini-batch of this model does not fit into {free}: use a smaller batch_size or model.")


def _try_smallest(clients: Clients, batches: Batches, plan: Plan) -> None:
    """Refuse a model that fails on a mini-batch of one sample, as batch norm does, where a client has such ones."""
    present = np.unique(plan.timeline.clients)
    alone = present[batches.smallest(present) == 1]
    if not len(alone):
        return
    client = int(alone[0])
    row = batches.indices[batches.offsets[client] : batches.offsets[client] + 1].astype(np.int64)
    try:
        clients.new_bench().try_on(clients.data.inputs, clients.data.labels, torch.from_numpy(row))
    except Exception as problem:
        if out_of_memory(problem):
            raise
        raise UserError(
            f"the model fails on a mini-batch of one sample ({first_line(problem)}), which {len(alone)} clients have, "
            f"client {client} first: choose another batch_size, leave such clients out of the timeline, or take group "
            "norm instead of batch norm."
        ) from problem


def _with_loop(
    model: nn.Module,
    data: FederatedData,
    objective: Objective,
    work: Work,
    traits: Traits,
    buffers: str,
    batches: Batches,
    plan: Plan,
) -> Traits:
    """What a training loop of the user's adds: whether it draws random numbers, seen on two mini-batches."""
    client, params = int(plan.timeline.clients[0, 0]), flat_parameters(model)
    tensors = data.tensors(str(params.device))
    rows = [torch.from_numpy(each).to(params.device) for each in batches.visit(client, 0)[:2]]
    visit = Visit(client, 0, 0, rows, {})
    bench = Bench(model, objective, work, replace(traits, draws=False, loose=False), buffers, 0)
    sent = Sent(params, *_carried(model, traits, work).now)
    try:
        with CHANCE, untouched(bench.model) as generators, (seen := Watch(bench.model, generators)):
            bench.do(sent, visit, tensors.inputs, tensors.labels, torch.empty_like(params))
    except Exception as problem:
        if not out_of_memory(problem):
            raise failed(visit, problem) from problem
    return replace(traits, draws=traits.draws or seen.inside or seen.outside, loose=traits.loose or seen.outside)


def _store(memory: Memory, plan: Plan, params: Tensor) -> Tensor:
    """Where gradients or versions wait."""
    rows = (plan.rows if memory.hold == "gradients" else plan.versions) + 1
    if memory.place != "disk":
        return new_store(rows, params, "cpu" if memory.place == "host" else None)
    file = spilling() / f"kasync-{os.getpid()}-{id(plan):x}.rows"
    try:
        return new_store(rows, params, "cpu", str(file))
    finally:
        with suppress(PermissionError):  # Windows keeps a file that is mapped
            file.unlink(missing_ok=True)  # the mapping lives on, and nothing is left behind


def _carried(model: nn.Module, traits: Traits, work: Work) -> Carried:
    """The buffers that training changes, as they are at first, and what the work sends beside the model."""
    held = dict(model.named_buffers())
    statistics = {name: held[name].detach().clone() for name in traits.changed}
    return Carried(statistics, {name: value.detach().clone() for name, value in work.sends(model).items()})


class Simulation:
    """A run that is ready: iterate over its records; `params` holds the model as far as it got."""

    def __init__(
        self,
        run: Run,
        data: FederatedData,
        evaluate_every: int,
        memory: Memory,
        checkpoint: Checkpoint | None,
        checkpoint_every: float,
        progress: bool,
        identity: Callable[[], dict[str, str]],
    ) -> None:
        self.run, self.data, self.evaluate_every, self.memory = run, data, evaluate_every, memory
        self.classes, self.identify = data.classes, identity
        self.checkpoint, self.checkpoint_every = checkpoint, checkpoint_every
        self.timeline = run.plan.timeline
        self.history = History.empty(self.timeline.steps, self.timeline.k, tuple(run.clients.objective.metrics))
        self.done = 0
        self.progress = Progress(self.timeline.steps, self.timeline.k, str(memory)) if progress else None
        self._resume()

    def __repr__(self) -> str:
        columns = self.history.columns
        looked = np.flatnonzero(columns["evaluated"][: self.done] == 1)
        told = ""
        if len(looked):
            found = {"accuracy": columns["accuracy"][looked[-1]], "test loss": columns["test_loss"][looked[-1]]}
            told = next((f", {name} {value:.4f}" for name, value in found.items() if not np.isnan(value)), "")
        return f"Simulation({self.run.rule.name}: step {self.done} of {self.timeline.steps}{told})"

    def _repr_html_(self) -> str:
        words = f"{self!r}; {self.backend} backend, {self.memory}"
        return notebook.card(words, self._draw if self.done else None)

    def _draw(self, figure: Any) -> None:
        """Accuracy or test loss where the model was evaluated, and the staleness of what was delivered."""
        left, right = figure.subplots(1, 2)
        columns, steps = self.history.columns, np.arange(1, self.done + 1)
        known = {"test accuracy": columns["accuracy"], "test loss": columns["test_loss"], "loss": columns["loss"]}
        for name, values in known.items():
            there = np.flatnonzero(~np.isnan(values[: self.done]))
            if len(there):
                left.plot(steps[there], values[there], color="#35608d", marker="." if len(there) < 60 else None)
                left.set(xlabel="step", ylabel=name)
                break
        right.plot(steps, self.run.plan.reported[: self.done].mean(1), color="#35608d", linewidth=0.8)
        right.set(xlabel="step", ylabel="mean staleness", ylim=(0, None))

    @property
    def params(self) -> Tensor:
        """[D] the server's trainable parameters after `done` steps.

        On a CPU those are the steps whose records were yielded; on a GPU several steps are made together, so that it
        is so at every record with an evaluation.
        """
        return self.run.server.params

    @property
    def backend(self) -> str:
        """What computes the clients' work: chain, vmap or loop."""
        return self.run.clients.backend

    @property
    def fingerprint(self) -> str:
        """A digest of everything that makes this run's numbers."""
        return fingerprint.of(self.identify())

    @property
    def latest(self) -> Record:
        """What was recorded of the last step made."""
        if not self.done:
            raise UserError("no step was made yet: loop over the simulation first.")
        return next(self.history.records(self.done - 1, self.done, self.timeline, self.run.plan.reported))

    def load_into(self, model: nn.Module) -> nn.Module:
        """Put the parameters, and the buffers that training changed, into a model."""
        chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
        count, held = sum(parameter.numel() for parameter in chosen), dict(model.named_buffers())
        if count != len(self.params) or not held.keys() >= self.run.carried.statistics.keys():
            raise UserError(
                f"the model has {count} trained parameters and the run {len(self.params)}, or other buffers: load into "
                "a model of the same kind, with the same parameters frozen."
            )
        torch.nn.utils.vector_to_parameters(self.params.to(chosen[0]), chosen)
        for name, value in self.run.carried.statistics.items():
            held[name].copy_(value)
        return model

    def state_dict(self) -> dict[str, Tensor]:
        """The model as it is now, by the names of its arrays: for safetensors or model.load_state_dict."""
        model = self.load_into(copy.deepcopy(self.run.clients.new_bench().model))
        return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}

    def per_client(self, rows: str = "held-out", clients: Iterable[int] | None = None) -> PerClient:
        """How good the model is for each client: on rows held out for it, or on those it trains on ('train')."""
        chosen = None if clients is None else list(clients)
        with self.run.context():
            return per_client(self.run.clients, self.run.sent, self.data, rows, chosen)

    def __iter__(self) -> Iterator[Record]:
        yield from self.history.records(0, self.done, self.timeline, self.run.plan.reported)
        try:
            yield from self._made()
        finally:
            self.run.rest()

    def _made(self) -> Iterator[Record]:
        """Make the steps that are left, and yield their records."""
        saved = time.monotonic()
        pause = min(FIRST_CHECKPOINT, self.checkpoint_every)
        while self.done < self.timeline.steps:
            stop = next_stop(self.done, self.evaluate_every, self.timeline.steps)
            for rows in self.run.steps(self.done, stop):
                start = self.done
                self.history.put(start, rows)
                self.done = start + len(rows["loss"])
                if self.done == stop:
                    self._evaluate_at(stop)
                    if self.checkpoint is not None and (time.monotonic() - saved >= pause or self.over):
                        began = time.monotonic()
                        self._save()
                        saved = time.monotonic()
                        pause = max(self.checkpoint_every, 10 * (saved - began))  # never more than a tenth of the time
                        pause = pause if self.checkpoint_every else 0.0
                for record in self.history.records(start, self.done, self.timeline, self.run.plan.reported):
                    if self.progress is not None:
                        self.progress.show(record)
                    yield record

    @property
    def over(self) -> bool:
        """Whether every step was made."""
        return self.done == self.timeline.steps

    def _evaluate_at(self, step: int) -> None:
        if step % self.evaluate_every and not self.over:
            return
        with self.run.context():
            self.judged(step, evaluate(self.run.clients, self.run.sent))

    def judged(self, step: int, found: Evaluation) -> None:
        """Write down how good the model was after this step."""
        told = {"evaluated": 1.0, "accuracy": found.accuracy, "test_loss": found.loss}
        told |= {METRIC + name: value for name, value in found.metrics.items()}
        self.history.put(step - 1, {name: np.array([value]) for name, value in told.items()})

    def _save(self) -> None:
        assert self.checkpoint is not None
        told = {f"history.{name}": torch.from_numpy(rows[: self.done]) for name, rows in self.history.columns.items()}
        finished = self.over  # then nothing waits any more
        self.checkpoint.save(self.done, {**self.run.tensors(with_store=not finished), **told})

    def _resume(self) -> None:
        """Continue from the checkpoint, if there is one."""
        found = self.checkpoint.load() if self.checkpoint is not None else None
        if found is None:
            return
        self.done, tensors = found
        told = {n.removeprefix("history."): t for n, t in tensors.items() if n.startswith("history.")}
        state = {name: value for name, value in tensors.items() if not name.startswith("history.")}
        self._check(told, state)
        self.history.put(0, {name: rows.numpy() for name, rows in told.items()})
        self.run.restore(state)

    def _check(self, told: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        """Refuse what a save of this run could not have written, however good its checksum is."""
        finished = self.over
        ours = {name: (each.shape, each.dtype) for name, each in self.run.tensors(with_store=not finished).items()}
        state = {name: each for name, each in state.items() if name in ours or not _grows(name)}
        theirs = {name: (each.shape, each.dtype) for name, each in state.items()}
        later = [name for name in state if name not in ours]  # an optimiser has its state from the first step on
        rows = {name: (self.done, *column.shape[1:]) for name, column in self.history.columns.items()}
        if (
            not 0 <= self.done <= self.timeline.steps
            or {name: kind for name, kind in theirs.items() if name in ours} != ours
            or not all(name.startswith(f"server.memory.{PREFIX}") for name in later)
            or not all(state[name].shape in ((), self.params.shape) for name in later)
            or {name: tuple(each.shape) for name, each in told.items()} != rows
            or not all(each.dtype.is_floating_point and each.element_size() >= 4 for each in told.values())
        ):
            assert self.checkpoint is not None
            raise UserError(f"checkpoint {self.checkpoint.path} cannot be of this run: delete it to start again.")


def _grows(name: str) -> bool:
    """Whether a checkpoint may have this beside what a run begins with: what clients keep and what waits or is sent."""
    return name.startswith(("carried.version.", "carried.waiting.", "carried.client."))


def _identity(
    model: nn.Module,
    data: FederatedData,
    rule: Rule,
    plan: Plan,
    work: Work,
    seed: int,
    hold: str,
    device: str,
    objective: Objective,
    buffers: str,
    clients: Clients,
    faults: tuple[Fault, ...],
) -> Callable[[], dict[str, str]]:
    """What makes a run the one it is, as short texts; worked out when it is asked for, since it reads the data."""

    def texts() -> dict[str, str]:
        count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        kind = torch.device(device).type
        matmul = torch.get_float32_matmul_precision() if kind == "cuda" else "highest"
        return {
            "model": f"{type(model).__name__} with {count} parameters {fingerprint.of(model)}",
            "data": f"{data.name} scaled {data.scale} {_content(data)}",
            "rule": f"{rule.name} with lr {rule.lr} {fingerprint.of(rule)}",
            "loss": fingerprint.of(objective.loss),
            "metrics": " ".join(f"{name} {fingerprint.of(each)}" for name, each in sorted(objective.metrics.items())),
            "timeline": plan.timeline.fingerprint()[:16],
            "staleness": plan.semantics,
            "work": f"{work} with {', '.join(map(repr, faults)) or 'no faults'} {fingerprint.of(work, faults)}",
            "buffers": buffers,
            "seed": str(seed),
            "hold": hold,
            "backend": clients.backend,
            "device": kind,
            "precision": objective.precision if matmul == "highest" else f"{objective.precision}, {matmul} products",
            "versions": fingerprint.versions(),
        }

    return texts


def _content(data: FederatedData) -> str:
    """A digest of every sample and of who holds it."""
    held = [(samples.inputs, samples.labels) for samples in (data.train, data.test)]
    return fingerprint.of(held, data.indices, data.offsets, data.classes)
