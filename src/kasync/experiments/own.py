"""What does a person mean who names only a rule and a data set? The settings of the problem that suits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kasync.experiments import problems
from kasync.experiments.experiment import TITLES, Experiment, Task, Variant, merged
from kasync.experiments.problems import Problem
from kasync.experiments.resolve import rule_name
from kasync.experiments.settings import RunSettings

SUITS = {  # data set -> problem
    "digits": "digits",
    "mnist": "mnist",
    "emnist-mnist": "mnist",
    "emnist-byclass": "writers",
    "femnist": "writers",
    "cifar10": "cifar10",
    "celeba": "celeba",
}
SIZES = {"clients": 300, "k": 10}  # where neither the person nor the problem says
MAIN = "kasync_sgd"  # a rule without settings of its own on a problem takes the learning rate of this one
FALLBACK = Problem("own", "own", "", "", {"steps": 1000}, {MAIN: {"lr": 0.05}})


def problem_for(dataset: str) -> Problem:
    """The problem whose settings suit this data set, on this data set."""
    if dataset not in SUITS:
        return replace(FALLBACK, run={**FALLBACK.run, "dataset": dataset})
    suiting = problems.problem(SUITS[dataset])
    return replace(suiting, run={**SIZES, **suiting.run, "dataset": dataset})


def rule_table(kind: str, dataset: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """[rule] for this rule on this data set."""
    from kasync import rules
    from kasync.errors import unknown

    if rule_name(kind) not in rules.RULES:
        raise unknown("rule", kind, [*rules.RULES, "fresh"])
    return {"kind": kind, **_values(kind, problem_for(dataset), int(run.get("k", SIZES["k"])))}


def settings(kind: str, given: Mapping[str, Any], own: Mapping[str, Any]) -> RunSettings:
    """A run of this rule: what suits the data set, then what was given."""
    table = merged(SIZES, problem_for(str(given.get("dataset", "digits"))).run, given)
    rule = rule_table(kind, str(table["dataset"]), table)
    return RunSettings.of({**table, "rule": {**rule, **own}}, "the command line")


def comparison(
    labels: Sequence[str], given: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]], seeds: int
) -> Experiment:
    """An experiment with one task: these rules on what was given. `own` are settings by rule."""
    dataset = str(given.get("dataset", "digits"))
    base = problem_for(dataset)
    table = merged(SIZES, base.run, given)
    filled = {label: _values(label, base, int(table["k"])) | dict(own.get(label, {})) for label in labels}
    for label in labels:
        rule_table(label, dataset, table)  # refuses a misspelt rule
    title = f"{base.title}, P/K = {table['clients']}/{table['k']}"
    task = Task(dataset, title, replace(base, rules=filled), table, group=base.title)
    return Experiment(
        name="compare",
        title=f"{', '.join(TITLES.get(label, label) for label in labels)} on {title}",
        shows="Which rule is the most accurate, the steadiest and the fastest on the same arrivals?",
        command="kasync compare",
        rules=tuple(labels),
        tasks={"own": [task]},
        seeds={"own": seeds},
        variants={label: Variant(label, TITLES.get(label, label)) for label in labels},
    )


def _values(kind: str, base: Problem, k: int) -> dict[str, Any]:
    """A rule's settings on a problem; one it does not name takes the learning rate of K-async SGD."""
    values = dict(base.rules.get(kind) or base.rules[MAIN])
    if kind == "fedasync" and kind not in base.rules:
        values = {"mixing": 0.6}
    if "lr_per_arrival" in values:
        values["lr"] = values.pop("lr_per_arrival") * k
    return values
