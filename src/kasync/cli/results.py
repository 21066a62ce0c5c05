"""kasync report, live and results: pages of finished and of running work, the store, and its verification."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kasync import experiments
from kasync import report as reports
from kasync.cli import show
from kasync.cli.options import AsJson, Device
from kasync.errors import UserError
from kasync.experiments.store import TABLES

app = typer.Typer(help="What is stored of runs, and whether it is so.", no_args_is_help=True)
FOLDER = Path("kasync-runs")  # where runs go unless --out says otherwise
Folder = Annotated[Path, typer.Argument(help="A results folder, or one that holds several.")]
Keys = Annotated[list[str] | None, typer.Option("--run", help="Only these keys, or patterns, mnist-*; repeatable.")]
Target = Annotated[Path, typer.Option(help="A .csv or .parquet file of runs, or a folder for runs and metrics.")]
Port = Annotated[int, typer.Option(help="Of the page that is served; 0 takes any.")]
SHOWN = (  # of a run
    *("key", "final_accuracy", "task", "rule", "seed", "staleness", "best_accuracy", "last_accuracy", "seconds"),
    *("made.device", "precision", "experiment"),
)


def report(
    results: Annotated[Path, typer.Argument(help="A results folder, or the folder of one run.")] = FOLDER,
    html: Annotated[bool, typer.Option("--html", help="Also one self-contained page to look at.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Serve the page here and renew it while runs go on.")] = False,
    port: Port = 8765,
    figures: Annotated[bool, typer.Option(help="PNG and PDF figures.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for the report; RESULTS/report without it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tables with the paper's numbers beside ours, figures, and the numbers as CSV. It only reads results.

    Example: `kasync report kasync-runs --html`
    """
    from kasync.live import page

    federation = page.is_live(results)  # one that runs or ran
    if live:
        (page if federation else reports).serve(results, port)
    elif federation:
        print(page.write(results, out))
    else:
        written = reports.write(results, out, html=html, figures=figures)
        paths = [str(path) for path in written]
        if as_json:
            show.value({"folder": str(written.folder), "written": paths})
        else:
            print("\n".join(paths))


def live(
    folder: Annotated[Path, typer.Argument(help="The folder that record= of KAsync or RayFederation names.")],
    port: Port = 8766,
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


# ---- the store


@app.command("ls")
def ls(folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """List the experiments of every store at or under the folder.

    Example: `kasync results ls results`
    """
    show.rows(experiments.archive.listed(folder), as_json)


@app.command("show")
def show_(folder: Folder = FOLDER, run: Keys = None, as_json: AsJson = False) -> None:
    """List runs: where they stand, on which device and in which precision they were made, how accurate they ended.

    Example: `kasync results show results/tuned --run 'mnist-wkafl-*'`
    """
    rows, _ = experiments.archive.frames(folder, run or ())
    show.rows([{name.removeprefix("made."): row.get(name) for name in SHOWN} for row in rows], as_json)


@app.command("verify")
def verify(folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """Derive every table that is written again from the stores, and compare; exit code 1 where something differs.

    Example: `kasync results verify results`
    """
    from kasync.report import checking

    wrong: dict[str, list[str]] = {}
    for path, problems in checking.verify(folder):
        wrong[str(path)] = problems
        if not as_json:
            print(f"{'differs' if problems else 'holds'}\t{path}", flush=True)
            for problem in problems[:10]:
                print(f"\t{problem}")
    if as_json:
        show.value(wrong)
    if any(wrong.values()):
        raise typer.Exit(1)


@app.command("pack")
def pack(folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """Put every finished run into the tables of its store; its folder goes, and with it its arrays by step.

    Example: `kasync results pack kasync-runs`
    """
    packed = experiments.archive.pack(folder)
    size = sum((folder / name).stat().st_size for name in TABLES if (folder / name).exists())
    show.rows([{"packed": packed, "store": str(folder), "MiB": size / 2**20}], as_json)


@app.command("export")
def export(folder: Folder = FOLDER, out: Target = Path("export"), run: Keys = None, as_json: AsJson = False) -> None:
    """Write runs, with axes, settings, device and summary as columns, and their evaluations for another program.

    Example: `kasync results export results/tuned --out tuned.csv`
    """
    written = experiments.archive.export(folder, out, run or ())
    show.rows([{"file": str(path), "rows": rows} for path, rows in written.items()], as_json)


@app.command("rerun")
def rerun(
    folder: Folder = FOLDER,
    sample: Annotated[int, typer.Option(help="How many runs, drawn at random.")] = 3,
    run: Keys = None,
    seed: Annotated[int, typer.Option(help="Decides which are drawn.")] = 0,
    out: Annotated[Path, typer.Option(help="Where they are made.")] = FOLDER / "rerun",
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Make some of the stored runs again and compare. To the last bit only on the device and versions of before.

    Example: `kasync results rerun results/own-rule --sample 3 --run 'mnist-*'`
    """
    stores = experiments.archive.stores(folder)
    if folder not in stores:
        raise UserError(f"{folder} holds {len(stores)} stores: name one, {stores[0]}, say.")
    rows = []
    for row in experiments.archive.rerun(folder, sample, out, run or (), device, seed):
        rows.append(row)
        show.note(f"{row['key']}: {'the same' if row['same'] else 'not'} to the last bit", as_json)
    show.rows(rows, as_json)
