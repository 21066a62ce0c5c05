"""Output of the commands: tables that fit a terminal, tab-separated lines in a pipe, JSON where it is asked for."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from kasync import experiments
from kasync.files import plain

ALWAYS = 2  # columns of a table that are shown however narrow the terminal is
GAP = 2  # characters between two columns


def rows(
    table: Sequence[Mapping[str, Any]], as_json: bool = False, title: str = "", constant: Sequence[str] = ()
) -> None:
    """Rows with the same keys, in their order; `constant` columns that say the same everywhere go above the table.

    A terminal that is too narrow for all columns shows the first that fit and says which are left out.
    """
    if as_json:
        value(list(table))
        return
    columns = list(dict.fromkeys(name for row in table for name in row))
    texts = {name: [words(row.get(name)) for row in table] for name in columns}
    if not sys.stdout.isatty():
        for line in (columns, *zip(*texts.values(), strict=True)):
            print("\t".join(line))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    same = [name for name in constant if len(set(texts.get(name, ()))) == 1]
    shared = ", ".join(f"{name.replace('_', ' ')} {texts[name][0]}" for name in same if texts[name][0])
    above = "\n".join(text for text in (title, shared) if text)
    told = [name for name in columns if name not in same and any(texts[name])]
    kept, left_out = fitting(told, table, console.width)
    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "box": None, "padding": (0, GAP, 0, 0)}
    drawn = Table(title=escape(above) or None, **style)
    between = "\n" if sum(_room(len(name), name, table) for name in kept) > console.width else " "
    for name in kept:
        style = {"overflow": "fold", "min_width": max(map(len, name.split("_")))}
        style["justify"] = "right" if all(isinstance(row.get(name), int | float | None) for row in table) else "left"
        drawn.add_column(name.replace("_", between), **style)
    for line in zip(*(texts[name] for name in kept), strict=True):
        drawn.add_row(*map(escape, line))
    console.print(drawn)
    if left_out:
        console.print(f"Not shown for want of room: {', '.join(left_out)} (--json has all).", style="dim", markup=False)


def fitting(columns: Sequence[str], table: Sequence[Mapping[str, Any]], width: int) -> tuple[list[str], list[str]]:
    """The columns that fit beside each other, in their order, and those that do not; the first ones always do."""
    kept: list[str] = []
    room = width
    for name in columns:
        need = _room(max(map(len, name.split("_"))), name, table)
        if len(kept) < ALWAYS or need <= room:
            kept.append(name)
            room -= need
    return kept, [name for name in columns if name not in kept]


def _room(heading: int, name: str, table: Sequence[Mapping[str, Any]]) -> int:
    """Characters that a column takes under a heading of this width, with the gap after it."""
    return max([heading, *(len(words(row.get(name))) for row in table)]) + GAP


def value(thing: Any) -> None:
    """One JSON value; numbers that are not finite become null."""
    print(json.dumps(plain(thing), indent=1, ensure_ascii=False))


def say(text: str) -> None:
    """Sentences: broken between words where a terminal ends, in one line in a pipe."""
    print(_broken(text) if sys.stdout.isatty() else text)


def _broken(text: str) -> str:
    return textwrap.fill(text, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)


def note(text: str, quiet: bool = False) -> None:
    """A word to the person, not part of the answer: on the terminal's error stream, if somebody looks."""
    stream = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # what rich puts in its place is no terminal
    if not quiet and stream.isatty():
        print(_broken(text), file=sys.stderr, flush=True)


def words(cell: Any) -> str:
    """A cell as people read it."""
    if cell is None or isinstance(cell, bool):
        return {None: "", True: "yes", False: "no"}[cell]
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def progress(silent: bool, labels: Mapping[str, str] | None = None, track: str | None = None, *where: Any) -> Any:
    """How far runs are, shown here and logged where somebody asks: `where` is group, folder and settings of runs."""
    shown = experiments.display.fitting(silent, labels)
    if track is None:
        return shown
    from kasync.report.loggers import tracked

    return tracked(shown, track, *where)


def failures(failed: Mapping[str, str]) -> None:
    """Exit code 1 and a line for each if some runs failed."""
    for name, why in failed.items():
        typer.echo(f"kasync: {name} failed: {why}", err=True)
    if failed:
        raise typer.Exit(1)


@contextmanager
def interruptible(again: Callable[[], str] | None = None) -> Iterator[None]:
    """Ctrl-C ends with a sentence that says how to go on (what was typed, if not told), and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        words = again() if again else command_line()
        print(f"\nkasync: stopped. Go on with: {words}", file=sys.stderr)
        raise typer.Exit(130) from None


def command_line() -> str:
    """What was typed."""
    return shlex.join(["kasync", *sys.argv[1:]])
