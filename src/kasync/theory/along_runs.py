"""The theorems beside a run: their two sides and constants, measured while the run is repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kasync.arrivals import Arrivals
from kasync.core import Part, Rule, ServerState, Step
from kasync.data.federated import FederatedData, scaled
from kasync.errors import UserError
from kasync.faults import Fault
from kasync.simulator import Record, simulate
from kasync.theory.measure import Measured, MeasuredStageTwo, ModelTask, measure_constants, measure_stage_two
from kasync.theory.theorems import Bound, Floats, StageOne, StageTwo, theorem_one, theorem_two
from kasync.timelines import Timeline
from kasync.work import Gradient, Work
from kasync.work.clients import one_thread_each
from kasync.work.objective import default_loss

SPREAD_GROWTH = 0.02  # M_e: V_j >= 0 needs it small, and sigma_e can take the rest
PLACES = 4  # points of a stage at which constants are measured
CLIENTS, DRAWS = 12, 16  # clients looked at, and batches of each


@dataclass(frozen=True, eq=False)
class Chapter:
    """One stage of a run: the theorem about it, with the constants measured along it."""

    stage: int
    constants: StageOne | StageTwo
    measured: Measured
    measured_two: MeasuredStageTwo | None
    norms: Floats  # [J] |grad F(w_j)|^2, measured at every `every`-th step and interpolated
    every: int

    @property
    def bound(self) -> Bound:
        return self.after(self.constants.steps)

    def after(self, steps: int) -> Bound:
        """The theorem for the first steps of the stage."""
        rates = self.constants.rates()[:steps]
        if isinstance(self.constants, StageTwo):
            return theorem_two(replace(self.constants, steps=steps, learning_rates=rates))
        squares = self.constants.squares()[:steps]
        return theorem_one(replace(self.constants, steps=steps, learning_rates=rates, squared_weights=squares))


@dataclass(frozen=True, eq=False)
class Problem:
    """What is trained, as the theorems see it."""

    model: nn.Module
    data: FederatedData
    rule: Rule
    loss: Any
    k: int
    batch_size: int

    @classmethod
    def of(
        cls, model: nn.Module, data: FederatedData, rule: Rule, timeline: Timeline, work: Work, loss: Any
    ) -> Problem:
        """Refuses what no theorem here is about."""
        if rule.optimizer is not None:
            raise UserError("the theorems are about plain steps: use optimizer 'none'.")
        if not isinstance(work, Gradient):
            raise UserError(f"work {type(work).__name__}: the theorems are about one gradient, use work 'gradient'.")
        return cls(model, data, rule, loss or default_loss(data), timeline.k, work.batch_size)

    @cached_property
    def gradient(self) -> Callable[[Tensor], Tensor]:
        """params [D] -> grad F [D]"""
        return whole_gradient(self.model, self.data, self.loss)

    @cached_property
    def task(self) -> ModelTask:
        tensors, scale = self.data.tensors(), self.data.scale

        def samples(client: int) -> tuple[Tensor, Tensor]:
            rows = tensors.indices[tensors.offsets[client] : tensors.offsets[client + 1]]
            return scaled(tensors.inputs[rows], scale), tensors.labels[rows]

        return ModelTask(self.model, lambda *pair: self.loss(*pair).mean(), samples, self.batch_size)

    @property
    def momentum(self) -> float:
        return next((float(part.momentum) for part in self.rule.parts if hasattr(part, "momentum")), 0.0)

    def measured(self, points: list[Floats]) -> Measured:
        """The constants at these parameters."""
        return measure_constants(
            self.task.client_gradient,
            self.task.batch_gradient,
            points,
            _spaced(range(self.data.clients), CLIENTS),
            self.batch_size,
            DRAWS,
            lambda params: self.gradient(torch.from_numpy(params).float()).double().numpy(),
            self.task.hessian_vector,
        )

    def value(self, params: Floats) -> float:
        """F at these parameters; it bounds F - F*, since a cross-entropy or a squared error is at least 0."""
        return float(np.mean([self.task.client_loss(params, client) for client in range(self.data.clients)]))

    def stage_one(self, found: Measured, start: Floats) -> StageOne:
        return StageOne(
            smoothness=found.smoothness.value,
            gradient_noise=found.gradient_noise.value,
            noise_growth=found.noise_growth.value,
            heterogeneity=found.heterogeneity.value,
            batch_size=self.batch_size,
            k=self.k,
            steps=1,
            max_staleness=0,
            learning_rates=1.0,
            initial_gap=self.value(start),
            momentum=self.momentum,
        )


def chapters(
    model: nn.Module,
    data: FederatedData,
    rule: Rule,
    timeline: Timeline,
    work: Work,
    *,
    loss: Any = None,
    faults: Sequence[Fault] = (),
    looks: int = 60,
    **options: Any,
) -> tuple[Chapter, ...]:
    """Make the run, measuring at about `looks` steps, and hold each of its stages against its theorem.

    `options` are those of kasync.simulate: seed, staleness, hold.
    """
    if looks < 2:
        raise UserError(f"looks = {looks}: measure at 2 steps of the run or more.")
    if faults:
        raise UserError(f"{faults[0].kind} is a fault, which no theorem here is about: leave faults out.")
    problem = Problem.of(model, data, rule, timeline, work, loss)
    if rule.table_rows:
        raise UserError(f"rule {rule.name!r} adds what it remembers of clients, which no theorem here is about.")
    witness = Witness(problem.gradient, max(1, timeline.steps // looks))
    watched = replace(rule, parts=(*rule.parts, witness))
    run = simulate(model, data, watched, timeline, work, loss=loss, evaluate_every=timeline.steps, **options)
    records = [record for record in run if not record.skipped]  # the witness counts updates, which a skip is not
    stages = np.array([record.stage for record in records])
    written = []
    for stage in (1, 2):
        inside = sorted(number for number in witness.seen if number < len(stages) and stages[number] == stage)
        if len(inside) < 2:
            continue
        told = [record for record in records[inside[0] :] if record.stage == stage]
        with one_thread_each():  # small products: several threads would wait for each other
            written.append(_chapter(stage, problem, told, witness, inside))
    return tuple(written)


def constants_at_start(
    model: nn.Module, data: FederatedData, rule: Rule, timeline: Timeline, work: Work, *, loss: Any = None
) -> StageOne:
    """Theorem 1's constants of a task where its training begins; k, steps, staleness and rate are to be replaced."""
    problem = Problem.of(model, data, rule, timeline, work, loss)
    start = problem.task.params()
    with one_thread_each():
        return problem.stage_one(problem.measured([start]), start)


