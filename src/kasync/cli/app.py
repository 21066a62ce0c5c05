"""The commands of the program."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import kasync
from kasync.cli import catalogue, papers, planning, results, show, training

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


for command in (
    *(training.demo, training.run, training.compare, papers.reproduce, papers.tune, results.report, results.live),
    *(catalogue.rules, planning.plan, planning.theory, planning.bench),
):
    app.command()(command)
app.add_typer(results.app, name="results")
app.add_typer(papers.board, name="leaderboard")
app.add_typer(catalogue.data, name="data")
