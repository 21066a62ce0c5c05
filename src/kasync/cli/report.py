"""kasync report: tables, figures and a page from what was run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kasync.cli import show
from kasync.cli.options import AsJson
from kasync.errors import UserError


def report(
    results: Annotated[Path, typer.Argument(help="A results folder, or the folder of one run.")] = Path("results"),
    html: Annotated[bool, typer.Option("--html", help="One self-contained page to look at.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page on this machine and renew it while runs go on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tables with the paper's numbers beside ours, figures, and the numbers as CSV. It only reads results.

    Example: `kasync report results --html`
    """
    if not results.is_dir():
        raise UserError(f"{results} is not a folder: give the --out of an earlier kasync reproduce, compare or run.")
    if not (results / "experiments").is_dir() and not (results / "run.toml").is_file():
        raise UserError(
            f"{results} is not a results folder (it has neither experiments/ nor run.toml): give the --out of an "
            f"earlier kasync reproduce, compare or run."
        )
    from kasync import report as reports

    with show.interruptible(show.command_line()):
        written = reports.write(results, html=html, live=live)  # type: ignore[attr-defined, unused-ignore]
    if as_json:
        show.value({"written": [str(path) for path in _paths(written)]})
        return
    for path in _paths(written):
        print(path)


def _paths(written: object) -> list[Path]:
    """What the report says it wrote: nothing, one path, or several."""
    if written is None:
        return []
    return [Path(written)] if isinstance(written, str | Path) else [Path(str(path)) for path in written]  # type: ignore[attr-defined]
