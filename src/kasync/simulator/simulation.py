"""What would asynchronous training do? Replay a timeline through work and rule and see."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kasync.checkpoint import Checkpoint, identity_of
from kasync.core import Rule
from kasync.data.federated import FederatedData
from kasync.errors import UserError
from kasync.faults import Fault, struck
from kasync.faults.kinds import listed
from kasync.faults.spoilers import Spoilers
from kasync.optimizers import PREFIX
from kasync.simulator import border
from kasync.simulator.evaluate import evaluate
from kasync.simulator.graph import CapturedRun
from kasync.simulator.inputs import Inputs
from kasync.simulator.memory import Memory, choose
from kasync.simulator.plan import Plan
from kasync.simulator.progress import Progress
from kasync.simulator.records import History, Record
from kasync.simulator.run import CHUNK, Run
from kasync.timelines import Timeline
from kasync.work import Gradient, Work
from kasync.work.batches import Batches
from kasync.work.clients import Clients, default_loss, flat_parameters
from kasync.work.layers import Loss


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
    faults: Fault | Iterable[Fault] | None = None,
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
    faults       what goes wrong, see kasync.faults; those that concern arrivals may make the timeline shorter
    checkpoint   a file; a run that was killed continues from it and yields the same records as one that was not
    """
    work = work if work is not None else Gradient(8)
    border.check(model, data, rule, timeline, work, seed, device, evaluate_every, checkpoint_every)
    wrong = listed(faults)
    plan = Plan(struck(timeline, wrong, seed), staleness)
    spoilers, read = Spoilers.of(wrong, data, timeline.population, seed)
    formula = loss or default_loss(data)
    border.check_fit(model, data, formula)
    params = flat_parameters(model).float().to(device)
    rule = rule.shaped(parameter.shape for parameter in model.parameters())
    path = Path(checkpoint) if checkpoint is not None else None
    if path is not None and hold == "auto":
        hold = identity_of(path).get("hold", hold)  # what was begun one way goes on the same way
    memory = choose(plan, rule, read, len(params), hold, device)
    place = None
    if path is not None:
        place = Checkpoint(path, _identity(model, params, data, rule, plan, work, seed, memory.hold, loss, wrong))
        place.ready()
    clients = Clients.of(model, read, work, formula, device)
    inputs = Inputs(plan, Batches.of(data, work, seed), memory.hold == "gradients", spoilers)
    kind = CapturedRun if torch.device(device).type == "cuda" else Run
    run = kind.begin(plan, inputs, clients, rule, params)
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
        self._resume()

    @property
    def params(self) -> Tensor:
        """[D] the server's parameters now."""
        return self.run.server.params

    @property
    def latest(self) -> Record:
        """What was recorded of the last step made."""
        return next(self.history.records(self.done - 1, self.done, self.timeline, self.run.plan.reported))

    def load_into(self, model: nn.Module) -> nn.Module:
        """Put the parameters into a model."""
        torch.nn.utils.vector_to_parameters(self.params.to(next(model.parameters())), model.parameters())
        return model

    def __iter__(self) -> Iterator[Record]:
        yield from self.history.records(0, self.done, self.timeline, self.run.plan.reported)
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
        self.judged(step, *evaluate(self.run.clients, self.run.server.params, self.classes).tolist())

    def judged(self, step: int, accuracy: float, loss: float) -> None:
        """Write down how good the model was after this step."""
        told = {"evaluated": 1.0, "accuracy": accuracy, "test_loss": loss}
        self.history.put(step - 1, {name: np.array([value]) for name, value in told.items()})

    def _save(self) -> None:
        assert self.checkpoint is not None
        told = {f"history.{name}": torch.from_numpy(rows[: self.done]) for name, rows in self.history.columns.items()}
        finished = self.done == self.timeline.steps  # then nothing waits any more
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
        finished = self.done == self.timeline.steps
        ours = {name: (each.shape, each.dtype) for name, each in self.run.tensors(with_store=not finished).items()}
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


def _identity(
    model: nn.Module,
    params: Tensor,
    data: FederatedData,
    rule: Rule,
    plan: Plan,
    work: Work,
    seed: int,
    hold: str,
    loss: Loss | None,
    faults: tuple[Fault, ...],
) -> dict[str, str]:
    """What makes a run the one it is, as short texts."""
    samples = (data.train.labels, data.train.inputs, data.indices, data.offsets, data.test.labels, data.test.inputs)
    return {
        "model": f"{type(model).__name__} with {len(params)} parameters starting at {_digest(params.cpu().numpy())}",
        "data": f"{data.name} scaled {data.scale} {_digest(*samples)}",
        "rule": _words(rule),
        "loss": "the default" if loss is None else _words(loss),
        "timeline": plan.timeline.fingerprint()[:16],
        "staleness": plan.semantics,
        "work": " with ".join(map(repr, (work, *faults))),
        "seed": str(seed),
        "hold": hold,
    }


def _words(thing: object) -> str:
    """The thing as text that is the same in another process; a function with what it computes."""
    code = getattr(thing, "__code__", None)
    body = f" {_digest(np.frombuffer(code.co_code, dtype=np.uint8))} {code.co_names}" if code is not None else ""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing)) + body


def _digest(*arrays: NDArray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
