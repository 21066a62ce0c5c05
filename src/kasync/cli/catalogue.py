"""kasync rules and kasync data: lists of what can be chosen."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, Root
from kasync.errors import UserError

data = typer.Typer(help="What there is to train on.", no_args_is_help=True)
Name = Annotated[str | None, typer.Argument(help="One rule, with everything about it.")]


def rules(name: Name = None, as_json: AsJson = False) -> None:
    """List the rules: formula, paper, settings and their defaults.

    Example: `kasync rules wkafl`
    """
    from kasync import rules as known

    rows = [_described(known.facts(each)) for each in (known.RULES if name is None else [name])]
    if as_json:
        show.value(rows)
    elif name is None:
        show.rows([{**row, "settings": ", ".join(_setting(*pair) for pair in row["settings"].items())} for row in rows])
    else:
        (row,) = rows
        settings = "\n".join(f"  {_setting(*pair)}" for pair in row["settings"].items())
        print(f"{row['name']}\n\n  {row['formula']}\n")
        show.say(row["paper"])
        print(f"\nsettings (a name without a value must be given)\n{settings}")


def _described(facts: Any) -> dict[str, Any]:
    """From the rule's docstring, signature and facts; what a setting is without a default, or a plain one."""
    defaults = {name: each.default for name, each in inspect.signature(facts.make).parameters.items()}
    settings = {name: None if value is inspect.Parameter.empty else value for name, value in defaults.items()}
    plain = bool | int | float | str | None
    shown = {name: value if isinstance(value, plain) else repr(value) for name, value in settings.items()}
    paper = " ".join(f"{facts.paper} {facts.notes}".split())
    return {"name": facts.name, "title": facts.title, "formula": facts.formula, "paper": paper, "settings": shown}


def _setting(name: str, default: Any) -> str:
    return name if default is None else f"{name}={default}"


@data.command("ls")
def ls(root: Root = "", as_json: AsJson = False) -> None:
    """List the data sets: which are here, and what is missing of the others.

    Example: `kasync data ls --root ~/data`
    """
    from kasync import data as sets

    rows, told = [], tuple[Any, ...]()
    for name in sets.names():
        try:
            found = sets.load(name, root or None)
            told = (True, len(found.train), len(found.test), found.classes, found.source)
        except UserError as problem:
            told = (False, None, None, None, str(problem))
        rows.append({"name": name, **dict(zip(("here", "train", "test", "classes", "about"), told, strict=True))})
    show.rows(rows, as_json)


@data.command("get")
def get(
    name: Annotated[str, typer.Argument(help="The data set: see kasync data ls.")],
    root: Root = "",
    as_json: AsJson = False,
) -> None:
    """Fetch a data set into ROOT/NAME, or say what to put there by hand.

    Example: `kasync data get cifar10 --root ~/data`
    """
    from kasync.data.get import get as fetch

    folder = fetch(name, root or None)
    if as_json:
        show.value({"name": name, "folder": str(folder)})
    else:
        print(folder)
