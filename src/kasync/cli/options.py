"""Options that several commands share: those of a run are its settings, and how text becomes settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kasync.errors import UserError

AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Root = Annotated[str, typer.Option(help="Folder of the data; without it $KASYNC_DATA.", show_default=False)]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Rules = Annotated[list[str] | None, typer.Option(help="Only these: a,b or named again.", show_default=False)]
Track = Annotated[str | None, typer.Option(help="Log to tensorboard, mlflow or wandb as well, or to module:name.")]
Engine = Annotated[
    str, typer.Option(help="local, or ray: runs side by side, or each spread over --workers of a cluster.")
]
Workers = Annotated[int | None, typer.Option(help="On Ray: spread every run over so many workers.")]
Address = Annotated[str | None, typer.Option(help="A Ray cluster to use instead of this machine: auto, or host:port.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]
Jobs = Annotated[int, typer.Option(help="Runs at once on a GPU, stacked where alike.")]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Measured durations: a csv of client,seconds, or a folder of traces.")
]
BatchSize = Annotated[int | None, typer.Option(help="Samples per gradient.")]
FLAGS = {"k": ("-k", "--k"), "metrics": ("--metric",)}  # where a setting's flag is not its name
BESIDE: dict[str, Any] = {"trace": TraceFile, "batch_size": BatchSize}  # short for a part of [arrivals] and of [work]


def takes(*settings: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with a flag for each of these settings of a run; what is given comes to it as one table, `given`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(**values: Any) -> None:
            flags = {name: values.pop(name) for name in settings}
            command(given=_table(flags), **values)

        own = inspect.signature(command)
        hints = get_type_hints(command, include_extras=True) | {name: _flag(name) for name in settings}
        names = [name for name in own.parameters if name != "given"]
        first = next((place for place, name in enumerate(names) if _is_option(hints[name])), len(names))
        order = [*names[:first], *settings, *names[first:]]
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if name in settings else own.parameters[name].default,
                annotation=hints[name],
            )
            for name in order
        ]
        wrapped.__signature__ = own.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {name: hints[name] for name in order}
        del wrapped.__wrapped__  # type: ignore[attr-defined]
        return wrapped

    return decorate


def _is_option(hint: Any) -> bool:
    return any(isinstance(each, typer.models.OptionInfo) for each in getattr(hint, "__metadata__", ()))


def _flag(name: str) -> Any:
    """The option of a setting, with the words and the type that it has in kasync.experiments.settings."""
    if name in BESIDE:
        return BESIDE[name]
    from kasync.experiments.settings import RunSettings, help_of

    kind = get_type_hints(RunSettings)[name]
    several = getattr(kind, "__origin__", None) is tuple
    kind = list[str] if several else kind if kind in (int, float) else str
    words = f"{help_of(name)[:-1]}; repeatable." if several else help_of(name)
    return Annotated[kind | None, typer.Option(*FLAGS.get(name, ()), help=words, show_default=False)]


def _table(flags: dict[str, Any]) -> dict[str, Any]:
    """The settings that these flags give."""
    from kasync.experiments.build import arrivals_from
    from kasync.experiments.settings import SECTIONS

    given = {name: value for name, value in flags.items() if value not in (None, []) and name not in BESIDE}
    given |= {name: choice(given[name]) for name in SECTIONS if name in given and name != "arrivals"}
    if "faults" in given:
        given["faults"] = [choice(text) for text in given["faults"]]
    if table := arrivals_from(flags.get("arrivals"), flags.get("trace")):
        given["arrivals"] = table
    if flags.get("batch_size") is not None and "work" not in given:
        given["work"] = {"kind": "gradient", "batch_size": flags["batch_size"]}
    return given


def choice(text: str) -> dict[str, Any]:
    """labels:per_client=1,size=[10, 49] as { kind = "labels", per_client = 1, size = [10, 49] }."""
    from kasync.timelines.settings import split

    kind, _, rest = text.partition(":")
    while rest and "=" not in rest.partition(":")[0]:  # module:name, perhaps with settings after it
        name, _, rest = rest.partition(":")
        kind = f"{kind}:{name}"
    return {"kind": kind, **(pairs(split(rest)) if rest else {})}


def pairs(texts: Sequence[str]) -> dict[str, Any]:
    """name=value, each value as TOML would read it, or as text."""
    from kasync.timelines.settings import value_of

    found = {}
    for text in texts:
        name, sign, written = text.partition("=")
        if not sign or not name.strip():
            raise UserError(f"{text!r} is not name=value: write it so, lr=0.1, say.")
        found[name.strip()] = value_of(written.strip())
    return found


def of_the_run(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of --set is a setting of the run itself (optimizer=adam, schedule=linear), and what is a rule's."""
    from kasync.experiments.settings import SECTIONS, RunSettings

    known = get_type_hints(RunSettings).keys() - {*SECTIONS, "clients", "k", "faults", "data"}
    mine = {name: value for name, value in given.items() if name in known}
    return mine, {name: value for name, value in given.items() if name not in known}


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
