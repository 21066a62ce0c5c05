"""Options that several commands share, and how text becomes settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.errors import UserError

AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Root = Annotated[str, typer.Option(help="Folder of the data; without it $KASYNC_DATA.", show_default=False)]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Faults = Annotated[
    list[str] | None,
    typer.Option(help="What goes wrong: flip_sign:share=0.1, stall:share=0.2,delay=30 ...; repeatable."),
]
Rules = Annotated[list[str] | None, typer.Option(help="Only these: a,b or named again.", show_default=False)]
Arrivals = Annotated[
    str | None, typer.Option(help="Who comes when: uniform, clock:durations=pareto,shape=2, phones:samples=500 ...")
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", help="Measured durations: a csv of client,seconds, or a folder of traces.")
]
Work = Annotated[
    str | None, typer.Option(help="What clients bring: gradient, local:batch_size=8,epochs=1,lr=0.1, or module:name.")
]
Loss = Annotated[str | None, typer.Option(help="A loss of your own: module:name, or path/file.py:name.")]
Metric = Annotated[
    list[str] | None, typer.Option(help="A function of test outputs and labels, module:name; repeatable.")
]
Track = Annotated[str | None, typer.Option(help="Log to tensorboard, mlflow or wandb as well, or to module:name.")]
Engine = Annotated[
    str, typer.Option(help="local, or ray: runs side by side, or each spread over --workers of a cluster.")
]
Workers = Annotated[int | None, typer.Option(help="On Ray: spread every run over so many workers.")]
Address = Annotated[str | None, typer.Option(help="A Ray cluster to use instead of this machine: auto, or host:port.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]


def choice(text: str) -> dict[str, Any]:
    """labels:per_client=1,size=[10, 49] as { kind = "labels", per_client = 1, size = [10, 49] }."""
    kind, _, rest = text.partition(":")
    while rest and "=" not in rest.partition(":")[0]:  # module:name, perhaps with settings after it
        name, _, rest = rest.partition(":")
        kind = f"{kind}:{name}"
    return {"kind": kind, **(pairs(_split(rest)) if rest else {})}


def own(work: str | None, loss: str | None, metrics: Sequence[str] | None) -> dict[str, Any]:
    """What a run does beside the usual, as its settings have it."""
    given = {"work": choice(work) if work else None, "loss": loss, "metrics": list(metrics or ()) or None}
    return {name: value for name, value in given.items() if value is not None}


def pairs(texts: Sequence[str]) -> dict[str, Any]:
    """name=value, each value as TOML would read it, or as text."""
    found = {}
    for text in texts:
        name, sign, written = text.partition("=")
        if not sign or not name.strip():
            raise UserError(f"{text!r} is not name=value: write it so, lr=0.1, say.")
        found[name.strip()] = _value(written.strip())
    return found


def of_the_run(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of --set is a setting of the run itself (optimizer=adam, schedule=linear), and what is a rule's."""
    from dataclasses import fields

    from kasync.experiments.settings import SECTIONS, RunSettings

    known = {each.name for each in fields(RunSettings)} - {*SECTIONS, "clients", "k", "faults", "data"}
    mine = {name: value for name, value in given.items() if name in known}
    return mine, {name: value for name, value in given.items() if name not in known}


def _value(written: str) -> Any:
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written


def _split(text: str) -> list[str]:
    """At commas that are not inside brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "[{") - (sign in "]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def names(texts: Sequence[str] | None) -> list[str] | None:
    """What was named, by commas or by naming the option again, once each; nothing as None."""
    found = [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
    return list(dict.fromkeys(found)) or None
