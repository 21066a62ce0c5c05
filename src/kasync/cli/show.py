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
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in table:
            print("\t".join(words(row.get(name)) for name in columns))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    same = [name for name in constant if name in columns and len({words(row.get(name)) for row in table}) == 1]
    empty = [name for name in columns if not any(words(row.get(name)) for row in table)]
    shared = ", ".join(f"{name.replace('_', ' ')} {text}" for name in same if (text := words(table[0][name])))
    above = "\n".join(text for text in (title, shared) if text)
    kept, left_out = fitting([name for name in columns if name not in (*same, *empty)], table, console.width)
    drawn = Table(
        title=escape(above) or None, title_justify="left", title_style="bold", box=None, padding=(0, GAP, 0, 0)
    )
    between = "\n" if sum(_room(len(name), name, table) for name in kept) > console.width else " "
    for name in kept:
        numbers = all(isinstance(row.get(name), int | float | None) for row in table)
        drawn.add_column(
            name.replace("_", between), justify="right" if numbers else "left", overflow="fold", min_width=_word(name)
        )
    for row in table:
        drawn.add_row(*(escape(words(row.get(name))) for name in kept))
    console.print(drawn)
    if left_out:
        console.print(f"Not shown for want of room: {', '.join(left_out)} (--json has all).", style="dim", markup=False)


def fitting(columns: Sequence[str], table: Sequence[Mapping[str, Any]], width: int) -> tuple[list[str], list[str]]:
    """The columns that fit beside each other, in their order, and those that do not; the first ones always do."""
    kept: list[str] = []
    room = width
    for name in columns:
        need = _room(_word(name), name, table)
        if len(kept) < ALWAYS or need <= room:
            kept.append(name)
            room -= need
    return kept, [name for name in columns if name not in kept]


def _room(heading: int, name: str, table: Sequence[Mapping[str, Any]]) -> int:
    """Characters that a column takes under a heading of this width, with the gap after it."""
    return max([heading, *(len(words(row.get(name))) for row in table)]) + GAP


def _word(name: str) -> int:
    """The length of the longest word of a column's name."""
    return max(map(len, name.split("_")), default=0)


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
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
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
