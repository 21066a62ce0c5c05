"""kasync reproduce and kasync tune: the paper's tables and figures, and fair learning rates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.compare import finish
from kasync.cli.options import Address, AsJson, Engine, Jobs, Out, Quiet, Rules, Track, Workers, names, takes
from kasync.errors import UserError

Names = Annotated[list[str] | None, typer.Argument(help="Experiments, or TOML files of one's own; all without a name.")]
Scale = Annotated[str, typer.Option(help="quick: minutes on two cores. full: the paper's.")]
Seeds = Annotated[int | None, typer.Option(help="How many; the experiment's own number without it.")]
Tasks = Annotated[
    list[str] | None, typer.Option(help="Only these: names or patterns, cifar10*, or named again.", show_default=False)
]
Uploads = Annotated[int | None, typer.Option(help="Client uploads instead of each task's own number, in any k.")]
Tf32 = Annotated[bool, typer.Option("--tf32", help="Allow TF32 matmuls in the clients' gradients on a GPU.")]


@takes("device", "root", "steps")
def reproduce(
    given: dict[str, Any],
    experiments: Names = None,
    scale: Scale = "quick",
    seeds: Seeds = None,
    staleness: Annotated[str, typer.Option(help="true, published-code or both.")] = "true",
    tuned: Annotated[str | None, typer.Option(help="Settings that kasync tune chose.")] = None,
    rules: Rules = None,
    tasks: Tasks = None,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
    jobs: Jobs = 1,
    tf32: Tf32 = False,
    uploads: Uploads = None,
    out: Out = Path("kasync-runs"),
    track: Track = None,
    ls: Annotated[bool, typer.Option("--ls", help="Only list the experiments there are.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make the paper's tables and figures again. Killed or interrupted, the same words continue.

    Example: `kasync reproduce staleness noniid --scale full --seeds 3 --staleness both --device cuda --jobs 64`
    """
    from kasync.experiments import grid
    from kasync.experiments.display import fitting
    from kasync.report.loggers import tracked

    if ls:
        _list(as_json)
        return
    planned = grid.plan(
        experiments or (),
        scale=scale,
        seeds=seeds,
        staleness=staleness,
        tuned=tuned,
        rules=names(rules),
        tasks=names(tasks),
        overrides=_overrides(given, tf32, uploads),
    )
    display = tracked(fitting(quiet or as_json), track, "reproduce", out, planned.settings)
    with show.interruptible(show.command_line()):
        where: dict[str, Any] = {"engine": engine, "jobs": jobs, "workers": workers, "address": address}
        outcome = grid.carry_out(planned, out, **where, display=display)
    finish(planned, out, outcome, as_json, f"none yet: kasync report {out} --html")


@takes("device", "root", "steps")
def tune(
    given: dict[str, Any],
    experiment: Annotated[str, typer.Argument(help="The experiment whose tasks and rules are tuned.")] = "tuned",
    scale: Scale = "quick",
    budget: Annotated[int, typer.Option(help="Learning rates per rule.")] = 7,
    spacing: Annotated[float, typer.Option(help="Factor between neighbouring rates.", show_default="√10")] = 10**0.5,
    further: Annotated[int, typer.Option(help="More rates for each: beyond the best end, or beside the best.")] = 0,
    knob: Annotated[bool, typer.Option(help="Then values of each rule's main knob, or more rates.")] = False,
    per: Annotated[str, typer.Option(help="Choose for each task, or on one task of each problem.")] = "task",
    seeds: Seeds = None,
    rules: Rules = None,
    tasks: Tasks = None,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
    jobs: Jobs = 1,
    tf32: Tf32 = False,
    uploads: Uploads = None,
    out: Out = Path("kasync-runs"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Give every rule the same number of learning rates, judged on samples held out from training.

    The choices are written to OUT/tuned/EXPERIMENT-SCALE.toml with everything that was tried; use them with
    `kasync reproduce --tuned FILE`. What was tried before is not run again.

    Example: `kasync tune tuned --scale quick --budget 5`
    """
    from kasync.experiments import tune as tuning
    from kasync.experiments.display import fitting
    from kasync.experiments.experiment import Tuned

    with show.interruptible(show.command_line()):
        path = tuning.tune(
            experiment,
            out,
            scale=scale,
            budget=budget,
            spacing=spacing,
            further=further,
            knob=knob,
            per=per,
            seeds=seeds,
            rules=names(rules),
            tasks=names(tasks),
            overrides=_overrides(given, tf32, uploads),
            engine=engine,
            jobs=jobs,
            workers=workers,
            address=address,
            display=fitting(quiet or as_json),
        )
    rows = [
        {
            "task": row.task,
            "rule": row.rule,
            "settings": " ".join(f"{name}={value:.4g}" for name, value in row.settings.items()),
            "held_out_accuracy": row.accuracy,
            "at_edge": row.at_edge,
        }
        for row in Tuned.read(path).chosen
    ]
    if as_json:
        show.value({"file": str(path), "chosen": rows})
        return
    show.rows(rows)
    show.note(f"Use them: kasync reproduce {experiment} --scale {scale} --tuned {path} --out {out}")


def _overrides(given: dict[str, Any], tf32: bool, uploads: int | None) -> dict[str, Any]:
    if "steps" in given and uploads is not None:
        raise UserError(f"steps = {given['steps']} and uploads = {uploads} both say how long: give one of them.")
    more = {"uploads": uploads, "precision": "tf32" if tf32 else None}
    return given | {name: value for name, value in more.items() if value is not None}


def _list(as_json: bool) -> None:
    from kasync.experiments import experiment as catalogue

    every = [catalogue.load(name) for name in catalogue.names()]
    rows = [
        {"name": one.name, "figures": ", ".join(one.figures), "title": one.title, "shows": one.shows} for one in every
    ]
    show.rows(rows, as_json)
