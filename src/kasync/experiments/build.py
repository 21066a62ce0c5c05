"""Settings completed and checked, and objects from them: model, data, rule, timeline, work, loss and metrics."""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kasync import checks, components, data, faults, fingerprint, models, optimizers, parts, rules, schedules, theory
from kasync.core import Part, Rule
from kasync.data import Dataset, FederatedData
from kasync.data.federated import SCALES
from kasync.discounts import Hinge, Inverse, NoDiscount, Polynomial
from kasync.errors import UserError, unknown
from kasync.experiments.settings import EVALUATIONS, FRESH, NO_RULE, OURS, SERVER_SAMPLES, Choice, RunSettings, facts_of
from kasync.faults import Fault
from kasync.faults.draws import chances
from kasync.faults.kinds import ArrivalFault, listed
from kasync.parts.trust import ServerGradient
from kasync.simulator import Simulation, server_gradient, simulate
from kasync.simulator.memory import HOLDS
from kasync.simulator.plan import STALENESS
from kasync.simulator.validation import check_device
from kasync.timelines import Timeline
from kasync.timelines import settings as described
from kasync.timelines.checks import sizes
from kasync.work import Gradient, Local, LocalSGD, Work

WORKS: dict[str, type] = {"gradient": Gradient, "local_sgd": LocalSGD, "local": Local}
OPTIMIZERS = optimizers.NAMED
DISCOUNTS: dict[str, type] = {"none": NoDiscount, "polynomial": Polynomial, "hinge": Hinge, "inverse": Inverse}
DECIDE_DATA = ("dataset", "root", "data", "partition", "clients", "seed", "scale", "validation", "own")
DECIDE_ARRIVALS = ("arrivals", "clients", "k", "seed")
PRECISIONS = ("float32", "tf32")
OWN = ("dataset", "model")  # that may be the user's, beside rules, works, losses and metrics
LATER = ("allow_empty", "least", "measured")  # runs made before there was such a setting keep their names
CLOCKS = ("clock", "phones", "traces")  # kinds of arrivals with a time for each piece of work
KEPT = 200_000  # deliveries of a timeline that is worth its memory
LONGER = 6  # times that a timeline is made twice as long before too few clients are left
_loading = threading.Lock()  # runs side by side must not decode the same files at once


@dataclass(frozen=True, eq=False)
class Ready:
    """Everything a simulation takes; `options` by the names that kasync.simulate gives them."""

    model: nn.Module
    data: FederatedData
    rule: Rule
    timeline: Timeline
    work: Work
    options: Mapping[str, Any]

    def simulation(self, **changes: Any) -> Simulation:
        """The run of these parts, not begun; with `changes` of the options."""
        return simulate(self.model, self.data, self.rule, self.timeline, self.work, **{**self.options, **changes})


def ready(settings: RunSettings) -> Ready:
    """The parts of a run whose settings are resolved."""
    held = data_of(settings)
    model = model_of(settings, held)
    loss = components.load(settings.loss, "loss") if settings.loss else None  # None is the one that suits the labels
    own = None
    if "server_samples" in settings.rule.settings:
        given = settings.rule.settings
        samples = held.server_sample(given["server_samples"], given.get("server_classes"), settings.seed)
        batch = given.get("server_batch")
        own = server_gradient(model, held, samples, loss, settings.device, batch=batch, seed=settings.seed)
    options = {name: getattr(settings, name) for name in ("seed", "device", "hold", "staleness", "evaluate_every")}
    options["loss"] = loss
    options["metrics"] = {components.short(name): components.load(name, "metric") for name in settings.metrics} or None
    striking = faults_of(settings)  # the timeline has those of arrivals already
    options["faults"] = tuple(fault for fault in striking if not isinstance(fault, ArrivalFault))
    return Ready(model, held, rule_of(settings, own), timeline_of(settings), work_of(settings), options)


@dataclass(frozen=True)
class OpenRun:
    """A run whose length is not decided yet, as `kasync.theory.race` leads it on."""

    settings: RunSettings  # resolved; its steps do not matter

    def __post_init__(self) -> None:
        if self.settings.arrivals.kind not in CLOCKS:
            raise UserError(
                f"arrivals = {self.settings.arrivals.kind!r}: pilots for another k need a clock, so use 'clock'."
            )

    @property
    def clients(self) -> int:
        return self.settings.clients

    @property
    def k(self) -> int:
        return self.settings.k

    def timeline(self, steps: int) -> Timeline:
        return timeline_of(replace(self.settings, steps=steps))

    def simulate(self, timeline: Timeline, evaluate_every: int) -> Simulation:
        parts = ready(replace(self.settings, steps=1))  # the timeline of one step makes room for the real one
        return replace(parts, timeline=timeline).simulation(evaluate_every=evaluate_every)


