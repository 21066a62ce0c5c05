"""kasync results: what is stored, whether it is so, and what leaves the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, Device
from kasync.errors import UserError

app = typer.Typer(help="What is stored of runs, and whether it is so.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="A results folder, or one that holds several.")]
Keys = Annotated[list[str] | None, typer.Option("--run", help="Only these keys, or patterns, mnist-*; repeatable.")]
Target = Annotated[Path, typer.Option(help="A .csv or .parquet file of runs, or a folder for runs and metrics.")]


@app.command("ls")
def ls(folder: Folder = Path("results"), as_json: AsJson = False) -> None:
    """List the experiments of every store at or under the folder.

    Example: `kasync results ls results`
    """
    from kasync.experiments import archive

    show.rows(archive.listed(folder), as_json)


@app.command("show")
def show_(folder: Folder = Path("results"), run: Keys = None, as_json: AsJson = False) -> None:
    """List runs: where they stand, on which device and in which precision they were made, how accurate they ended.

    Example: `kasync results show results/tuned --run 'mnist-wkafl-*'`
    """
    from kasync.experiments import archive

    names: tuple[str, ...] = ("key", "experiment", "task", "rule", "staleness", "seed", "made.device", "precision")
    names += ("final_accuracy", "best_accuracy", "last_accuracy", "seconds")
    rows, _ = archive.frames(folder, run or ())
    show.rows([{name.removeprefix("made."): row.get(name) for name in names} for row in rows], as_json)


@app.command("verify")
def verify(folder: Folder = Path("results"), as_json: AsJson = False) -> None:
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
def pack(folder: Folder = Path("kasync-runs"), as_json: AsJson = False) -> None:
    """Put every finished run into the tables of its store; its folder goes, and with it its arrays by step.

    Example: `kasync results pack kasync-runs`
    """
    from kasync.experiments import archive
    from kasync.experiments.store import TABLES

    packed = archive.pack(folder)
    size = sum((folder / name).stat().st_size for name in TABLES if (folder / name).exists())
    show.rows([{"packed": packed, "store": str(folder), "MiB": size / 2**20}], as_json)


@app.command("export")
def export(
    folder: Folder = Path("results"),
    out: Annotated[
        Path, typer.Option(help="A .csv or .parquet file of runs, or a folder for runs and metrics.")
    ] = Path("export"),
    run: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Write runs, with axes, settings, device and summary as columns, and their evaluations for another program.

    Example: `kasync results export results/tuned --out tuned.csv`
    """
    from kasync.experiments import archive

    written = archive.export(folder, out, run or ())
    show.rows([{"file": str(path), "rows": rows} for path, rows in written.items()], as_json)


@app.command("rerun")
def rerun(
    folder: Folder = Path("results"),
    sample: Annotated[int, typer.Option(help="How many runs, drawn at random.")] = 3,
    run: Keys = None,
    seed: Annotated[int, typer.Option(help="Decides which are drawn.")] = 0,
    out: Annotated[Path, typer.Option(help="Where they are made.")] = Path("kasync-runs/rerun"),
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Make some of the stored runs again and compare. To the last bit only on the device and versions of before.

    Example: `kasync results rerun results/own-rule --sample 3 --run 'mnist-*'`
    """
    from kasync.experiments import archive

    stores = archive.stores(folder)
    if len(stores) > 1:
        raise UserError(f"{folder} holds {len(stores)} stores: name one, {stores[0]}, say.")
    rows: list[dict[str, Any]] = []
    for each in archive.rerun(folder, sample, out, run or (), device, seed):
        rows.append(vars(each))
        show.note(f"{each.key}: {'the same to the last bit' if each.same else 'not to the last bit'}", as_json)
    show.rows(rows, as_json)
