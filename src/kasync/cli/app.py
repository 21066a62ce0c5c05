"""The commands of the program."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kasync.cli import (
    bench,
    compare,
    data,
    demo,
    experiments,
    follow,
    leaderboard,
    plan,
    report,
    results,
    rules,
    run,
    show,
    theory,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        import kasync

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


app.command()(demo.demo)
app.command()(run.run)
app.command()(compare.compare)
app.command()(experiments.reproduce)
app.command()(experiments.tune)
app.command()(report.report)
app.command()(follow.live)
app.command()(rules.rules)
app.command()(plan.plan)
app.command()(theory.theory)
app.add_typer(results.app, name="results")
app.add_typer(leaderboard.app, name="leaderboard")
app.add_typer(data.app, name="data")
app.command()(bench.bench)
