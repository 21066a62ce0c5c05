"""How is an answer shown? A table on a terminal, tab-separated lines in a pipe, JSON where a machine asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer


def rows(table: Sequence[Mapping[str, Any]], as_json: bool = False, title: str = "") -> None:
    """Rows with the same keys, in their order."""
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
    from rich.table import Table

    drawn = Table(title=title or None, title_justify="left", title_style="bold")
    for name in columns:
        numbers = all(isinstance(row.get(name), int | float | None) for row in table)
        drawn.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in table:
        drawn.add_row(*(words(row.get(name)) for name in columns))
    Console().print(drawn, markup=False)


def value(thing: Any) -> None:
    """One JSON value; numbers that are not finite become null."""
    from kasync.experiments.files import plain

    print(json.dumps(plain(thing), indent=1, ensure_ascii=False))


def note(text: str, quiet: bool = False) -> None:
    """A word to the person, not part of the answer: on the terminal's error stream, if somebody looks."""
    if not quiet and sys.stderr.isatty():
        print(text, file=sys.stderr)


def words(cell: Any) -> str:
    """A cell as people read it."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


@contextmanager
def interruptible(again: str | Callable[[], str]) -> Iterator[None]:
    """Ctrl-C ends with a sentence that says how to go on (asked for when it happens), and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        words = again if isinstance(again, str) else again()
        print(f"\nkasync: stopped. Go on with: {words}", file=sys.stderr)
        raise typer.Exit(130) from None


def command_line() -> str:
    """What was typed."""
    import shlex

    return shlex.join(["kasync", *sys.argv[1:]])
