"""Paired runs of contenders on one task: same data, arrivals, start and batches for every rule under one seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import nn

from kasync import components, fingerprint, models, simulator
from kasync.comparison.contenders import Entrant
from kasync.components import Offered
from kasync.data import FederatedData
from kasync.errors import UserError
from kasync.experiments.build import Ready, own_model
from kasync.experiments.runner import Wanted
from kasync.experiments.settings import EVALUATIONS, SERVER_SAMPLES
from kasync.rules import Facts
from kasync.timelines import Timeline
from kasync.work import Gradient, Work

Made = TypeVar("Made")
ELSEWHERE = ("device", "hold", "engine", "workers", "resources_per_worker", "address")  # no part of a run's name


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

    @cached_property
    def _kept(self) -> dict[tuple[str, int | None], Any]:
        return {}

    def varies(self, name: str) -> bool:
        """Whether model, data or timeline are others under another seed."""
        given = getattr(self, name)
        return isinstance(given, str) or (callable(given) and not isinstance(given, nn.Module))

    def _once(self, name: str, seed: int, make: Callable[[], Made], of: str = "") -> Made:
        """What was made under this name for this seed, or for all where nothing depends on it."""
        place = (name, seed if self.varies(of or name) else None)
        if place not in self._kept:
            self._kept[place] = make()
        found: Made = self._kept[place]
        return found

    def _given(self, name: str, seed: int) -> Any:
        """Data or a timeline as they are, or what their function makes of the seed."""
        given = getattr(self, name)
        given = components.load(given, name) if isinstance(given, str) else given
        return components.by_seed(name, given, seed, {}) if callable(given) else given

    def data_of(self, seed: int) -> FederatedData:
        return self._once("data", seed, lambda: self._data(seed))

    def _data(self, seed: int) -> FederatedData:
        made = self._given("data", seed)
        if not isinstance(made, FederatedData):
            raise UserError(
                f"data is {type(made).__name__}: give kasync.data.federate(...), kasync.data.from_arrays(...), or a "
                f"function of the seed that returns one."
            )
        return made.validation(self.held_out) if self.held_out else made

    def timeline_of(self, seed: int) -> Timeline:
        made = self._once("timeline", seed, lambda: self._given("timeline", seed))
        if not isinstance(made, Timeline):
            raise UserError(
                f"timeline is {type(made).__name__}: give kasync.timelines.uniform(...), say, or a function of the "
                f"seed that returns one."
            )
        return made

    def model_of(self, seed: int) -> nn.Module:
        return self._once("model", seed, lambda: self._model(seed))

    def _model(self, seed: int) -> nn.Module:
        if isinstance(self.model, str) and not components.is_own(self.model):
            return models.build(self.model, self.data_of(seed), seed=seed)
        make = components.load(self.model, "model") if isinstance(self.model, str) else self.model
        offered = {"data": lambda: self.data_of(seed), "classes": lambda: self.data_of(seed).classes}
        return own_model(make, seed, offered)

    def _offered(self, seed: int, facts: Facts) -> Offered:
        """What a rule's function may ask for by name, and the settings that follow from the run."""
        timeline = self.timeline_of(seed)
        of_run = facts.settings_of_run(timeline.population, timeline.k)
        known: dict[str, Any] = {
            **of_run,
            "clients": timeline.population,
            "k": timeline.k,
            "seed": seed,
            "timeline": timeline,
        }
        return {
            **{name: partial(known.get, name) for name in known},
            "data": lambda: self.data_of(seed),
            "model": lambda: self.model_of(seed),
            "server_gradient": lambda: self._server_gradient(seed),
        }

    def _server_gradient(self, seed: int) -> Any:
        data, options = self.data_of(seed), self.options
        samples = data.server_sample(min(SERVER_SAMPLES, len(data.train)), seed=seed)
        own = {name: options[name] for name in ("loss", "device") if options.get(name) is not None}
        return simulator.server_gradient(self.model_of(seed), data, samples, **own)

    def with_settings(self, contender: Entrant, settings: Mapping[str, Any], seed: int) -> Wanted:
        """The run of this rule with other settings."""
        return self.run(contender.having(**settings), seed)

    def run(self, contender: Entrant, seed: int) -> Wanted:
        """The run of this rule under this seed; its name is made of everything that decides its numbers."""
        data, timeline, model = self.data_of(seed), self.timeline_of(seed), self.model_of(seed)
        rule = contender.build(self._offered(seed, contender.facts))
        work = Gradient(8) if self.work is None else self.work
        options = {**self.options, "evaluate_every": self.evaluate_every or max(1, timeline.steps // EVALUATIONS)}
        decisive = {name: value for name, value in options.items() if name not in ELSEWHERE}
        device = torch.device(options["device"]).type
        products = torch.get_float32_matmul_precision() if device == "cuda" else "highest"
        digest = fingerprint.of(
            self._once("data in words", seed, lambda: fingerprint.describe(data), of="data"),
            self._once("model in words", seed, lambda: fingerprint.describe(model), of="model"),
            *(rule, work, timeline.fingerprint(), seed, decisive, device, products, fingerprint.versions()),
        )
        own = {each.name: getattr(work, each.name) for each in fields(work)} if is_dataclass(work) else {}
        table = {
            "made_by": "kasync.compare",
            "dataset": data.name,
            "model": type(model).__name__,
            "clients": timeline.population,
            "k": timeline.k,
            "steps": timeline.steps,
            "seed": seed,
            **{name: options[name] for name in ("staleness", "evaluate_every", "device", "precision")},
            "arrivals": {"kind": timeline.kind, "fingerprint": timeline.fingerprint()},
            "rule": {"kind": rule.name, "label": contender.label, **plainly(contender.settings)},
            "work": {"kind": type(work).__name__, **plainly(own)},
        }
        parts = Ready(model, data, rule, timeline, work, {"seed": seed, **options})
        alike = contender.label  # what cannot be stacked although it has the same label is told when it is tried
        return Wanted(f"{_slug(data.name)}-{_slug(rule.name)}-{digest}", table, lambda: parts, alike)


def plainly(values: Mapping[str, Any]) -> dict[str, Any]:
    """As TOML can say them."""
    return {n: v if isinstance(v, bool | int | float | str) else str(v) for n, v in values.items() if v is not None}


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "run"
