"""kasync report and kasync live: tables, figures and a page from what was run, or from a federation that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kasync.cli import show
from kasync.cli.options import AsJson


def report(
    results: Annotated[Path, typer.Argument(help="A results folder, or the folder of one run.")] = Path("kasync-runs"),
    html: Annotated[bool, typer.Option("--html", help="Also one self-contained page to look at.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Serve the page here and renew it while runs go on.")] = False,
    port: Annotated[int, typer.Option(help="Of the page that is served; 0 takes any.")] = 8765,
    figures: Annotated[bool, typer.Option(help="PNG and PDF figures.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for the report; RESULTS/report without it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tables with the paper's numbers beside ours, figures, and the numbers as CSV. It only reads results.

    Example: `kasync report kasync-runs --html`
    """
    from kasync import report as reports
    from kasync.live import page

    if page.is_live(results):  # of a federation that runs or ran
        if live:
            page.serve(results, port)
        else:
            print(page.write(results, out))
        return
    if live:
        reports.serve(results, port)
        return
    written = reports.write(results, out, html=html, figures=figures)
    if as_json:
        show.value({"folder": str(written.folder), "written": [str(path) for path in written]})
        return
    for path in written:
        print(path)


def live(
    folder: Annotated[Path, typer.Argument(help="The folder that record= of KAsync or RayFederation names.")],
    port: Annotated[int, typer.Option(help="Of the page that is served; 0 takes any.")] = 8766,
    html: Annotated[bool, typer.Option("--html", help="Write the page into the folder instead of serving it.")] = False,
) -> None:
    """Follow a running federation: accuracy, staleness, who is heard, what each client moves, and why not.

    Example: `kasync live runs/hospital`
    """
    from kasync.live import page

    if html:
        print(page.write(folder))
    else:
        page.serve(folder, port)
