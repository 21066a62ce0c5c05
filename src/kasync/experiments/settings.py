"""One run as a value: every setting that decides its numbers, read from and written to TOML."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kasync.errors import UserError, unknown
from kasync.experiments import toml

ELSEWHERE = ("root", "device", "hold")  # where and how a run is made, which does not decide its numbers
SECTIONS = ("partition", "arrivals", "rule", "work")
OPTIONAL = ("faults", "data", "model_settings", "loss", "metrics", "own")  # written down where they are given


@dataclass(frozen=True)
class Choice:
    """One of several kinds, with its own settings: partition labels, per_client 1."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, section: str, table: Any) -> Choice:
        if isinstance(table, str):
            return cls(table)
        if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
            raise UserError(f"[{section}] says no kind: write one, such as kind = {EXAMPLES[section]!r}.")
        return cls(table["kind"], {name: value for name, value in table.items() if name != "kind"})

    def table(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.settings}

    def having(self, **settings: Any) -> Choice:
        return replace(self, settings={**self.settings, **settings})


EXAMPLES = {
    "partition": "labels",
    "arrivals": "uniform",
    "rule": "wkafl",
    "work": "gradient",
    "faults": "flip_sign",
}


@dataclass(frozen=True)
class RunSettings:
    """One run. `resolved()` fills in what depends on something else and refuses what cannot work."""

    dataset: str = "digits"
    model: str = ""  # "": the paper's for this data set
    scale: str = "unit"
    clients: int = 100
    k: int = 10
    steps: int = 1000
    accepted: int = 0  # end at the first evaluation after so many steps that took something; 0: after all steps
    seed: int = 0
    staleness: str = "true"
    schedule: str = "constant"
    optimizer: str = "none"
    evaluate_every: int = 0  # 0: fifty times in the run
    validation: float = 0.0  # share of the training samples held out and tested on; 0: the test set
    device: str = "cpu"
    precision: str = "float32"  # of clients' products; "tf32" rounds their factors on a GPU
    hold: str = "auto"
    root: str = ""  # folder of the data; "": $KASYNC_DATA
    partition: Choice = Choice("labels", {"per_client": 1})
    arrivals: Choice = Choice("uniform")
    rule: Choice = Choice("wkafl")
    work: Choice = Choice("gradient", {"batch_size": 8})
    faults: tuple[Choice, ...] = ()  # what goes wrong: see kasync.faults
    data: Mapping[str, Any] = field(default_factory=dict)  # settings of the data set itself
    model_settings: Mapping[str, Any] = field(default_factory=dict)  # such as layers = 2 of gpt
    loss: str = ""  # module:name of a loss of one's own
    metrics: tuple[str, ...] = ()  # module:name of functions of test outputs and labels
    own: Mapping[str, Any] = field(default_factory=dict)  # fingerprints of all that is named module:name

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "the settings") -> RunSettings:
        """From tables as TOML gives them; [made], which a finished run adds, is not read."""
        known = {each.name: each for each in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in table.items():
            if name == "made":
                continue
            if name not in known:
                raise unknown(f"setting in {where}", name, known)
            if name == "faults":
                values[name] = _faults(value)
            elif name == "metrics":
                values[name] = _names(name, value)
            else:
                values[name] = Choice.of(name, value) if name in SECTIONS else _typed(name, value, known[name].type)
        return cls(**values)

    @classmethod
    def read(cls, path: Path) -> RunSettings:
        """From a file; a timeline file is looked for beside it."""
        settings = cls.of(toml.read(path), str(path))
        if settings.arrivals.kind != "file" or "path" not in settings.arrivals.settings:
            return settings
        timeline = path.parent / str(settings.arrivals.settings["path"])
        return replace(settings, arrivals=settings.arrivals.having(path=str(timeline)))

    def table(self) -> dict[str, Any]:
        """As tables, the opposite of `of`."""
        named = [each.name for each in fields(self) if each.name not in (*SECTIONS, *OPTIONAL)]
        plain = {name: getattr(self, name) for name in named}
        plain |= {"loss": self.loss} if self.loss else {}
        plain |= {"metrics": list(self.metrics)} if self.metrics else {}
        sections = {name: getattr(self, name).table() for name in SECTIONS}
        faults = {"faults": [fault.table() for fault in self.faults]} if self.faults else {}
        tables = {name: dict(getattr(self, name)) for name in ("data", "model_settings", "own") if getattr(self, name)}
        return plain | sections | faults | tables

    def resolved(self) -> RunSettings:
        """Everything filled in and checked, as far as that is possible without data."""
        from kasync.experiments.resolve import resolve

        return resolve(self)

    @property
    def identity(self) -> str:
        """64 hexadecimal digits that two runs share when they give the same numbers."""
        decisive = {name: value for name, value in self.table().items() if name not in ELSEWHERE}
        decisive["device"] = self.device_kind
        if self.arrivals.kind == "file":  # its fingerprint says what is in it, wherever it lies
            decisive["arrivals"] = {name: v for name, v in decisive["arrivals"].items() if name != "path"}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    @property
    def device_kind(self) -> str:
        """cpu or cuda: which kind of device computes decides the last digits, which of its kind does not."""
        return self.device.partition(":")[0]

    @property
    def name(self) -> str:
        """A folder name: data set, rule, and ten digits of the identity."""
        words = [re.sub(r"[^\w.-]", "-", each.rpartition(":")[2]) for each in (self.dataset, self.rule.kind)]
        return f"{words[0]}-{words[1]}-{self.identity[:10]}"


def _faults(value: Any) -> tuple[Choice, ...]:
    """One table for each fault."""
    if not isinstance(value, list | tuple):
        raise UserError(f"faults = {value!r}: write [[faults]] with a kind, such as kind = {EXAMPLES['faults']!r}.")
    return tuple(Choice.of("faults", table) for table in value)


def _names(name: str, value: Any) -> tuple[str, ...]:
    """One name, or a list of them."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
        raise UserError(f'{name} = {value!r}: give a list of texts, ["mine:f1"], say.')
    return tuple(names)


def _typed(name: str, value: Any, wanted: Any) -> Any:
    """The value, if it is of the kind the setting wants; a whole number serves as a real one."""
    kinds: dict[str, tuple[type, str]] = {
        "str": (str, "a text in quotes"),
        "int": (int, "a whole number"),
        "float": (float, "a number"),
        "Mapping[str, Any]": (dict, "a table"),
    }
    kind, words = kinds[str(wanted)]
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{name} = {value!r}: give {words}.")
    return value
