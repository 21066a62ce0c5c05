"""The file of settings that tuning chose, with every value that was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kasync.errors import UserError, unknown
from kasync.experiments import files, toml

FORMAT = "kasync tuned settings"
KEYS = ("task", "problem", "rule", "settings", "accuracy", "at_edge", "diverged")


@dataclass(frozen=True)
class Chosen:
    """For one rule on one task: the settings, their accuracy on held-out samples, and if the grid's end was best."""

    task: str
    problem: str
    rule: str
    settings: Mapping[str, Any]
    accuracy: float
    at_edge: bool = False


@dataclass(frozen=True)
class Tuned:
    """Everything that was chosen."""

    source: str
    chosen: Sequence[Chosen]

    def applied(self, values: Mapping[str, Any], task: str, problem: str, rule: str) -> dict[str, Any]:
        """The rule's settings with the chosen ones: for this task if it was tuned, else for its problem."""
        for match in (lambda row: row.task == task, lambda row: row.problem == problem):
            for row in self.chosen:
                if row.rule == rule and match(row):
                    kept = {name: value for name, value in values.items() if name != "lr_per_arrival"}
                    return {**kept, **row.settings}
        raise UserError(f"{self.source} has nothing for the rule {rule!r} on {problem!r}: tune it first.")

    @classmethod
    def read(cls, path: Path) -> Tuned:
        table = toml.read(path)
        if table.get("format") != FORMAT:
            raise UserError(f"{path} is not a file that kasync tune wrote: give one.")
        rows = []
        for row in table.get("chosen", []):
            for key in row:
                if key not in KEYS:
                    raise unknown(f"key in {path.name}", key, KEYS)
            rows.append(Chosen(**{name: value for name, value in row.items() if name != "diverged"}))
        return cls(str(path), rows)


def write(path: Path, about: Mapping[str, Any], chosen: Sequence[Chosen], tried: Sequence[Mapping[str, Any]]) -> None:
    """The choices, then all that was tried; what the file says of other tasks and rules, searched alike, stays."""
    head = {"format": FORMAT, **about}
    choices: list[Mapping[str, Any]] = [{**vars(row), "settings": dict(row.settings)} for row in chosen]
    lists = {"chosen": choices, "tried": list(tried)}
    before = toml.read(path) if path.exists() else {}
    if all(before.get(name) == value for name, value in head.items()):
        now = {(row.task, row.rule) for row in chosen}
        for name, rows in lists.items():
            lists[name] = [row for row in before.get(name, []) if (row["task"], row["rule"]) not in now] + rows
    files.write(path, toml.dumps(head | lists))
