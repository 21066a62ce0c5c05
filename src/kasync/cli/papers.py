"""kasync reproduce, tune and leaderboard: the papers' tables and figures, equal tuning, and rules ranked on tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import kasync.experiments
from kasync import files, report
from kasync.cli import show
from kasync.cli.options import GRID, AsJson, Flags, Jobs, Out, Quiet, Rules, Staleness, Tasks, Track, names, takes
from kasync.cli.training import finish
from kasync.errors import UserError, unknown
from kasync.experiments import experiment as catalogue
from kasync.experiments.experiment import Tuned
from kasync.experiments.store import Store
from kasync.report.tables import leaderboard

Uploads = Annotated[int | None, typer.Option(help="Client uploads instead of each task's own number, in any k.")]
WHICH: Flags = {
    "scale": (Annotated[str, typer.Option(help="quick: minutes on two cores. full: the paper's.")], "quick"),
    "seeds": (Annotated[int | None, typer.Option(help="How many; the experiment's own number without it.")], None),
    "rules": (Rules, None),
    "tasks": (Tasks, None),
}
CHANGED: Flags = {
    "tf32": (Annotated[bool, typer.Option("--tf32", help="Allow TF32 matmuls in clients' gradients on a GPU.")], False),
    "uploads": (Uploads, None),
}
ROOT_10 = typer.Option(help="Factor between neighbouring rates.", show_default="√10")
TRIES: Flags = {
    "budget": (Annotated[int, typer.Option(help="Learning rates per rule.")], 7),
    "spacing": (Annotated[float, ROOT_10], 10**0.5),
    "further": (Annotated[int, typer.Option(help="More for each: beyond the best end, or beside the best.")], 0),
    "knob": (Annotated[bool, typer.Option(help="Then values of each rule's main knob, or more rates.")], False),
    "per": (Annotated[str, typer.Option(help="Choose for each task, or on one task of each problem.")], "task"),
}


@takes("device", "root", "steps", which=WHICH, where=GRID, changed=CHANGED)
def reproduce(
    *,
    experiments: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or TOML files of one's own; all without a name.")
    ] = None,
    given: dict[str, Any],
    which: dict[str, Any],
    staleness: Staleness = "true",
    tuned: Annotated[str | None, typer.Option(help="Settings that kasync tune chose.")] = None,
    where: dict[str, Any],
    changed: dict[str, Any],
    out: Out = Path("kasync-runs"),
    track: Track = None,
    ls: Annotated[bool, typer.Option("--ls", help="Only list the experiments there are.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make the paper's tables and figures again. Killed or interrupted, the same words continue.

    Example: `kasync reproduce staleness noniid --scale full --seeds 3 --staleness both --device cuda --jobs 64`
    """
    if ls:
        every = [catalogue.load(name) for name in catalogue.names()]
        words = [(one.name, ", ".join(one.figures), one.title, one.shows) for one in every]
        show.rows([dict(zip(("name", "figures", "title", "shows"), row, strict=True)) for row in words], as_json)
        return
    grid = kasync.experiments.grid
    planned = grid.plan(experiments or (), staleness=staleness, tuned=tuned, **_how(which, given, **changed))
    display = show.progress(quiet or as_json, None, track, "reproduce", out, planned.settings)
    with show.interruptible():
        outcome = grid.carry_out(planned, out, display=display, **where)
    finish(out, outcome, as_json, f"none yet: kasync report {out} --html")


