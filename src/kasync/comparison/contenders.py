"""Contenders of a comparison: rules as values, names, functions or `module:name`, each with settings to tune."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

from kasync import components, rules
from kasync.components import Offered
from kasync.core import Rule
from kasync.errors import UserError, unknown
from kasync.rules import Facts

FIRST_RATE = 0.1  # where the search for a rate begins if nobody names one


@dataclass(frozen=True)
class Entrant:
    """A rule under the label that it has in the comparison; `make` builds it from its settings."""

    label: str
    make: Callable[..., Rule]
    settings: Mapping[str, Any]
    facts: Facts
    defaults: Mapping[str, Any] = field(default_factory=dict)  # settings that nobody gave

    def build(self, offered: Offered) -> Rule:
        """The rule; what its function asks for by name (clients, k, seed, server_gradient ...) is filled in."""
        rule = components.made(f"rule {self.label!r}", self.make, self.settings, offered)
        if not isinstance(rule, Rule):
            raise UserError(f"rule {self.label!r} gives {rule!r}, no rule: return kasync.Rule(name, lr, parts).")
        return rule

    def having(self, **settings: Any) -> Entrant:
        return replace(self, settings={**self.settings, **settings})

    @property
    def rate(self) -> str | None:
        """What its learning rate is called, where it has one."""
        return self.facts.rate if self.knows(self.facts.rate) else None

    def value(self, name: str) -> Any:
        """A setting as it is given, or else its default; None where there is neither."""
        return self.settings.get(name, self.defaults.get(name))

    def knows(self, name: str) -> bool:
        """Whether it has a setting of this name."""
        return name in self.settings or name in self.defaults

    @property
    def words(self) -> str:
        """Its settings as people write them."""
        shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in self.settings.items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


def contenders(given: Any) -> list[Entrant]:
    """From a rule, a list of them, or labels with rules; every label once."""
    if isinstance(given, Mapping):
        found = [_contender(label, rule) for label, rule in given.items()]
    elif isinstance(given, Rule | str) or callable(given):
        found = [_contender(None, given)]
    elif isinstance(given, Iterable):
        found = _numbered([_contender(None, rule) for rule in given])
    else:
        raise UserError(f"rules = {given!r}: give a list of rules, or labels with rules, {{'mine': my_rule(0.1)}}.")
    if not found:
        raise UserError("rules is empty: give at least one, such as kasync.rules.wkafl(0.05).")
    labels = [each.label for each in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UserError(f"two rules are called {twice[0]!r}: give labels with rules, {{'one': ..., 'two': ...}}.")
    return found


def _contender(label: str | None, given: Any) -> Entrant:
    """One contender from a rule, a name, a function, or one of these with settings."""
    settings: Mapping[str, Any] = {}
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        given, settings = given
    if isinstance(given, Rule):
        known = settings_of(given)
        facts = rules.facts(given.name) if given.name in rules.RULES else Facts(given.name, partial(changed, given), "")
        if facts.rate not in known:
            facts = replace(facts, rate="lr")
        own = {facts.rate: known[facts.rate], **settings}
        return Entrant(label or given.name, partial(changed, given), own, facts, known)
    if not (isinstance(given, str) or callable(given)):
        raise UserError(f"{given!r} is no rule: give kasync.rules.wkafl(0.05), a name, or a function that makes one.")
    make = rules.find(given) if isinstance(given, str) else given
    if isinstance(make, Rule):  # module:name of a rule that is made already
        return _contender(label or str(given).rpartition(":")[2], (make, settings))
    facts = rules.facts(make)
    defaults = {name: None if each.default is each.empty else each.default for name, each in facts.settings.items()}
    return Entrant(label or facts.name, make, dict(settings), facts, defaults)


def _numbered(found: list[Entrant]) -> list[Entrant]:
    """The same rule twice is told apart by its settings where they differ, else by a number."""
    labels = [each.label for each in found]
    seen: Counter[str] = Counter()
    numbered = []
    for each in found:
        label = f"{each.label} ({each.words})" if labels.count(each.label) > 1 and each.words else each.label
        seen[label] += 1
        numbered.append(replace(each, label=label if seen[label] == 1 else f"{label} ({seen[label]})"))
    return numbered


def settings_of(rule: Rule) -> dict[str, Any]:
    """The fields of a rule and of its parts that have a name of their own: lr, momentum, threshold ..."""
    found: dict[str, list[Any]] = {"lr": [rule.lr]}
    for part in rule.parts:
        for name, value in _fields(part):
            found.setdefault(name, []).append(value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def changed(rule: Rule, **settings: Any) -> Rule:
    """The rule with other values in the fields of these names."""
    known = settings_of(rule)
    for name, value in settings.items():
        if name not in known:
            raise unknown(f"setting of {rule.name}", name, known)
        if name == "lr":
            parts = (_with(part, part.of_lr, value) if hasattr(part, "of_lr") else part for part in rule.parts)
            rule = replace(rule, lr=value, parts=tuple(parts))
        else:
            rule = replace(rule, parts=tuple(_with(part, name, value) for part in rule.parts))
    return rule


def _fields(value: Any) -> Iterable[tuple[str, Any]]:
    """Every field of a dataclass and of the dataclasses in it."""
    for each in fields(value):
        inner = getattr(value, each.name)
        if is_dataclass(inner) and not isinstance(inner, type):
            yield from _fields(inner)
        elif each.init:
            yield each.name, inner


def _with(value: Any, name: str, new: Any) -> Any:
    changes: dict[str, Any] = {}
    for each in fields(value):
        inner = getattr(value, each.name)
        if is_dataclass(inner) and not isinstance(inner, type):
            changes |= {each.name: _with(inner, name, new)}
        elif each.name == name and each.init:
            changes[name] = new
    return replace(value, **changes) if changes else value