def _chapter(stage: int, problem: Problem, records: list[Record], witness: Witness, inside: list[int]) -> Chapter:
    """The stage's records from the first that the witness saw on."""
    start = witness.points[inside[0]]
    found = problem.measured([witness.points[number] for number in _spaced(inside, PLACES)])
    weights = np.array([np.nan_to_num(record.weights) for record in records], dtype=np.float64)  # [J, k]
    sums = weights.sum(axis=1)
    rates = np.array([record.lr for record in records]) * sums  # weights that do not sum to one belong to the rate
    seen = [witness.seen[number] for number in inside]
    logs = np.log([max(one.squared_norm, 1e-300) for one in seen])
    norms = np.exp(np.interp(np.arange(len(records)), np.asarray(inside) - inside[0], logs))
    if stage == 1:
        one = replace(
            problem.stage_one(found, start),
            steps=len(records),
            max_staleness=max(int(record.staleness.max()) for record in records),
            learning_rates=rates,
            squared_weights=np.square(weights / sums[:, None]).sum(axis=1),
        )
        return Chapter(1, one, found, None, norms, witness.every)
    selected = measure_stage_two(seen, SPREAD_GROWTH)
    two = StageTwo(
        smoothness=found.smoothness.value,
        estimate_error=selected.estimate_error.value,
        spread=selected.spread.value,
        spread_growth=selected.spread_growth.value,
        clip_ratio=selected.clip_ratio.value,
        steps=len(records),
        learning_rates=rates,
        initial_gap=problem.value(start),
        momentum=problem.momentum,
    )
    return Chapter(2, two, found, selected, norms, witness.every)


