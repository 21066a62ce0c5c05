"""Settings completed from defaults and checked before any work is done."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from kasync import checks, components
from kasync.errors import UserError, unknown
from kasync.experiments.settings import Choice, RunSettings
from kasync.timelines.checks import sizes

if TYPE_CHECKING:
    from kasync.rules import Facts

EVALUATIONS = 50  # in a run whose settings do not say
OURS = ("without", "server_samples", "server_classes", "server_batch")  # settings of [rule] that are not the rule's own
SERVER_SAMPLES = 100
PRECISIONS = ("float32", "tf32")
OWN = ("dataset", "model")  # that may be the user's, beside rules, works, losses and metrics
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
    _check_names(settings)
    checks.count("clients", settings.clients)
    checks.count("k", settings.k)
    checks.count("steps", settings.steps)
    checks.count("seed", settings.seed, least=0)
    checks.count("evaluate_every", settings.evaluate_every, least=0)
    checks.count("accepted", settings.accepted, least=0)
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
    settings = replace(settings, own=_fingerprints(settings))
    _check_parts(settings)
    return settings


def _fingerprints(settings: RunSettings) -> dict[str, str]:
    """Of the code of everything that is named module:name, so that another code is another run."""
    from kasync import fingerprint

    sections = {name: getattr(settings, name).kind for name in ("rule", "work")}
    plain = {name: getattr(settings, name) for name in ("dataset", "model", "loss")}
    named = {**plain, **sections, **{f"metric {name}": name for name in settings.metrics}}
    own = {kind: name for kind, name in named.items() if components.is_own(name)}
    return {kind: fingerprint.of(components.load(name, kind)) for kind, name in own.items()}


def _model(dataset: str) -> str:
    from kasync import models

    return "mlp" if components.is_own(dataset) else models.default_for(dataset)


def _arrivals(settings: RunSettings) -> Choice:
    """A rule that schedules its clients itself, such as GSGM, gets the timeline it wants instead of a uniform one."""
    if settings.rule.kind != NO_RULE and settings.arrivals.kind == "uniform":
        return Choice(facts_of(settings.rule.kind).arrivals or "uniform", settings.arrivals.settings)
    if settings.arrivals.kind == "file" and "path" in settings.arrivals.settings:
        from kasync.experiments.arrivals import stored

        timeline = stored(settings.arrivals.settings)
        return settings.arrivals.having(fingerprint=timeline.fingerprint())
    return settings.arrivals


def _rule(settings: RunSettings) -> Choice:
    """The rule with all its settings written out, and those that follow from the run filled in."""
    kind, given = settings.rule.kind, dict(settings.rule.settings)
    if kind == NO_RULE:
        return Choice(NO_RULE)
    facts = facts_of(kind)
    parameters = facts.settings
    own = [name for name in parameters if name != "server_gradient"]
    trusts = "server_gradient" in parameters
    for name in given:
        if name not in own and name not in (OURS if trusts else OURS[:1]):
            raise unknown(f"setting of {kind}", name, [*own, *(OURS if trusts else OURS[:1])])
    filled = facts.settings_of_run(settings.clients, settings.k)
    values = {}
    for name in own:
        value = given.get(name, filled.get(name, parameters[name].default))
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


def facts_of(kind: str) -> Facts:
    """What is known of the rule behind a kind of [rule]; a misspelt one is an error that names the nearest."""
    from kasync import rules

    if kind == FRESH:
        return replace(rules.facts(rule_name(FRESH)), title="no staleness", place=6)
    if kind not in rules.RULES and ":" not in kind:
        raise unknown("rule", kind, [*rules.RULES, FRESH])
    return rules.facts(kind)


def _is_rule(label: str) -> bool:
    from kasync import rules

    return label == FRESH or label in rules.RULES


def title_of(label: str) -> str:
    """The title of a rule; another label, such as that of a variant, is a title already."""
    return facts_of(label).title if _is_rule(label) else label.rpartition(":")[2]


def place_of(label: str) -> int | None:
    """Which of the report's eight looks a well-known rule always has."""
    return facts_of(label).place if _is_rule(label) else None


def _work(work: Choice) -> Choice:
    from kasync.experiments.build import WORKS

    make = components.find(work.kind, "kind of [work]", WORKS)
    if not callable(make):
        return work
    known = inspect.signature(make).parameters
    for name in work.settings:
        if name not in known and "options" not in known:
            raise unknown(f"setting of work {work.kind!r}", name, known)
    missing = [name for name in components.required(make) if name not in work.settings]
    if missing:
        raise UserError(f"work {work.kind!r} needs {' and '.join(missing)}: give it in [work].")
    return work


def _partition(choice: Choice) -> Choice:
    """With its defaults written out."""
    from kasync.data import partition

    way = partition.build(choice.kind, **choice.settings)
    shown = {each.name: getattr(way, each.name) for each in fields(way)}
    for later in ("allow_empty", "least"):  # runs made before there was such a setting keep their names
        if not shown.get(later, True):
            del shown[later]
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


def _check_parts(settings: RunSettings) -> None:
    """Build what needs no data, so that a wrong number in a section is found now."""
    from kasync.experiments.arrivals import timeline_of
    from kasync.experiments.build import rule_of, work_of

    _check_device(settings.device)
    if settings.precision == "tf32" and settings.device_kind != "cuda":
        raise UserError(f"precision = 'tf32' on device {settings.device!r}: it is for a GPU, choose device 'cuda'.")
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
