"""One run as a value: every setting that decides its numbers, from TOML or flags, completed and checked before work."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import kasync
from kasync import components, files
from kasync.errors import UserError, unknown

if TYPE_CHECKING:
    from kasync.rules import Facts

ELSEWHERE = ("root", "device", "hold")  # where and how a run is made, which does not decide its numbers
SECTIONS = ("partition", "arrivals", "rule", "work")
OPTIONAL = ("faults", "data", "model_settings", "loss", "metrics", "own")  # written down where they are given
EVALUATIONS = 50  # in a run whose settings do not say
OURS = ("without", "server_samples", "server_classes", "server_batch")  # settings of [rule] that are not the rule's own
SERVER_SAMPLES = 100  # that a server which needs a gradient of its own holds
NO_RULE = "none"  # the timeline is made and measured, nothing is trained
FRESH = "fresh"  # K-async SGD in the limit without staleness


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

    def spelled_out(self, settings: Mapping[str, Any]) -> Choice:
        """With all of its settings, as TOML says them."""
        return Choice(self.kind, {n: list(v) if isinstance(v, tuple) else v for n, v in settings.items()})


EXAMPLES = {"partition": "labels", "arrivals": "uniform", "rule": "wkafl", "work": "gradient", "faults": "flip_sign"}


@dataclass(frozen=True)
class RunSettings:
    """One run. `resolved()` fills in what depends on something else and refuses what cannot work."""

    dataset: Annotated[str, "Which data: see kasync data ls, or module:name."] = "digits"
    model: Annotated[str, "The network: a name, or module:name for your own; the paper's for these data without."] = ""
    scale: Annotated[str, "Pixels: unit, raw or symmetric."] = "unit"
    clients: Annotated[int, "How many clients there are."] = 100
    k: Annotated[int, "Deliveries per step."] = 10
    steps: Annotated[int, "Server steps."] = 1000
    accepted: Annotated[int, "End at the first evaluation after so many steps that took something; 0: after all."] = 0
    seed: Annotated[int, "Decides all that is random."] = 0
    staleness: Annotated[str, "true, published-code or none."] = "true"
    schedule: Annotated[str, "constant, linear, cosine or step."] = "constant"
    optimizer: Annotated[
        str,
        "Of the server: none (the rule's own), plain, momentum, nesterov, adam, adamw, adagrad, adafactor, rmsprop, "
        "fedadam, yogi, look_ahead, heloco, delayed_nesterov or muon.",
    ] = "none"
    evaluate_every: Annotated[int, "Steps between evaluations; 0: fifty times in the run."] = 0
    validation: Annotated[float, "Share of the training samples held out and tested on; 0: the test set."] = 0.0
    device: Annotated[str, "cpu, cuda or cuda:1."] = "cpu"
    precision: Annotated[str, "Of the clients' products; tf32 rounds their factors on a GPU."] = "float32"
    hold: Annotated[str, "What waits for a stale client: gradients or versions; auto takes the faster."] = "auto"
    root: Annotated[str, "Folder of the data; without it $KASYNC_DATA."] = ""
    partition: Annotated[Choice, "Who holds what: labels:per_client=1 ..."] = Choice("labels", {"per_client": 1})
    arrivals: Annotated[Choice, "Who comes when: uniform, clock:durations=pareto,shape=2, phones:samples=500 ..."] = (
        Choice("uniform")
    )
    rule: Annotated[Choice, "What the server does: see kasync rules, or module:name."] = Choice("wkafl")
    work: Annotated[Choice, "What clients bring: gradient, local:batch_size=8,epochs=1,lr=0.1, or module:name."] = (
        Choice("gradient", {"batch_size": 8})
    )
    faults: Annotated[tuple[Choice, ...], "What goes wrong: flip_sign:share=0.1, stall:share=0.2,delay=30 ..."] = ()
    data: Annotated[Mapping[str, Any], "Settings of the data set itself."] = field(default_factory=dict)
    model_settings: Annotated[Mapping[str, Any], "Such as layers = 2 of gpt."] = field(default_factory=dict)
    loss: Annotated[str, "A loss of your own: module:name, or path/file.py:name."] = ""
    metrics: Annotated[tuple[str, ...], "A function of test outputs and labels, module:name."] = ()
    own: Annotated[Mapping[str, Any], "Fingerprints of all that is named module:name."] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "the settings") -> RunSettings:
        """From tables as TOML gives them; [made], which a finished run adds, is not read."""
        known = get_type_hints(cls)
        if "made_by" in table:
            made = "made from values of Python, which settings cannot name"
            raise UserError(f"{where}: {made}: call {table['made_by']} again instead.")
        for name in table:
            if name not in known and name != "made":
                raise unknown(f"setting in {where}", name, known)
        return cls(**{name: _typed(name, value, known[name]) for name, value in table.items() if name != "made"})

    @classmethod
    def read(cls, path: Path) -> RunSettings:
        """From a file; a timeline file is looked for beside it."""
        settings = cls.of(files.read_toml(path), str(path))
        if settings.arrivals.kind != "file" or "path" not in settings.arrivals.settings:
            return settings
        timeline = path.parent / str(settings.arrivals.settings["path"])
        return replace(settings, arrivals=settings.arrivals.having(path=str(timeline)))

    def table(self) -> dict[str, Any]:
        """As tables, the opposite of `of`."""
        return {name: _as_table(value) for name, value in vars(self).items() if value or name not in OPTIONAL}

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

    def resolved(self) -> RunSettings:
        """Everything filled in and checked, as far as that is possible without data."""
        from kasync.experiments.build import resolved  # which needs torch

        return resolved(self)


KINDS: dict[Any, tuple[type, str]] = {
    str: (str, "a text in quotes"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    Mapping[str, Any]: (dict, "a table"),
}


def _typed(name: str, value: Any, wanted: Any) -> Any:
    """The value, if it is of the kind the setting wants; whole numbers serve as real ones, a text as a list of it."""
    if wanted is Choice:
        return Choice.of(name, value)
    if wanted == tuple[Choice, ...]:
        if not isinstance(value, list | tuple):
            raise UserError(f"{name} = {value!r}: write [[{name}]] with a kind, such as kind = {EXAMPLES[name]!r}.")
        return tuple(Choice.of(name, table) for table in value)
    if wanted == tuple[str, ...]:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
            raise UserError(f'{name} = {value!r}: give a list of texts, ["mine:f1"], say.')
        return tuple(names)
    kind, words = KINDS[wanted]
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{name} = {value!r}: give {words}.")
    return value


def _as_table(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_table(each) for each in value]
    return value.table() if isinstance(value, Choice) else dict(value) if isinstance(value, Mapping) else value


# ---- what is known of rules


def facts_of(kind: str) -> Facts:
    """What is known of the rule behind a kind of [rule]; a misspelt one is an error that names the nearest."""
    if kind == FRESH:
        return replace(kasync.rules.facts("kasync_sgd"), title="no staleness", place=6)
    if kind not in kasync.rules.RULES and not components.is_own(kind):
        raise unknown("rule", kind, [*kasync.rules.RULES, FRESH])
    return kasync.rules.facts(kind)


def built_in(label: str) -> Facts | None:
    """The facts of a built-in rule; a variant has a label of its own."""
    return facts_of(label) if label == FRESH or label in kasync.rules.RULES else None


def title_of(label: str) -> str:
    """The title of a rule; another label, such as that of a variant, is a title already."""
    facts = built_in(label)
    return facts.title if facts else components.short(label)
