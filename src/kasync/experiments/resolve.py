"""What did the person leave out, and can the rest work? Settings completed and checked before any work is done."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from kasync import checks
from kasync.errors import UserError, unknown
from kasync.experiments.settings import Choice, RunSettings
from kasync.timelines.checks import sizes

EVALUATIONS = 50  # in a run whose settings do not say
OURS = ("without", "server_samples", "server_classes")  # settings of [rule] that are not the rule's own
SERVER_SAMPLES = 100
GSGM_MOMENTUM = 0.1  # the paper's alpha
NO_RULE = "none"  # the timeline is made and measured, nothing is trained
FRESH = "fresh"  # K-async SGD in the limit without staleness


def resolve(settings: RunSettings) -> RunSettings:
    """Everything filled in; what cannot work is refused with a sentence."""
    try:
        return _resolved(settings)
    except UserError:
        raise
    except (ValueError, TypeError, OverflowError) as problem:  # a part refuses a number, or cannot do with a text
        raise UserError(" ".join(f"{problem}".split()).rstrip(".") + ".") from problem
    except MemoryError:
        raise UserError(
            f"clients = {settings.clients} and k = {settings.k} need more memory than there is: choose fewer."
        ) from None


def _resolved(settings: RunSettings) -> RunSettings:
    checks.count("clients", settings.clients)
    checks.count("k", settings.k)
    checks.count("steps", settings.steps)
    checks.count("seed", settings.seed, least=0)
    checks.count("evaluate_every", settings.evaluate_every, least=0)
    if settings.k > settings.clients:
        raise UserError(
            f"k = {settings.k} is more than clients = {settings.clients}: lower k or raise clients; a client delivers "
            f"at most once per step."
        )
    sizes(settings.clients, settings.k, settings.steps)
    if not 0 <= settings.validation < 1:
        raise UserError(
            f"validation = {settings.validation}: give a share below 1, such as 0.1, or 0 for the test set."
        )
    settings = replace(
        settings,
        evaluate_every=settings.evaluate_every or max(1, settings.steps // EVALUATIONS),
        model=settings.model or _model(settings.dataset),
        staleness="none" if settings.rule.kind == FRESH else settings.staleness,
        arrivals=_arrivals(settings),
        rule=_rule(settings),
        work=_work(settings.work),
        partition=_partition(settings.partition),
        faults=_faults(settings),
    )
    _check_names(settings)
    _check_parts(settings)
    return settings


def _model(dataset: str) -> str:
    from kasync import models

    return models.default_for(dataset)


def _arrivals(settings: RunSettings) -> Choice:
    """GSGM schedules its clients itself: uniform arrivals become rounds in which each delivers once."""
    if settings.rule.kind == "gsgm" and settings.arrivals.kind == "uniform":
        return Choice("once_per_round", settings.arrivals.settings)
    if settings.arrivals.kind == "file" and "path" in settings.arrivals.settings:
        from kasync.experiments.arrivals import stored

        timeline = stored(settings.arrivals.settings)
        return settings.arrivals.having(fingerprint=timeline.fingerprint())
    return settings.arrivals


def _rule(settings: RunSettings) -> Choice:
    """The rule with all its settings written out, and those that follow from the run filled in."""
    from kasync import rules

    kind, given = settings.rule.kind, dict(settings.rule.settings)
    if kind == NO_RULE:
        return Choice(NO_RULE)
    actual = rule_name(kind)
    if actual not in rules.RULES:
        raise unknown("rule", kind, [*rules.RULES, FRESH])
    parameters = inspect.signature(rules.RULES[actual]).parameters
    own = {name for name in parameters if name not in ("optimizer", "schedule", "server_gradient")}
    trusts = "server_gradient" in parameters
    for name in given:
        if name not in own and name not in (OURS if trusts else OURS[:1]):
            raise unknown(f"setting of {kind}", name, [*own, *(OURS if trusts else OURS[:1])])
    filled: dict[str, Any] = {
        "clients": settings.clients,
        "concurrency": settings.clients / settings.k,  # the average staleness, the choice of its papers
        "max_staleness": settings.clients / settings.k if kind == "ringmaster" else None,
        "momentum": GSGM_MOMENTUM if kind == "gsgm" else None,
    }
    values = {}
    for name in sorted(own, key=list(parameters).index):
        default = parameters[name].default
        fallback = filled.get(name)
        value = given.get(name, fallback if fallback is not None else default)
        if value is inspect.Parameter.empty:
            raise UserError(f"rule {kind!r} needs {name}: give it in [rule], or as --set {name}=VALUE.")
        if isinstance(value, bool | int | float | str | tuple | list | Mapping):
            values[name] = list(value) if isinstance(value, tuple) else value
    if trusts:
        values["server_samples"] = SERVER_SAMPLES
        for name in OURS[1:]:
            checks.count(name, given.get(name, SERVER_SAMPLES))
    return Choice(kind, values | {name: value for name, value in given.items() if name in OURS})


def rule_name(kind: str) -> str:
    """The rule behind a kind of [rule]."""
    return "kasync_sgd" if kind == FRESH else kind


def _work(work: Choice) -> Choice:
    from kasync.experiments.build import WORKS

    if work.kind not in WORKS:
        raise unknown("kind of [work]", work.kind, WORKS)
    known = inspect.signature(WORKS[work.kind]).parameters
    for name in work.settings:
        if name not in known:
            raise unknown(f"setting of work {work.kind!r}", name, known)
    missing = [name for name in known if name not in work.settings]
    if missing:
        raise UserError(f"work {work.kind!r} needs {' and '.join(missing)}: give it in [work].")
    return work


def _partition(choice: Choice) -> Choice:
    """With its defaults written out."""
    from kasync.data import partition

    way = partition.build(choice.kind, **choice.settings)
    shown = {each.name: getattr(way, each.name) for each in fields(way)}
    if not shown["allow_empty"]:
        del shown["allow_empty"]
    return Choice(choice.kind, {n: list(v) if isinstance(v, tuple) else v for n, v in shown.items()})


def _faults(settings: RunSettings) -> tuple[Choice, ...]:
    """With their defaults written out, as long as there are clients to have them."""
    from kasync.experiments.faulty import completed, faults_of

    faults_of(settings)
    return tuple(completed(fault) for fault in settings.faults)


def _check_names(settings: RunSettings) -> None:
    from kasync import data, models
    from kasync.data.federated import SCALES
    from kasync.experiments.build import OPTIMIZERS
    from kasync.simulator.memory import HOLDS
    from kasync.simulator.plan import STALENESS

    for kind, value, options in (
        ("dataset", settings.dataset, data.names()),
        ("model", settings.model, models.names()),
        ("scale", settings.scale, SCALES),
        ("staleness", settings.staleness, STALENESS),
        ("optimizer", settings.optimizer, OPTIMIZERS),
        ("hold", settings.hold, HOLDS),
    ):
        if value not in options:
            raise unknown(kind, value, options)


def _check_parts(settings: RunSettings) -> None:
    """Build what needs no data, so that a wrong number in a section is found now."""
    from kasync.experiments.arrivals import timeline_of
    from kasync.experiments.build import rule_of, work_of

    _check_device(settings.device)
    timeline_of(replace(settings, steps=1, faults=()))
    work_of(settings)
    if settings.rule.kind != NO_RULE:
        rule_of(settings, lambda params: params)


def _check_device(device: str) -> None:
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"device = {device!r}: give 'cpu', or 'cuda' for a GPU.") from None
    if kind not in ("cpu", "cuda"):
        raise UserError(f"device = {device!r}: give 'cpu', or 'cuda' for a GPU.")
    if kind == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (torch.device(device).index or 0) >= there:
            raise UserError(f"device = {device!r}: there are {there} CUDA GPUs here; use --device cpu.")
