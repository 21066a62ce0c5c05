"""What would asynchronous training do? Replay a timeline through work and rule and see."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kasync import checks
from kasync.core import Rule
from kasync.data.federated import FederatedData
from kasync.errors import UserError
from kasync.simulator.batches import Batches
from kasync.simulator.checkpoint import Checkpoint
from kasync.simulator.clients import Clients, flat_parameters
from kasync.simulator.evaluate import evaluate
from kasync.simulator.graph import CapturedRun
from kasync.simulator.inputs import Inputs
from kasync.simulator.layers import Loss
from kasync.simulator.memory import Memory, choose
from kasync.simulator.plan import Plan
from kasync.simulator.progress import Progress
from kasync.simulator.records import History, Record
from kasync.simulator.run import CHUNK, Run
from kasync.timelines import Timeline
from kasync.work import Gradient, Work


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
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
    progress: bool = False,
) -> Simulation:
    """A run, to be looped over: `for record in simulate(...)`. What cannot work is refused before it starts.

    work         Gradient(batch_size) or LocalSGD(steps, lr, batch_size); Gradient(8) by default
    hold         "gradients" computes early and lets gradients wait, "versions" keeps models and computes at delivery;
                 both give the same numbers; "auto" takes the faster one that fits
    staleness    "true"; "published-code", the aliased semantics of the authors' code; "none", the fresh limit
    loss         (outputs, labels) -> loss of each sample; cross-entropy, or squared error for regression, by default
    checkpoint   a file; a run that was killed continues from it and yields the same records as one that was not
    """
    work = work if work is not None else Gradient(8)
    checks.count("evaluate_every", evaluate_every)
    if timeline.population > data.clients:
        raise UserError(
            f"the timeline has {timeline.population} clients but the data {data.clients}: partition it for as many."
        )
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device = {device!r}: no CUDA GPU is there; use device='cpu'.")
    plan = Plan(timeline, staleness)
    empty = np.flatnonzero(data.sizes[np.unique(timeline.clients)] == 0)
    if len(empty):
        raise UserError(
            f"{len(empty)} clients of the timeline have no sample: partition the data so that each has one."
        )
    params = flat_parameters(model).float().to(device)
    memory = choose(plan, rule, data, len(params), hold, device)
    clients = Clients.of(model, data, work, loss, device)
    inputs = Inputs(plan, Batches.of(data, work, seed), memory.hold == "gradients")
    kind = CapturedRun if torch.device(device).type == "cuda" else Run
    run = kind.begin(plan, inputs, clients, rule, params)
    place = None
    if checkpoint is not None:
        place = Checkpoint(Path(checkpoint), _identity(model, params, data, rule, plan, work, seed, memory.hold))
    return Simulation(run, data.classes, evaluate_every, memory, place, checkpoint_every, progress)


class Simulation:
    """A run that is ready: iterate over its records; `params` holds the model as far as it got."""

    def __init__(
        self,
        run: Run,
        classes: int,
        evaluate_every: int,
        memory: Memory,
        checkpoint: Checkpoint | None,
        checkpoint_every: float,
        progress: bool,
    ) -> None:
        self.run, self.classes, self.evaluate_every, self.memory = run, classes, evaluate_every, memory
        self.checkpoint, self.checkpoint_every = checkpoint, checkpoint_every
        self.timeline = run.plan.timeline
        self.history = History.empty(self.timeline.steps, self.timeline.k)
        self.done = 0
        self.progress = Progress(self.timeline.steps, self.timeline.k, str(memory)) if progress else None

    @property
    def params(self) -> Tensor:
        """[D] the server's parameters now."""
        return self.run.server.params

    def load_into(self, model: nn.Module) -> nn.Module:
        """Put the parameters into a model."""
        torch.nn.utils.vector_to_parameters(self.params.to(next(model.parameters())), model.parameters())
        return model

    def __iter__(self) -> Iterator[Record]:
        told = self._resume()
        yield from self.history.records(0, told, self.timeline, self.run.plan.reported)
        saved = time.monotonic()
        pause = self.checkpoint_every
        while self.done < self.timeline.steps:
            start, stop = self.done, min(self._next_stop(), self.timeline.steps)
            with self.run.context():
                self.history.put(start, self.run.steps(start, stop))
                if stop % self.evaluate_every == 0 or stop == self.timeline.steps:
                    self._evaluate(stop)
            self.done = stop
            if self.checkpoint is not None and (time.monotonic() - saved >= pause or stop == self.timeline.steps):
                began = time.monotonic()
                self._save()
                saved = time.monotonic()
                pause = max(self.checkpoint_every, 10 * (saved - began))  # never more than a tenth of the time
                pause = pause if self.checkpoint_every else 0.0
            for record in self.history.records(start, stop, self.timeline, self.run.plan.reported):
                if self.progress is not None:
                    self.progress.show(record)
                yield record

    def _next_stop(self) -> int:
        """The end of the next piece: the next evaluation, or a chunk further."""
        return min(self.done + CHUNK, (self.done // self.evaluate_every + 1) * self.evaluate_every)

    def _evaluate(self, step: int) -> None:
        accuracy, loss = evaluate(self.run.clients, self.run.server.params, self.classes).tolist()
        self.history.put(step - 1, {"accuracy": np.array([accuracy]), "test_loss": np.array([loss])})

    def _save(self) -> None:
        assert self.checkpoint is not None
        told = {f"history.{name}": torch.from_numpy(rows[: self.done]) for name, rows in self.history.columns.items()}
        finished = self.done == self.timeline.steps  # then nothing waits any more
        self.checkpoint.save(self.done, {**self.run.tensors(with_store=not finished), **told})

    def _resume(self) -> int:
        """Continue from the checkpoint, if there is one; the number of steps it had made."""
        found = self.checkpoint.load() if self.checkpoint is not None and self.done == 0 else None
        if found is not None:
            self.done, tensors = found
            self.history.put(
                0, {n.removeprefix("history."): t.numpy() for n, t in tensors.items() if n.startswith("history.")}
            )
            self.run.restore({name: t for name, t in tensors.items() if not name.startswith("history.")})
        return self.done


def _identity(
    model: nn.Module, params: Tensor, data: FederatedData, rule: Rule, plan: Plan, work: Work, seed: int, hold: str
) -> dict[str, str]:
    """What makes a run the one it is, as short texts."""
    samples = (data.train.labels, data.train.inputs[:64], data.indices, data.offsets)
    return {
        "model": f"{type(model).__name__} with {len(params)} parameters starting at {_digest(params.cpu().numpy())}",
        "data": f"{data.name} scaled {data.scale} {_digest(*samples)}",
        "rule": re.sub(r" at 0x[0-9a-f]+", "", repr(rule)),
        "timeline": plan.timeline.fingerprint()[:16],
        "staleness": plan.semantics,
        "work": repr(work),
        "seed": str(seed),
        "hold": hold,
    }


def _digest(*arrays: NDArray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
