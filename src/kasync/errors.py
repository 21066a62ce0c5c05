"""The exception for mistakes of a user: one sentence that names the setting, the value and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

LONGEST = 200  # letters of a name that is quoted


class UserError(ValueError):
    """A mistake of the person at the keyboard; the command line prints its sentence and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> UserError:
    """The error for a name that does not exist, with the nearest one that does, and what else could be done."""
    options = sorted(known)
    near = get_close_matches(str(name), options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(options)}."
    if otherwise:
        hint = f"{hint[:-1]}, {otherwise}{hint[-1]}"
    shown = name if len(str(name)) <= LONGEST else f"{name[:LONGEST]}..."
    return UserError(f"unknown {kind} {shown!r}: {hint}")


def optional(module: str, sentence: str) -> Any:
    """A module of a package that kasync can do without, or the sentence that says how to get it."""
    try:
        return import_module(module)
    except ImportError as problem:
        raise UserError(sentence) from problem
