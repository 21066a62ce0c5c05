"""Which options do several commands share, and how does text become settings?"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
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
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]


def choice(text: str) -> dict[str, Any]:
    """labels:per_client=1,size=[10, 49] as { kind = "labels", per_client = 1, size = [10, 49] }."""
    kind, _, rest = text.partition(":")
    return {"kind": kind, **(pairs(_split(rest)) if rest else {})}


def pairs(texts: Sequence[str]) -> dict[str, Any]:
    """name=value, each value as TOML would read it, or as text."""
    found = {}
    for text in texts:
        name, sign, written = text.partition("=")
        if not sign or not name.strip():
            raise UserError(f"{text!r} is not name=value: write it so, lr=0.1, say.")
        found[name.strip()] = _value(written.strip())
    return found


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


def names(text: str) -> list[str] | None:
    """a,b,c as a list; nothing as None."""
    return [name.strip() for name in text.split(",") if name.strip()] or None
