"""kasync data: what there is to train on."""

from __future__ import annotations

from typing import Annotated

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, Root
from kasync.errors import UserError

app = typer.Typer(help="What there is to train on.", no_args_is_help=True)


@app.command("ls")
def ls(root: Root = "", as_json: AsJson = False) -> None:
    """List the data sets: which are here, and what is missing of the others.

    Example: `kasync data ls --root ~/data`
    """
    from kasync import data

    rows = []
    for name in data.names():
        try:
            dataset = data.load(name, root or None)
        except UserError as problem:
            rows.append(
                {"name": name, "here": False, "train": None, "test": None, "classes": None, "about": str(problem)}
            )
        else:
            sizes = {"train": len(dataset.train), "test": len(dataset.test), "classes": dataset.classes}
            rows.append({"name": name, "here": True, **sizes, "about": dataset.source})
    show.rows(rows, as_json)


@app.command("get")
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