def chapters(settings: RunSettings, looks: int = 60) -> tuple[theory.Chapter, ...]:
    """Repeat the run, measuring at about `looks` steps, and hold each of its stages against its theorem."""
    return theory.chapters(**_for_theorems(settings, "seed", "hold", "staleness"), looks=looks)


def constants_at_start(settings: RunSettings) -> theory.StageOne:
    """Theorem 1's constants of a task where its training begins."""
    return theory.constants_at_start(**_for_theorems(replace(settings, steps=1, faults=())))


def _for_theorems(settings: RunSettings, *options: str) -> dict[str, Any]:
    if settings.rule.kind == NO_RULE:
        raise UserError(
            "this run trained nothing, so there is nothing to compare a theorem with: give one with a rule."
        )
    parts = ready(replace(settings, device="cpu").resolved())
    found = {name: getattr(parts, name) for name in ("model", "data", "rule", "timeline", "work")}
    found |= {name: parts.options[name] for name in ("loss", *options)}
    return found | ({"faults": listed(faults_of(settings))} if settings.faults else {})


def model_of(settings: RunSettings, held: FederatedData) -> nn.Module:
    """The network, started as the seed says."""
    if not components.is_own(settings.model):
        return models.build(settings.model, held, seed=settings.seed, **settings.model_settings)
    offered = {"data": lambda: held, "classes": lambda: held.classes}
    return own_model(components.load(settings.model, "model"), settings.seed, offered, settings.model_settings)


def own_model(make: Any, seed: int, offered: components.Offered, given: Mapping[str, Any] | None = None) -> nn.Module:
    """A model, or what a class or function makes of the seed and what else it asks for by name."""
    if isinstance(make, nn.Module):
        return make
    if not callable(make):
        raise UserError(f"model is {type(make).__name__}: give a torch.nn.Module, or a function that makes one.")
    with torch.random.fork_rng(devices=[]):  # the start is the seed's, whoever draws it
        torch.manual_seed(seed)
        found = components.by_seed("model", make, seed, offered, given)
    if not isinstance(found, nn.Module):
        raise UserError(f"model gives {type(found).__name__}: return a torch.nn.Module.")
    return found


def data_of(settings: RunSettings) -> FederatedData:
    """The data, shared out over the clients; runs that read the same share it."""
    decisive = {name: settings.table().get(name) for name in DECIDE_DATA}
    with _loading:
        return _federated(json.dumps(decisive, sort_keys=True))


@functools.lru_cache(maxsize=8)
def _federated(decisive: str) -> FederatedData:
    settings = RunSettings.of({name: value for name, value in json.loads(decisive).items() if value is not None})
    if components.is_own(settings.dataset):
        held = _own_data(settings)
    else:
        held = _dataset(settings.dataset, settings.root, json.dumps(dict(settings.data), sort_keys=True))
    if isinstance(held, Dataset):
        way = data.partition.build(settings.partition.kind, **settings.partition.settings)
        held = data.federate(held, way(held, settings.clients, settings.seed), settings.scale)
    return held.validation(settings.validation, settings.seed) if settings.validation else held


def _own_data(settings: RunSettings) -> Dataset | FederatedData:
    """What a function of the user's makes; a Dataset is shared out as [partition] says."""
    make = components.load(settings.dataset, "dataset")
    offered = {"clients": lambda: settings.clients, "root": lambda: settings.root or None}
    found = components.by_seed("dataset", make, settings.seed, offered, settings.data) if callable(make) else make
    if not isinstance(found, Dataset | FederatedData):
        raise UserError(
            f"dataset {settings.dataset!r} gives {type(found).__name__}: return kasync.data.from_arrays(...), "
            f"kasync.data.federate(...) or a kasync.data.Dataset."
        )
    if isinstance(found, FederatedData) and found.clients < settings.clients:
        raise UserError(
            f"dataset {settings.dataset!r} has {found.clients} clients, the settings say {settings.clients}: set "
            f"clients = {found.clients}, or let the function take `clients`."
        )
    return found


@functools.lru_cache(maxsize=4)
def _dataset(name: str, root: str, settings: str) -> Dataset:
    return data.load(name, root or None, **json.loads(settings))


def work_of(settings: RunSettings) -> Work:
    """The work; an optimiser is named as in `optimizer`, or as torch.optim has it."""
    kind, given = settings.work.kind, dict(settings.work.settings)
    if kind == "local" and "optimizer" in given:
        given["optimizer"] = _local_optimizer(str(given["optimizer"]))
    make = components.find(kind, "kind of [work]", WORKS)
    work = make if isinstance(make, Work) else components.made(f"work {kind!r}", make, given, {})
    if not isinstance(work, Work):
        raise UserError(f"work {kind!r} gives {type(work).__name__}: return a kasync.Work, kasync.Local(...), say.")
    return work


