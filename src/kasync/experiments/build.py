"""How do settings become a model, data, a rule, a timeline and work?"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from kasync import data, discounts, models, optimizers, parts, rules, schedules
from kasync.core import Part, Rule
from kasync.data import Dataset, FederatedData
from kasync.errors import unknown
from kasync.experiments.arrivals import timeline_of
from kasync.experiments.faulty import apart
from kasync.experiments.resolve import OURS, rule_name
from kasync.experiments.settings import RunSettings
from kasync.faults import Fault
from kasync.simulator import server_gradient
from kasync.timelines import Timeline
from kasync.work import Gradient, LocalSGD, Work

WORKS: dict[str, type] = {"gradient": Gradient, "local_sgd": LocalSGD}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer] | None] = {
    "none": None,  # the rule's own
    "plain": optimizers.Plain,
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "muon": optimizers.Muon,
}
DISCOUNTS: dict[str, type] = {
    "none": discounts.NoDiscount,
    "polynomial": discounts.Polynomial,
    "hinge": discounts.Hinge,
    "inverse": discounts.Inverse,
}
DECIDE_DATA = ("dataset", "root", "data", "partition", "clients", "seed", "scale", "validation")
_loading = threading.Lock()  # runs side by side must not decode the same files at once


@dataclass(frozen=True, eq=False)
class Ready:
    """Everything a simulation takes."""

    model: nn.Module
    data: FederatedData
    rule: Rule
    timeline: Timeline
    work: Work
    faults: tuple[Fault, ...] = ()  # those that the timeline does not have already


def ready(settings: RunSettings) -> Ready:
    """The parts of a run whose settings are resolved."""
    held = data_of(settings)
    model = models.build(settings.model, held, seed=settings.seed)
    own = None
    if "server_samples" in settings.rule.settings:
        given = settings.rule.settings
        samples = held.server_sample(given["server_samples"], given.get("server_classes"), settings.seed)
        own = server_gradient(model, held, samples, device=settings.device)
    timeline, faults = timeline_of(settings), apart(settings)[1]
    return Ready(model, held, rule_of(settings, own), timeline, work_of(settings), faults)


def data_of(settings: RunSettings) -> FederatedData:
    """The data, shared out over the clients; runs that read the same share it."""
    decisive = {name: settings.table().get(name) for name in DECIDE_DATA}
    with _loading:
        return _federated(json.dumps(decisive, sort_keys=True))


@functools.lru_cache(maxsize=8)
def _federated(decisive: str) -> FederatedData:
    settings = RunSettings.of({name: value for name, value in json.loads(decisive).items() if value is not None})
    dataset = _dataset(settings.dataset, settings.root, json.dumps(dict(settings.data), sort_keys=True))
    way = data.partition.build(settings.partition.kind, **settings.partition.settings)
    held = data.federate(dataset, way(dataset, settings.clients, settings.seed), settings.scale)
    return held.validation(settings.validation, settings.seed) if settings.validation else held


@functools.lru_cache(maxsize=4)
def _dataset(name: str, root: str, settings: str) -> Dataset:
    return data.load(name, root or None, **json.loads(settings))


def work_of(settings: RunSettings) -> Work:
    return WORKS[settings.work.kind](**settings.work.settings)


def rule_of(settings: RunSettings, own: Callable[[Tensor], Tensor] | None) -> Rule:
    """The rule, with the server's own gradient where it needs one, less the parts that an ablation leaves out."""
    given = {name: _plain(name, value) for name, value in settings.rule.settings.items() if name not in OURS}
    if "server_samples" in settings.rule.settings:
        given["server_gradient"] = own
    rule = rules.build(
        rule_name(settings.rule.kind),
        **given,
        optimizer=OPTIMIZERS[settings.optimizer],
        schedule=schedules.named(settings.schedule, settings.steps),
    )
    left_out = settings.rule.settings.get("without", [])
    return rule.without(*(_part(name) for name in left_out)) if left_out else rule


def _plain(name: str, value: Any) -> Any:
    """What TOML cannot say: discounts are objects, pairs are tuples."""
    if name == "discount":
        table = {"kind": value} if isinstance(value, str) else dict(value)
        kind = table.pop("kind", None)
        if kind not in DISCOUNTS:
            raise unknown("discount", str(kind), DISCOUNTS)
        known = [each.name for each in fields(DISCOUNTS[kind])]
        for setting in table:
            if setting not in known:
                raise unknown(f"setting of discount {kind!r}", setting, known)
        return DISCOUNTS[kind](**table)
    return tuple(value) if isinstance(value, list) else value


def _part(name: str) -> type[Part]:
    if name not in parts.__all__:
        raise unknown("part in without", name, parts.__all__)
    return getattr(parts, name)