def _spaced(values: range | list[int], most: int) -> list[int]:
    """At most so many of the values, evenly spaced, the first and the last among them."""
    places = np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))
    return [values[place] for place in places]


# ---- the witness


CHUNK = 1000  # samples of the whole gradient at once


@dataclass(frozen=True)
class Seen:
    """One step as the witness saw it, all of it from inner products."""

    squared_norm: float  # |grad F(w_j)|^2
    spread: float
    squared_length: float
    ratio: float
    error: float


@dataclass(frozen=True, eq=False)
class Witness(Part):
    """grad F joins the span of a step, so that its length and its distance from the estimate can be read off.

    It changes nothing: no gradient has a share in it. Between the steps it looks at, a row of zeros takes its place.
    """

    gradient: Callable[[Tensor], Tensor]  # params [D] -> grad F [D]
    every: int
    seen: dict[int, Seen] = field(default_factory=dict)
    points: dict[int, Floats] = field(default_factory=dict)  # step -> params [D]

    def basis(self, server: ServerState, arrivals: Arrivals) -> dict[str, Tensor]:
        if int(server.step) % self.every:
            return {"witness": torch.zeros_like(server.params)[None]}
        self.points[int(server.step)] = server.params.double().numpy()
        return {"witness": self.gradient(server.params)[None]}

    def __call__(self, step: Step) -> Step:
        number = int(step.number)
        if number % self.every == 0:
            true = step.unit("witness")[0]  # [B]
            estimate = step.direction if step.estimate is None else step.estimate  # [B]
            shares = step.weights / step.weights.sum().clamp(min=1e-300)  # [K]
            apart = step.norms(step.coefficients - estimate)  # [K]
            lengths, length = step.norms()[step.weights > 0], step.norms(estimate)
            self.seen[number] = Seen(
                squared_norm=float(step.dots(true, true)),
                spread=float(shares @ apart.square()),
                squared_length=float(length.square()),
                ratio=float(lengths.max() / length) if len(lengths) and length > 0 else 0.0,
                error=float(step.norms(estimate - true)),
            )
        return step


def whole_gradient(model: nn.Module, data: FederatedData, loss: Callable) -> Callable[[Tensor], Tensor]:
    """params [D] -> the gradient of F, the mean over clients of the mean loss over their samples [D]."""
    tensors = data.tensors()
    sizes = torch.from_numpy(np.diff(np.asarray(data.offsets)))
    shares = (1.0 / (data.clients * sizes.double())).repeat_interleave(sizes)  # [samples of all clients]
    own = list(model.named_parameters())

    def gradient(params: Tensor) -> Tensor:
        pieces = params.detach().split([value.numel() for _, value in own])
        values = {
            name: piece.reshape(value.shape).clone().requires_grad_()
            for (name, value), piece in zip(own, pieces, strict=True)
        }
        total = torch.zeros_like(params)
        for begin in range(0, len(shares), CHUNK):
            rows = tensors.indices[begin : begin + CHUNK]
            outputs = torch.func.functional_call(model, values, (scaled(tensors.inputs[rows], data.scale),))
            whole = (loss(outputs, tensors.labels[rows]) * shares[begin : begin + CHUNK]).sum()
            grads = torch.autograd.grad(whole, list(values.values()))
            total = total + torch.cat([each.reshape(-1) for each in grads])
        return total

    return gradient