@takes("device", "root", "steps", which=WHICH, tries=TRIES, where=GRID, changed=CHANGED)
def tune(
    *,
    experiment: Annotated[str, typer.Argument(help="The experiment whose tasks and rules are tuned.")] = "tuned",
    given: dict[str, Any],
    tries: dict[str, Any],
    which: dict[str, Any],
    where: dict[str, Any],
    changed: dict[str, Any],
    out: Out = Path("kasync-runs"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Give every rule the same number of learning rates, judged on samples held out from training.

    The choices are written to OUT/tuned/EXPERIMENT-SCALE.toml with everything that was tried; use them with
    `kasync reproduce --tuned FILE`. What was tried before is not run again.

    Example: `kasync tune tuned --scale quick --budget 5`
    """
    from kasync.comparison import tuning

    how = {**_how(which, given, **changed), **tries, **where, "display": show.progress(quiet or as_json)}
    with show.interruptible():
        path = tuning.tune(experiment, out, **how)
    rows: list[dict[str, Any]] = []
    for row in Tuned.read(path).chosen:
        settings = " ".join(f"{name}={value:.4g}" for name, value in row.settings.items())
        told = {"task": row.task, "rule": row.rule, "settings": settings}
        rows.append(told | {"held_out_accuracy": row.accuracy, "at_edge": row.at_edge})
    if as_json:
        show.value({"file": str(path), "chosen": rows})
        return
    show.rows(rows)
    show.note(f"Use them: kasync reproduce {experiment} --scale {which['scale']} --tuned {path} --out {out}")


def _how(which: dict[str, Any], given: dict[str, Any], tf32: bool, uploads: int | None) -> dict[str, Any]:
    """Which runs of an experiment, and what is different in them."""
    if "steps" in given and uploads is not None:
        raise UserError(f"steps = {given['steps']} and uploads = {uploads} both say how long: give one of them.")
    given = given | ({"precision": "tf32"} if tf32 else {}) | ({} if uploads is None else {"uploads": uploads})
    return {**which, "rules": names(which["rules"]), "tasks": names(which["tasks"]), "overrides": given}


# ---- the leaderboard

board = typer.Typer(help="Rules on the field's tables, and yours among them.", no_args_is_help=True)


@board.command("show")
def show_board(
    folder: Annotated[Path, typer.Argument(help="A results folder.")] = Path("results/tables"),
    page: Annotated[Path | None, typer.Option(help="Write it to this file instead.")] = None,
) -> None:
    """Print the page, derived from the store.

    Example: `kasync leaderboard show results/tables --page docs/leaderboard.md`
    """
    text = leaderboard(report.read(folder), str(folder))
    if page is None:
        print(text, end="")
    else:
        files.write(page, text)
        show.note(f"written: {page}")


@board.command("add")
@takes("device", "root")
def add(
    *,
    rules: Annotated[list[str], typer.Argument(help="Rules: mypackage:myrule, path/file.py:myrule, or built in.")],
    given: dict[str, Any],
    experiments: Annotated[
        list[str] | None, typer.Option("--experiment", help="Only on these, names or TOML files; repeatable.")
    ] = None,
    tasks: Tasks = None,
    tries: Annotated[int, typer.Option(help="Learning rates to try; 0: take the rate that suits the task.")] = 3,
    further: Annotated[int, typer.Option(help="More of them, beyond the best end or beside the best.")] = 1,
    jobs: Jobs = 1,
    out: Out = Path("results/tables"),
    page: Annotated[Path | None, typer.Option(help="The file to write; without it FOLDER/leaderboard.md.")] = None,
    quiet: Quiet = False,
) -> None:
    """Tune rules and run them on the tables of a store, with its seeds and arrivals, and write the page again.

    Example: `kasync leaderboard add examples/new_rule.py:fair --experiment fedbuff --out my-board`
    """
    from kasync.comparison import tuning

    grid, store = kasync.experiments.grid, Store(out)
    known = {row["name"]: (row["scale"], key) for key, row in store.experiments().items() if row.get("baseline")}
    if not known:
        raise UserError(f"{out} has no leaderboard: make one, kasync reproduce fedbuff --out {out}, or name another.")
    planned = []
    with show.interruptible():
        for name in experiments or list(known):
            short = Path(name).stem if name.endswith(".toml") else name
            if short not in known:
                raise unknown(f"experiment in {out}", short, known)
            scale, key = known[short]
            cells = [cell for cell in store.cells() if cell["experiment"] == key]
            kept = list(dict.fromkeys(cell["task"] for cell in cells))
            one, chosen = catalogue.load(name, scale).only(names(tasks) or kept, rules), None
            wanted = [task.name for task in one.tasks]
            if tries:
                how: dict[str, Any] = {"budget": tries, "further": further, "rules": rules, "jobs": jobs}
                how |= {"tasks": wanted, "overrides": given, "display": show.progress(quiet)}
                chosen = Tuned.read(tuning.tune(name, out / "tuning", scale=scale, **how))
            seeds = {cell["seed"] for cell in cells if cell["task"] in wanted} or range(one.seeds)
            planned.append((one, one.cells(sorted(seeds), ("true",), chosen, given)))
        outcome = grid.carry_out(grid.Plan(planned), out, jobs=jobs, display=show.progress(quiet))
    path = page or out / "leaderboard.md"
    files.write(path, leaderboard(report.read(out), str(out)))
    print(f"results\t{out}\npage\t{path}")
    show.failures(dict(outcome.failed))
