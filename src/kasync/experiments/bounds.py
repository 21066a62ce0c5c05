"""The theorems beside a run: it is repeated with a witness that measures along it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kasync.data.federated import scaled
from kasync.errors import UserError
from kasync.experiments.build import Ready, ready
from kasync.experiments.resolve import NO_RULE
from kasync.experiments.settings import RunSettings
from kasync.experiments.witness import Witness, whole_gradient
from kasync.simulator import Record, simulate
from kasync.theory import (
    Bound,
    Measured,
    MeasuredStageTwo,
    ModelTask,
    StageOne,
    StageTwo,
    measure_constants,
    measure_stage_two,
    theorem_one,
    theorem_two,
)
from kasync.theory.theorems import Floats
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


def chapters(settings: RunSettings, looks: int = 60) -> tuple[Chapter, ...]:
    """Repeat the run, measuring at about `looks` steps, and hold each of its stages against its theorem."""
    settings = replace(settings.resolved(), device="cpu")
    _check(settings, looks)
    parts = ready(settings)
    if parts.rule.table_rows:
        raise UserError(
            f"rule {settings.rule.kind!r} adds what it remembers of clients, which no theorem here is about."
        )
    every = max(1, parts.timeline.steps // looks)
    loss = parts.loss or default_loss(parts.data)
    witness = Witness(whole_gradient(parts.model, parts.data, loss), every)
    rule = replace(parts.rule, parts=(*parts.rule.parts, witness))
    run = simulate(
        parts.model,
        parts.data,
        rule,
        parts.timeline,
        parts.work,
        seed=settings.seed,
        hold=settings.hold,
        staleness=settings.staleness,
        loss=parts.loss,
        evaluate_every=parts.timeline.steps,
    )
    records = [record for record in run if not record.skipped]  # the witness counts updates, which a skip is not
    stages = np.array([record.stage for record in records])
    written = []
    for stage in (1, 2):
        inside = sorted(number for number in witness.seen if number < len(stages) and stages[number] == stage)
        if len(inside) < 2:
            continue
        told = [record for record in records[inside[0] :] if record.stage == stage]
        with one_thread_each():  # small products: several threads would wait for each other
            written.append(_chapter(stage, settings, parts, told, witness, inside))
    return tuple(written)


def constants_at_start(settings: RunSettings) -> StageOne:
    """Theorem 1's constants of a task where its training begins; k, steps, staleness and rate are to be replaced."""
    settings = settings.resolved()
    _check(settings, looks=2)
    parts = ready(replace(settings, steps=1))
    task = _task(parts)
    with one_thread_each():
        gradient = whole_gradient(parts.model, parts.data, parts.loss or default_loss(parts.data))
        found = _measured(parts, [task.params()], gradient)
        return _stage_one(settings, parts, found, task.params())


def _measured(parts: Ready, points: list[Floats], whole: Callable[[Tensor], Tensor]) -> Measured:
    task = _task(parts)

    def gradient(params: Floats) -> Floats:
        return whole(torch.from_numpy(params).float()).double().numpy()

    return measure_constants(
        task.client_gradient,
        task.batch_gradient,
        points,
        _spaced(range(parts.data.clients), CLIENTS),
        task.batch_size,
        DRAWS,
        gradient,
        task.hessian_vector,
    )


def _stage_one(settings: RunSettings, parts: Ready, found: Measured, start: Floats) -> StageOne:
    return StageOne(
        smoothness=found.smoothness.value,
        gradient_noise=found.gradient_noise.value,
        noise_growth=found.noise_growth.value,
        heterogeneity=found.heterogeneity.value,
        batch_size=parts.work.batch_size,
        k=settings.k,
        steps=1,
        max_staleness=0,
        learning_rates=1.0,
        initial_gap=_value(parts, start),
        momentum=_momentum(settings),
    )


def _chapter(
    stage: int, settings: RunSettings, parts: Ready, records: list[Record], witness: Witness, inside: list[int]
) -> Chapter:
    """The stage's records from the first that the witness saw on."""
    start = witness.points[inside[0]]
    found = _measured(parts, [witness.points[number] for number in _spaced(inside, PLACES)], witness.gradient)
    weights = np.array([np.nan_to_num(record.weights) for record in records], dtype=np.float64)  # [J, k]
    sums = weights.sum(axis=1)
    rates = np.array([record.lr for record in records]) * sums  # weights that do not sum to one belong to the rate
    seen = [witness.seen[number] for number in inside]
    logs = np.log([max(one.squared_norm, 1e-300) for one in seen])
    norms = np.exp(np.interp(np.arange(len(records)), np.asarray(inside) - inside[0], logs))
    if stage == 1:
        one = replace(
            _stage_one(settings, parts, found, start),
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
        initial_gap=_value(parts, start),
        momentum=_momentum(settings),
    )
    return Chapter(2, two, found, selected, norms, witness.every)


def _value(parts: Ready, params: Floats) -> float:
    """F at these parameters; it bounds F - F*, since a cross-entropy or a squared error is at least 0."""
    task = _task(parts)
    return float(np.mean([task.client_loss(params, client) for client in range(parts.data.clients)]))


def _momentum(settings: RunSettings) -> float:
    return float(settings.rule.settings.get("momentum", 0.0))


def _task(parts: Ready) -> ModelTask:
    tensors, data = parts.data.tensors(), parts.data
    formula = parts.loss or default_loss(data)

    def samples(client: int) -> tuple[Tensor, Tensor]:
        rows = tensors.indices[tensors.offsets[client] : tensors.offsets[client + 1]]
        return scaled(tensors.inputs[rows], data.scale), tensors.labels[rows]

    return ModelTask(parts.model, lambda *pair: formula(*pair).mean(), samples, parts.work.batch_size)


def _spaced(values: range | list[int], most: int) -> list[int]:
    """At most so many of the values, evenly spaced, the first and the last among them."""
    places = np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))
    return [values[place] for place in places]


def _check(settings: RunSettings, looks: int) -> None:
    if looks < 2:
        raise UserError(f"looks = {looks}: measure at 2 steps of the run or more.")
    if settings.rule.kind == NO_RULE:
        raise UserError(
            "this run trained nothing, so there is nothing to compare a theorem with: give one with a rule."
        )
    if settings.optimizer != "none":
        raise UserError(
            f"optimizer = {settings.optimizer!r}: the theorems are about plain steps: use optimizer 'none'."
        )
    if settings.faults:
        raise UserError(f"{settings.faults[0].kind} is a fault, which no theorem here is about: leave faults out.")
    if settings.work.kind != "gradient":
        raise UserError(f"work = {settings.work.kind!r}: the theorems are about one gradient, use work 'gradient'.")
