"""kasync leaderboard: the standing of all rules on the field's tables, and a rule of one's own among them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import Jobs, Out, Quiet, names, takes
from kasync.errors import UserError, unknown

app = typer.Typer(help="Rules on the field's tables, and yours among them.", no_args_is_help=True)
Page = Annotated[Path | None, typer.Option(help="The file to write; without it FOLDER/leaderboard.md.")]
Tasks = Annotated[list[str] | None, typer.Option(help="Only these: names or patterns.", show_default=False)]


@app.command("show")
def show_(
    folder: Annotated[Path, typer.Argument(help="A results folder.")] = Path("results/tables"),
    page: Annotated[Path | None, typer.Option(help="Write it to this file instead.")] = None,
) -> None:
    """Print the page, derived from the store.

    Example: `kasync leaderboard show results/tables --page docs/leaderboard.md`
    """
    text = _page(folder)
    if page is None:
        print(text, end="")
        return
    from kasync import files

    files.write(page, text)
    show.note(f"written: {page}")


@app.command("add")
@takes("device", "root")
def add(
    given: dict[str, Any],
    rules: Annotated[list[str], typer.Argument(help="Rules: mypackage:myrule, path/file.py:myrule, or built in.")],
    experiments: Annotated[
        list[str] | None,
        typer.Option("--experiment", help="Only on these, names or TOML files; repeatable."),
    ] = None,
    tasks: Tasks = None,
    tries: Annotated[int, typer.Option(help="Learning rates to try; 0: take the rate that suits the task.")] = 3,
    further: Annotated[int, typer.Option(help="More of them, beyond the best end or beside the best.")] = 1,
    jobs: Jobs = 1,
    out: Out = Path("results/tables"),
    page: Page = None,
    quiet: Quiet = False,
) -> None:
    """Tune rules and run them on the tables of a store, with its seeds and arrivals, and write the page again.

    Example: `kasync leaderboard add examples/new_rule.py:fair --experiment fedbuff --out my-board`
    """
    from kasync import files
    from kasync.experiments import experiment as catalogue
    from kasync.experiments import grid, tune
    from kasync.experiments.display import fitting
    from kasync.experiments.experiment import Tuned
    from kasync.experiments.store import Store

    recorded = Store(out).experiments()
    known = {row["name"]: (row["scale"], key) for key, row in recorded.items() if row.get("baseline")}
    if not known:
        raise UserError(f"{out} has no leaderboard: make one, kasync reproduce fedbuff --out {out}, or name another.")
    planned, seeds = [], _seeds(out)
    for name in experiments or list(known):
        short = Path(name).stem if name.endswith(".toml") else name
        if short not in known:
            raise unknown(f"experiment in {out}", short, known)
        scale, key = known[short]
        kept = [task for task in recorded[key]["tasks"] if task["name"] in seeds[key]]
        one = catalogue.load(name, scale).only(names(tasks) or [task["name"] for task in kept], rules)
        chosen = None
        if tries:
            how: dict[str, Any] = {"budget": tries, "further": further, "rules": rules, "jobs": jobs}
            how |= {"tasks": [task.name for task in one.tasks], "overrides": given, "display": fitting(quiet)}
            with show.interruptible(show.command_line()):
                chosen = Tuned.read(tune.tune(name, out / "tuning", scale=scale, **how))
        every = sorted(set().union(*(seeds[key].get(task.name, set()) for task in one.tasks))) or range(one.seeds)
        planned.append((one, one.cells(list(every), ("true",), chosen, given)))
    with show.interruptible(show.command_line()):
        outcome = grid.carry_out(grid.Plan(planned), out, jobs=jobs, display=fitting(quiet))
    text, path = _page(out), page or out / "leaderboard.md"
    files.write(path, text)
    print(f"results\t{out}\npage\t{path}")
    for run, why in outcome.failed:
        typer.echo(f"kasync: {run} failed: {why}", err=True)
    if outcome.failed:
        raise typer.Exit(1)


def _page(folder: Path) -> str:
    from kasync.report import leaderboard, read

    return leaderboard.page(read(folder), str(folder))


def _seeds(folder: Path) -> dict[str, dict[str, set[int]]]:
    """The seeds that each task of each experiment of the store was run with."""
    from kasync.experiments.store import Store

    found: dict[str, dict[str, set[int]]] = {}
    for cell in Store(folder).cells():
        found.setdefault(cell["experiment"], {}).setdefault(cell["task"], set()).add(cell["seed"])
    return found
