"""kasync demo: a server that waits for everybody beside three that do not, in two minutes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.compare import reported
from kasync.cli.options import AsJson, Quiet
from kasync.errors import UserError

if TYPE_CHECKING:
    from kasync.report.results import Line


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo"),
    steps: Annotated[int | None, typer.Option(help="Instead of the demo's own number.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """See what waiting costs: 100 clients of very different speeds, one server that waits for all, three that do not.

    Example: `kasync demo --out /tmp/demo`
    """
    from kasync.experiments import experiment, grid
    from kasync.experiments.display import Lines, fitting
    from kasync.report import read

    one = experiment.read(experiment.DEMO)
    planned = grid.Plan([(one, one.cells(overrides={} if steps is None else {"steps": steps}))])
    silent = quiet or as_json  # `make demo` in a log should not look dead for two minutes
    display = fitting(silent) if silent or sys.stderr.isatty() else Lines()
    with show.interruptible(show.command_line()):
        outcome = grid.carry_out(planned, out, display=display)
    if outcome.failed:
        raise UserError(f"the demo's run {outcome.failed[0][0]} failed: {outcome.failed[0][1]}")
    (found,) = (each for each in read(out).experiments if each.name == one.key)
    rows = [_row(line, found.about.targets[0]) for line in found.lines]
    picture, why = _picture(out)
    page = reported(out)
    if as_json:
        show.value({"results": str(out), "report": page, "picture": picture and str(picture), "rows": rows})
        return
    show.rows(rows, title=one.tasks[0].title)
    print()
    print(f"results   {out}")
    print(f"picture   {picture or 'none: ' + why}")
    print(f"report    {page}")
    for words in _first():
        print(words)
    print("try next  kasync rules                                  what else the server could do")
    print("          kasync compare --rules wkafl,fedbuff,ca2fl    rules of your choice")
    print("          kasync reproduce --scale quick                every table and figure of the paper, small")


def _row(line: Line, target: float) -> dict[str, Any]:
    """A rule's last accuracy and its virtual time to the target, means over seeds, and how stale its deliveries are."""
    from kasync.report.results import reaching

    last = [run.summary["last_accuracy"] for run in line.finished]
    seconds = [*reaching(target, "time").by_seed(line).values()]
    reached = [value for value in seconds if value is not None]
    stale = [run.summary["timeline"]["mean_staleness"] for run in line.finished]
    return {
        "rule": line.rule.title,
        "seeds": len(last),
        "last_accuracy": sum(last) / len(last),
        f"seconds_to_{target:g}": sum(reached) / len(reached) if len(reached) == len(seconds) else None,
        "mean_staleness": sum(stale) / len(stale),
    }


def _picture(out: Path) -> tuple[Path | None, str]:
    """The first figure of the report as demo.png, or why there is none."""
    from kasync import files, report
    from kasync.report import figures

    try:
        saved = figures.save(report.read(out), files.make_folder(out / "report" / "figures"))
    except UserError as problem:
        return None, str(problem)
    files.write(out / "demo.png", saved[0][1].read_bytes())
    return out / "demo.png", ""


def _first() -> list[str]:
    """What to type before `kasync` is a word the shell knows: after `make demo` it lies in .venv/bin only."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("kasync") is not None or not script.exists():
        return []
    here = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return [f"first     {f'source {here}':<46}so that your shell finds kasync"]
