"""Options that several commands share: those of a run are its settings, and how text becomes settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kasync import experiments
from kasync.errors import UserError
from kasync.experiments.settings import SECTIONS, RunSettings
from kasync.timelines.settings import split, value_of


def choice(text: str) -> dict[str, Any]:
    """labels:per_client=1,size=[10, 49] as { kind = "labels", per_client = 1, size = [10, 49] }."""
    kind, _, rest = text.partition(":")
    while rest and "=" not in rest.partition(":")[0]:  # module:name, perhaps with settings after it
        name, _, rest = rest.partition(":")
        kind = f"{kind}:{name}"
    return {"kind": kind, **(pairs(split(rest)) if rest else {})}


def pairs(texts: Sequence[str] | None) -> dict[str, Any]:
    """name=value, each value as TOML would read it, or as text."""
    found = {}
    for text in texts or ():
        name, sign, written = text.partition("=")
        if not sign or not name.strip():
            raise UserError(f"{text!r} is not name=value: write it so, lr=0.1, say.")
        found[name.strip()] = value_of(written.strip())
    return found


def names(texts: Sequence[str] | None) -> list[str] | None:
    """What was named, by commas or by naming the option again, once each; nothing as None."""
    found = [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
    return list(dict.fromkeys(found)) or None


def numbers(setting: str, text: str, kind: type) -> list[Any]:
    """1,10,100 as numbers of this kind."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        example = "whole numbers, 1,10,100" if kind is int else "numbers, 0.01,0.1"
        raise UserError(f"{setting} = {text!r}: give {example} say, separated by commas.") from None


def of_the_run(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of --set is a setting of the run itself (optimizer=adam, schedule=linear), and what is a rule's."""
    known = get_type_hints(RunSettings).keys() - {*SECTIONS, "clients", "k", "faults", "data"}
    mine = {name: value for name, value in given.items() if name in known}
    return mine, {name: value for name, value in given.items() if name not in known}


# ---- flags

AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Root = Annotated[str, typer.Option(help="Folder of the data; without it $KASYNC_DATA.", show_default=False)]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Jobs = Annotated[int, typer.Option(help="Runs at once on a GPU, stacked where alike.")]
Rules = Annotated[list[str] | None, typer.Option(help="Only these: a,b or named again.", show_default=False)]
RuleName = typer.Option(help="What the server does: see kasync rules, or module:name.")
Staleness = Annotated[str, typer.Option(help="true, published-code or both.")]
Track = Annotated[str | None, typer.Option(help="Log to tensorboard, mlflow or wandb as well, or to module:name.")]
Picture = Annotated[Path | None, typer.Option(help="Draw it into this file: picture.png, say.")]
Tasks = Annotated[
    list[str] | None, typer.Option(help="Only these: names or patterns, cifar10*, or named again.", show_default=False)
]
Flags = Mapping[str, tuple[Any, Any]]  # name -> (type and option, default)
CLUSTER: Flags = {
    "engine": (
        Annotated[str, typer.Option(help="local, or ray: runs side by side, or each spread over --workers.")],
        "local",
    ),
    "workers": (Annotated[int | None, typer.Option(help="On Ray: spread every run over so many workers.")], None),
    "address": (
        Annotated[str | None, typer.Option(help="A Ray cluster to use instead of this machine: auto, or host:port.")],
        None,
    ),
}
GRID: Flags = {**CLUSTER, "jobs": (Jobs, 1)}
NAMED = {"k": ("-k", "--k"), "metrics": ("--metric",)}  # where a setting's flag is not its name
BESIDE: dict[str, Any] = {  # short for a part of [arrivals] and of [work]
    "trace": Annotated[
        Path | None, typer.Option("--trace", help="Measured durations: a csv of client,seconds, or a folder of traces.")
    ],
    "batch_size": Annotated[int | None, typer.Option(help="Samples per gradient.")],
}


def takes(*settings: str, **groups: Flags) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with a flag for each of these settings of a run, and with groups of flags.

    What is given of the settings comes to the command as the table `given`, the flags of a group under its name.
    """
    every = {"given": {name: (_flag(name), None) for name in settings}, **groups}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(**values: Any) -> None:
            tables = {group: {name: values.pop(name) for name in flags} for group, flags in every.items()}
            tables["given"] = _table(tables["given"])
            command(**values, **{group: table for group, table in tables.items() if group in own})

        own, hints = inspect.signature(command).parameters, get_type_hints(command, include_extras=True)
        flags: dict[str, tuple[Any, Any]] = {}
        for name, each in own.items():
            flags |= every.get(name) or {name: (hints[name], each.default)}
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for name, (hint, default) in flags.items()
        ]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {name: hint for name, (hint, _) in flags.items()}
        del wrapped.__wrapped__  # type: ignore[attr-defined]
        return wrapped

    return decorate


def _flag(name: str) -> Any:
    """The option of a setting, with the words and the type that it has in kasync.experiments.settings."""
    if name in BESIDE:
        return BESIDE[name]
    hint = get_type_hints(RunSettings, include_extras=True)[name]
    kind, (words,) = hint.__origin__, hint.__metadata__
    several = getattr(kind, "__origin__", None) is tuple
    kind = list[str] if several else kind if kind in (int, float) else str
    words = f"{words[:-1]}; repeatable." if several else words
    return Annotated[kind | None, typer.Option(*NAMED.get(name, ()), help=words, show_default=False)]


def _table(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that these flags give."""
    given = {name: value for name, value in flags.items() if value not in (None, []) and name not in BESIDE}
    given |= {name: choice(given[name]) for name in SECTIONS if name in given and name != "arrivals"}
    if "faults" in given:
        given["faults"] = [choice(text) for text in given["faults"]]
    if "arrivals" in flags and (table := experiments.build.arrivals_from(flags["arrivals"], flags.get("trace"))):
        given["arrivals"] = table
    if flags.get("batch_size") is not None and "work" not in given:
        given["work"] = {"kind": "gradient", "batch_size": flags["batch_size"]}
    return given