def _local_optimizer(name: str) -> Any:
    if isinstance(getattr(torch.optim, name, None), type):
        return getattr(torch.optim, name)
    return components.find(name, "optimizer of [work]", {known: made for known, made in OPTIMIZERS.items() if made})


def rule_of(settings: RunSettings, own: ServerGradient | None) -> Rule:
    """The rule, with the server's own gradient where it needs one, less the parts that an ablation leaves out."""
    given = {name: _plain(name, value) for name, value in settings.rule.settings.items() if name not in OURS}
    if "server_samples" in settings.rule.settings:
        given["server_gradient"] = own
    rule = rules.build(
        facts_of(settings.rule.kind).name,
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
        kind = str(table.pop("kind", None))
        return components.made(f"discount {kind!r}", components.find(kind, "discount", DISCOUNTS), table, {})
    return tuple(value) if isinstance(value, list) else value


def _part(name: str) -> type[Part]:
    if name not in parts.__all__:
        raise unknown("part in without", name, parts.__all__)
    found: type[Part] = getattr(parts, name)
    return found


# ---- who comes when, and what goes wrong


def timeline_of(settings: RunSettings) -> Timeline:
    """The timeline of a run with its faults: made longer until enough steps are left."""
    striking = [fault for fault in faults_of(settings) if isinstance(fault, ArrivalFault)]
    if not striking:
        return _timeline(settings, settings.steps)
    length, left = settings.steps, 0
    for _ in range(LONGER):
        plain = _timeline(settings, length)
        try:
            found = faults.inject(plain, striking, settings.seed)
        except UserError:  # not even one step is left
            left = 0
        else:
            left = found.steps
            if left >= settings.steps:
                return found.head(settings.steps)
        if plain.steps < length:  # a file ends where it ends
            break
        length *= 2
    raise UserError(
        f"steps = {settings.steps}, but these faults leave {left} of {plain.steps} steps: lower steps, k or the faults."
    )


def _timeline(settings: RunSettings, steps: int) -> Timeline:
    """So many steps without faults; all rules of a comparison share it, and playing a clock takes its time."""
    decisive = json.dumps([settings.table()[name] for name in DECIDE_ARRIVALS], sort_keys=True)
    again = settings.arrivals.kind in ("file", "uniform") or steps * settings.k > KEPT
    return (_played.__wrapped__ if again else _played)(decisive, steps)


@functools.lru_cache(maxsize=64)
def _played(decisive: str, steps: int) -> Timeline:
    arrivals, clients, k, seed = json.loads(decisive)
    kind = arrivals.pop("kind")
    if components.is_own(arrivals.get("select")):
        arrivals["select"] = components.load(arrivals["select"], "select")
    return described.timeline(kind, arrivals, clients, k, steps, seed)


def arrivals_from(text: str | None, trace: str | Path | None = None) -> dict[str, Any] | None:
    """[arrivals] from `clock:durations=pareto,shape=2` and a trace: a csv of client,seconds, or a folder of traces."""
    if trace is None:
        return described.parsed(text) if text else None
    table = described.parsed(text) if text else {"kind": "clock"}
    if table["kind"] != "clock":
        raise UserError(f"arrivals = {text!r} beside the trace {trace}: a trace is played by the clock, clock:... .")
    if "durations" in table:
        raise UserError(f"{trace} and {text!r} both say how long work takes: name no durations beside a trace.")
    if Path(trace).is_dir():
        return {**table, "kind": "traces", "folder": str(trace)}
    return {**table, "durations": {"kind": "trace", "source": str(trace)}}


def faults_of(settings: RunSettings) -> tuple[Fault, ...]:
    """The faults, as long as there are clients to have them."""
    found = listed(faults.build(fault.kind, **fault.settings) for fault in settings.faults)
    for fault in found:
        chances(fault, settings.clients, settings.seed)
    return found


# ---- settings, completed and checked


def resolved(settings: RunSettings) -> RunSettings:
    """Everything filled in and checked, as far as that is possible without data."""
    try:
        return _completed(settings)
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError) as problem:  # a part refuses a number, or cannot do with a text
        raise UserError(" ".join(f"{problem}".split()).rstrip(".") + ".") from problem
    except MemoryError:
        raise UserError(
            f"clients = {settings.clients} and k = {settings.k} need more memory than there is: choose fewer."
        ) from None


