"""kasync rules and kasync data: what there is to choose from."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, Root
from kasync.errors import UserError

if TYPE_CHECKING:
    from kasync.rules import Facts

data = typer.Typer(help="What there is to train on.", no_args_is_help=True)
Name = Annotated[str | None, typer.Argument(help="One rule, with everything about it.")]


def rules(name: Name = None, as_json: AsJson = False) -> None:
    """List the rules: formula, paper, settings and their defaults.

    Example: `kasync rules wkafl`
    """
    from kasync import rules as known

    rows = [described(known.facts(each)) for each in (known.RULES if name is None else [name])]
    if as_json:
        show.value(rows)
    elif name is None:
        show.rows([{**row, "settings": ", ".join(_setting(*pair) for pair in row["settings"].items())} for row in rows])
    else:
        (row,) = rows
        settings = "\n".join(f"  {_setting(*pair)}" for pair in row["settings"].items())
        print(f"{row['name']}\n\n  {row['formula']}\n\n{row['paper']}\n")
        print(f"settings (a name without a value must be given)\n{settings}")


def described(facts: Facts) -> dict[str, Any]:
    """From the rule's docstring, signature and facts."""
    settings = {
        each.name: None if each.default is inspect.Parameter.empty else each.default
        for each in inspect.signature(facts.make).parameters.values()
    }
    plain = {
        n: value if isinstance(value, bool | int | float | str | None) else repr(value) for n, value in settings.items()
    }
    paper = " ".join(f"{facts.paper} {facts.notes}".split())
    return {"name": facts.name, "title": facts.title, "formula": facts.formula, "paper": paper, "settings": plain}


def _setting(name: str, default: Any) -> str:
    return name if default is None else f"{name}={default}"


@data.command("ls")
def ls(root: Root = "", as_json: AsJson = False) -> None:
    """List the data sets: which are here, and what is missing of the others.

    Example: `kasync data ls --root ~/data`
    """
    from kasync import data as sets

    rows = []
    for name in sets.names():
        try:
            dataset = sets.load(name, root or None)
        except UserError as problem:
            rows.append(
                {"name": name, "here": False, "train": None, "test": None, "classes": None, "about": str(problem)}
            )
        else:
            sizes = {"train": len(dataset.train), "test": len(dataset.test), "classes": dataset.classes}
            rows.append({"name": name, "here": True, **sizes, "about": dataset.source})
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
