"""The commands of the program, kasync rules and kasync data among them: lists of what can be chosen."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any

import typer

import kasync
from kasync.cli import papers, planning, results, show, training
from kasync.cli.options import AsJson, Root
from kasync.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="What there is to train on.", no_args_is_help=True)
Name = Annotated[str | None, typer.Argument(help="One rule, with everything about it.")]
Set = Annotated[str, typer.Argument(help="The data set: see kasync data ls.")]


def _version(asked: bool) -> None:
    if asked:
        print(f"kasync {kasync.__version__}")
        raise typer.Exit


@app.callback()
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Asynchronous federated learning: simulated at full scale, checked against the paper, deployed unchanged.

    Begin with: kasync demo
    """
    asked = {"--json", "--quiet", "-q", "--help", "-h"} & set(sys.argv)
    show.note(f"kasync {context.invoked_subcommand}: loading PyTorch", bool(asked))


def rules(name: Name = None, as_json: AsJson = False) -> None:
    """List the rules: formula, paper, settings and their defaults.

    Example: `kasync rules wkafl`
    """
    rows = [_described(kasync.rules.facts(each)) for each in (kasync.rules.RULES if name is None else [name])]
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
    settings = {}
    for name, each in inspect.signature(facts.make).parameters.items():
        value = None if each.default is each.empty else each.default
        settings[name] = value if isinstance(value, bool | int | float | str | None) else repr(value)
    paper = " ".join(f"{facts.paper} {facts.notes}".split())
    return {"name": facts.name, "title": facts.title, "formula": facts.formula, "paper": paper, "settings": settings}


def _setting(name: str, default: Any) -> str:
    return name if default is None else f"{name}={default}"


@data.command("ls")
def ls(root: Root = "", as_json: AsJson = False) -> None:
    """List the data sets: which are here, and what is missing of the others.

    Example: `kasync data ls --root ~/data`
    """
    rows = []
    for name in kasync.data.names():
        row: dict[str, Any] = {"name": name, **dict.fromkeys(("here", "train", "test", "classes", "about"))}
        try:
            found = kasync.data.load(name, root or None)
            row |= {"here": True, "train": len(found.train), "test": len(found.test)}
            row |= {"classes": found.classes, "about": found.source}
        except UserError as problem:
            row |= {"here": False, "about": str(problem)}
        rows.append(row)
    show.rows(rows, as_json)


@data.command("get")
def get(name: Set, root: Root = "", as_json: AsJson = False) -> None:
    """Fetch a data set into ROOT/NAME, or say what to put there by hand.

    Example: `kasync data get cifar10 --root ~/data`
    """
    from kasync.data.get import get as fetch

    folder = fetch(name, root or None)
    if as_json:
        show.value({"name": name, "folder": str(folder)})
    else:
        print(folder)


for command in (
    *(training.demo, training.run, training.compare, papers.reproduce, papers.tune, results.report, results.live),
    *(rules, planning.plan, planning.theory, planning.bench),
):
    app.command()(command)
app.add_typer(results.app, name="results")
app.add_typer(papers.board, name="leaderboard")
app.add_typer(data, name="data")
