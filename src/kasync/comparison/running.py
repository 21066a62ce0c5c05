"""Paired runs of contenders on one task: same data, arrivals, start and batches for every rule under one seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from kasync import components, files, fingerprint, models, simulator
from kasync.comparison.contenders import Entrant, Offered
from kasync.data import FederatedData
from kasync.errors import UserError
from kasync.experiments import grid, runner
from kasync.experiments.build import Ready, own_model
from kasync.experiments.display import Display
from kasync.experiments.settings import EVALUATIONS, SERVER_SAMPLES
from kasync.experiments.store import Run, Store
from kasync.rules import Facts
from kasync.timelines import Timeline
from kasync.work import Gradient, Work

Made = TypeVar("Made")
ELSEWHERE = ("device", "hold", "engine", "workers", "resources_per_worker", "address")  # no part of a run's key


@dataclass(frozen=True, eq=False)
class Contest:
    """What all rules have in common; model, data and timeline may be functions of the seed."""

    model: Any
    data: Any
    timeline: Any
    work: Work | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of simulate
    evaluate_every: int | None = None
    held_out: float = 0.0  # share of the training samples to be tested on instead of the test set
    server_samples: int = SERVER_SAMPLES

    @cached_property
    def _kept(self) -> dict[tuple[str, int | None], Any]:
        return {}

    def varies(self, name: str) -> bool:
        """Whether model, data or timeline are others under another seed."""
        given = getattr(self, name)
        return isinstance(given, str) or (callable(given) and not isinstance(given, nn.Module))

    def once(self, name: str, seed: int, make: Callable[[], Made], of: str = "") -> Made:
        """What was made under this name for this seed, or for all where nothing depends on it."""
        place = (name, seed if self.varies(of or name) else None)
        if place not in self._kept:
            self._kept[place] = make()
        found: Made = self._kept[place]
        return found

    def data_of(self, seed: int) -> FederatedData:
        return self.once("data", seed, lambda: self._data(seed))

    def _data(self, seed: int) -> FederatedData:
        given = components.load(self.data, "dataset") if isinstance(self.data, str) else self.data
        made = components.by_seed("data", given, seed, {}) if callable(given) else given
        if not isinstance(made, FederatedData):
            raise UserError(
                f"data is {type(made).__name__}: give kasync.data.federate(...), kasync.data.from_arrays(...), or a "
                f"function of the seed that returns one."
            )
        return made.validation(self.held_out) if self.held_out else made

    def timeline_of(self, seed: int) -> Timeline:
        made = self.once("timeline", seed, lambda: self._timeline(seed))
        if not isinstance(made, Timeline):
            raise UserError(
                f"timeline is {type(made).__name__}: give kasync.timelines.uniform(...), say, or a function of the "
                f"seed that returns one."
            )
        return made

    def _timeline(self, seed: int) -> Any:
        given = self.timeline
        return components.by_seed("timeline", given, seed, {}) if callable(given) else given

    def model_of(self, seed: int) -> nn.Module:
        return self.once("model", seed, lambda: self._model(seed))

    def _model(self, seed: int) -> nn.Module:
        if isinstance(self.model, str) and not components.is_own(self.model):
            return models.build(self.model, self.data_of(seed), seed=seed)
        make = components.load(self.model, "model") if isinstance(self.model, str) else self.model
        offered = {"data": lambda: self.data_of(seed), "classes": lambda: self.data_of(seed).classes}
        return own_model(make, seed, offered)

    def offered(self, seed: int, facts: Facts) -> Offered:
        """What a rule's function may ask for by name, and the settings that follow from the run."""
        timeline = self.timeline_of(seed)
        of_run = facts.settings_of_run(timeline.population, timeline.k)
        return {
            **{name: partial(_value, value) for name, value in of_run.items()},
            "clients": lambda: timeline.population,
            "k": lambda: timeline.k,
            "seed": lambda: seed,
            "timeline": lambda: timeline,
            "data": lambda: self.data_of(seed),
            "model": lambda: self.model_of(seed),
            "server_gradient": lambda: self._server_gradient(seed),
        }

    def _server_gradient(self, seed: int) -> Any:
        data, options = self.data_of(seed), self.options
        samples = data.server_sample(min(self.server_samples, len(data.train)), seed=seed)
        own = {name: options[name] for name in ("loss", "device") if options.get(name) is not None}
        return simulator.server_gradient(self.model_of(seed), data, samples, **own)

    def evaluations(self, timeline: Timeline) -> int:
        """Steps between evaluations."""
        return self.evaluate_every or max(1, timeline.steps // EVALUATIONS)


@dataclass(frozen=True, eq=False)
class Planned:
    """One run that is to be made: everything that decides its numbers, and a key made of it."""

    contender: Entrant
    seed: int
    ready: Ready
    options: Mapping[str, Any]
    key: str

    @property
    def label(self) -> str:
        return self.contender.label

    @property
    def device_kind(self) -> str:
        """cpu or cuda."""
        return torch.device(self.options["device"]).type

    @property
    def task_digest(self) -> str:
        """Of what all rules have in common, but for the seed: comparisons of other tasks stand beside this one."""
        one = self.ready
        shape = (one.timeline.kind, one.timeline.population, one.timeline.k, one.timeline.steps)
        return fingerprint.of(one.data.name, one.data.clients, type(one.model).__name__, repr(one.work), shape)[:6]

    @property
    def wanted(self) -> runner.Wanted:
        """As a grid makes it; what cannot be stacked although it has the same label is told when it is tried."""
        options = self.options
        return runner.Wanted(
            self.ready.timeline.steps, str(options["device"]), str(options["precision"]), self.label, self.open
        )

    def simulation(self, **checkpoint: Any) -> simulator.Simulation:
        one = self.ready
        given = {"seed": self.seed, **self.options, **checkpoint}
        return simulator.simulate(one.model, one.data, one.rule, one.timeline, one.work, **given)

    def open(
        self, folder: Path, begun: Mapping[str, Any], checkpoint_every: float | None, spread: Mapping[str, Any]
    ) -> runner.Opened:
        place = {"checkpoint": folder / runner.CHECKPOINT, "checkpoint_every": checkpoint_every}
        found = self.simulation(**(place if checkpoint_every is not None else {}))
        about = runner.made_with(str(self.options["device"]), self.ready.data.source, found.memory.hold)
        files.write(folder / "run.toml", files.toml_text(self.settings() | {"made": about}))
        return runner.Opened(folder, self.ready, found)

    def settings(self) -> dict[str, Any]:
        """As run.toml has them."""
        one, timeline = self.ready, self.ready.timeline
        return {
            "made_by": "kasync.compare",
            "dataset": one.data.name,
            "model": type(one.model).__name__,
            "clients": timeline.population,
            "k": timeline.k,
            "steps": timeline.steps,
            "seed": self.seed,
            "staleness": self.options["staleness"],
            "evaluate_every": self.options["evaluate_every"],
            "device": self.options["device"],
            "precision": self.options["precision"],
            "arrivals": {"kind": timeline.kind, "fingerprint": timeline.fingerprint()},
            "rule": {"kind": one.rule.name, "label": self.label, **plainly(self.contender.settings)},
            "work": {"kind": type(one.work).__name__, **plainly(_fields(one.work))},
        }


def planned(task: Contest, contender: Entrant, seed: int) -> Planned:
    """The run of this rule under this seed."""
    data, timeline, model = task.data_of(seed), task.timeline_of(seed), task.model_of(seed)
    rule = contender.build(task.offered(seed, contender.facts))
    work = Gradient(8) if task.work is None else task.work
    options = {**task.options, "evaluate_every": task.evaluations(timeline)}
    shared = task.once("data in words", seed, lambda: fingerprint.describe(data), of="data")
    start = task.once("model in words", seed, lambda: fingerprint.describe(model), of="model")
    decisive = {name: value for name, value in options.items() if name not in ELSEWHERE}
    device = torch.device(options["device"]).type
    made = (timeline.fingerprint(), seed, decisive, device, _products(device), fingerprint.versions())
    digest = fingerprint.of(shared, start, rule, work, *made)
    key = f"{_slug(data.name)}-{_slug(rule.name)}-{digest}"
    return Planned(contender, seed, Ready(model, data, rule, timeline, work), options, key)


def make(wanted: Sequence[Planned], folder: Path, display: Display, jobs: int = 1) -> dict[str, str]:
    """Make every run that is not finished; why those that failed did, by key. Whatever one raises, the rest goes on."""
    runs = {one.key: one.wanted for one in wanted}
    made = grid.make_runs(runs, folder, display, lambda missing, shown: grid.make_local(missing, folder, shown, jobs))
    return dict(made.failed)


def check(wanted: Iterable[Planned]) -> None:
    """Refuse before any work what cannot work."""
    for one in wanted:
        one.simulation()


def result(folder: Path, key: str) -> Run:
    """What there is of a run."""
    return Store(folder).run(key)


def _products(device: str) -> str:
    """How a GPU multiplies matrices of float32 in this process."""
    return torch.get_float32_matmul_precision() if device == "cuda" else "highest"


def _value(value: Any) -> Any:
    return value


def _fields(work: Any) -> dict[str, Any]:
    if is_dataclass(work) and not isinstance(work, type):
        return {each.name: getattr(work, each.name) for each in fields(work)}
    return {}


def plainly(values: Mapping[str, Any]) -> dict[str, Any]:
    """As TOML can say them."""
    return {n: v if isinstance(v, bool | int | float | str) else str(v) for n, v in values.items() if v is not None}


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "run"
