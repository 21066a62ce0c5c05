"""On which data, with which network and at which settings of the rules is something tried? One file per problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kasync.errors import UserError, unknown
from kasync.experiments import toml

FOLDER = Path(__file__).parent / "problems"
KEYS = ("title", "stands_for", "note", "run", "rules")


@dataclass(frozen=True)
class Problem:
    """Settings of the run and, by rule, of the rules; `stands_for` is the paper's data set, `note` what differs."""

    name: str
    title: str
    stands_for: str
    note: str
    run: Mapping[str, Any]
    rules: Mapping[str, Mapping[str, Any]]

    def settings_of(self, rule: str) -> Mapping[str, Any]:
        """The settings of a rule on this problem."""
        if rule not in self.rules:
            raise UserError(f"problem {self.name!r} has no settings for the rule {rule!r}: add [rules.{rule}] to it.")
        return self.rules[rule]


def names() -> list[str]:
    """The problems there are."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def problem(name: str) -> Problem:
    """The problem of this name."""
    if name not in names():
        raise unknown("problem", name, names())
    return read(FOLDER / f"{name}.toml")


def read(path: Path) -> Problem:
    """A problem from its file."""
    table = toml.read(path)
    for key in table:
        if key not in KEYS:
            raise unknown(f"key in {path.name}", key, KEYS)
    missing = [key for key in ("title", "run", "rules") if key not in table]
    if missing:
        raise UserError(f"{path} lacks {' and '.join(missing)}: add it.")
    return Problem(
        path.stem, table["title"], table.get("stands_for", ""), table.get("note", ""), table["run"], table["rules"]
    )
