"""kasync demo: five rules, a thousand clients, two minutes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from kasync.cli import show
from kasync.cli.compare import reported
from kasync.cli.options import AsJson, Quiet


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo"),
    steps: Annotated[int | None, typer.Option(help="Instead of the demo's own number.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """See asynchronous training with true staleness: five rules, 1,000 clients with one label each, on embedded digits.

    Example: `kasync demo --out /tmp/demo`
    """
    from kasync.experiments import demo as shown
    from kasync.experiments.display import Lines, fitting

    display = fitting(quiet or as_json)
    if not (quiet or as_json) and not sys.stderr.isatty():
        display = Lines()  # `make demo` in a log should not look dead for two minutes
    with show.interruptible(show.command_line()):
        done = shown.demo(out, display, steps)
    page = reported(out)
    if as_json:
        show.value(
            {"results": str(out), "report": page, "picture": done.picture and str(done.picture), "rows": done.rows}
        )
        return
    show.rows(done.rows, title=done.title)
    print()
    print(f"results   {out}")
    print(f"picture   {done.picture or 'none: ' + done.why}")
    print(f"report    {page}")
    for words in _first():
        print(words)
    print("try next  kasync rules                                  what else the server could do")
    print("          kasync compare --rules wkafl,fedbuff,ca2fl    rules of your choice")
    print("          kasync reproduce --scale quick                every table and figure of the paper, small")


def _first() -> list[str]:
    """What to type before `kasync` is a word the shell knows: after `make demo` it lies in .venv/bin only."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("kasync") is not None or not script.exists():
        return []
    here = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return [f"first     {f'source {here}':<46}so that your shell finds kasync"]