def _completed(settings: RunSettings) -> RunSettings:
    _check_names(settings)
    for name, least in (("clients", 1), ("k", 1), ("steps", 1), ("seed", 0), ("evaluate_every", 0), ("accepted", 0)):
        checks.count(name, getattr(settings, name), least)
    sizes(settings.clients, settings.k, settings.steps)
    share = settings.validation
    if not 0 <= share < 1:
        raise UserError(f"validation = {share}: give a share below 1, such as 0.1, or 0 for the test set.")
    own_data = components.is_own(settings.dataset)
    faulty = zip(settings.faults, faults_of(settings), strict=True)
    settings = replace(
        settings,
        evaluate_every=settings.evaluate_every or max(1, settings.steps // EVALUATIONS),
        model=settings.model or ("mlp" if own_data else models.default_for(settings.dataset)),
        staleness="none" if settings.rule.kind == FRESH else settings.staleness,
        arrivals=_arrivals(settings),
        rule=_rule(settings),
        partition=_partition(settings.partition),
        faults=tuple(_fault(choice, fault) for choice, fault in faulty),
    )
    sections = {name: getattr(settings, name).kind for name in ("rule", "work")}
    plain = {name: getattr(settings, name) for name in ("dataset", "model", "loss")}
    named = {**plain, **sections, **{f"metric {name}": name for name in settings.metrics}}
    own = {kind: components.load(name, kind) for kind, name in named.items() if components.is_own(name)}
    settings = replace(settings, own={kind: fingerprint.of(code) for kind, code in own.items()})
    _check_device(settings)
    timeline_of(replace(settings, steps=1, faults=()))  # what needs no data: wrong numbers in a section are found
    work_of(settings)
    if settings.rule.kind != NO_RULE:
        rule_of(settings, lambda params: params)
    return settings


def _arrivals(settings: RunSettings) -> Choice:
    """A rule that schedules its clients itself, such as GSGM, gets the timeline it wants instead of a uniform one."""
    if settings.rule.kind != NO_RULE and settings.arrivals.kind == "uniform":
        return Choice(facts_of(settings.rule.kind).arrivals or "uniform", settings.arrivals.settings)
    if settings.arrivals.kind == "file" and "path" in settings.arrivals.settings:
        return settings.arrivals.having(fingerprint=described.stored(settings.arrivals.settings).fingerprint())
    return settings.arrivals


def _rule(settings: RunSettings) -> Choice:
    """The rule with all its settings written out, and those that follow from the run filled in."""
    kind, given = settings.rule.kind, dict(settings.rule.settings)
    if kind == NO_RULE:
        return Choice(NO_RULE)
    facts = facts_of(kind)
    parameters = facts.settings
    own = [name for name in parameters if name != "server_gradient"]
    ours = OURS if "server_gradient" in parameters else OURS[:1]
    for name in given:
        if name not in own and name not in ours:
            raise unknown(f"setting of {kind}", name, [*own, *ours])
    filled = facts.settings_of_run(settings.clients, settings.k)
    values = {}
    for name in own:
        value = given.get(name, filled.get(name, parameters[name].default))
        if value is inspect.Parameter.empty:
            raise UserError(f"rule {kind!r} needs {name}: give it in [rule], or as --set {name}=VALUE.")
        later = name in LATER and value == parameters[name].default
        if isinstance(value, bool | int | float | str | tuple | list | Mapping) and not later:
            values[name] = value
    if len(ours) > 1:
        values["server_samples"] = SERVER_SAMPLES
        for name in OURS[1:]:
            checks.count(name, given.get(name, SERVER_SAMPLES))
    return settings.rule.spelled_out(values | {name: value for name, value in given.items() if name in OURS})


def _partition(choice: Choice) -> Choice:
    shown = vars(data.partition.build(choice.kind, **choice.settings))
    return choice.spelled_out({name: value for name, value in shown.items() if value or name not in LATER})


def _fault(choice: Choice, fault: Fault) -> Choice:
    shown = {name: value for name, value in vars(fault).items() if value is not None}
    if fault.clients is not None:
        del shown["share"]
    return choice.spelled_out(shown)


def _check_names(settings: RunSettings) -> None:
    for kind, value, options in (
        ("dataset", settings.dataset, data.names()),
        ("model", settings.model or "mlp", models.names()),
        ("scale", settings.scale, SCALES),
        ("staleness", settings.staleness, STALENESS),
        ("optimizer", settings.optimizer, OPTIMIZERS),
        ("precision", settings.precision, PRECISIONS),
        ("hold", settings.hold, HOLDS),
    ):
        if value not in options and not (components.is_own(value) and kind in OWN):
            raise unknown(kind, value, options)
    for kind, name in (("loss", settings.loss), *(("metric", name) for name in settings.metrics)):
        if name and not callable(components.load(name, kind)):
            raise UserError(f"{kind} {name!r} is no function: name one.")


def _check_device(settings: RunSettings) -> None:
    if settings.device_kind not in ("cpu", "cuda"):
        raise UserError(f"device = {settings.device!r}: give 'cpu', or 'cuda' for a GPU.")
    check_device(settings.device)
    if settings.precision == "tf32" and settings.device_kind != "cuda":
        raise UserError(f"precision = 'tf32' on device {settings.device!r}: it is for a GPU, choose device 'cuda'.")
