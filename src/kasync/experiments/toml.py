"""Settings as TOML: written by tomli-w, read with a sentence for whatever is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kasync.errors import UserError


def dumps(table: Mapping[str, Any]) -> str:
    """The tables as TOML; None, for which it has no word, is left out."""
    import tomli_w

    return tomli_w.dumps(_plain(table))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def read(path: Path) -> dict[str, Any]:
    """The tables of a file, or a sentence that says what is wrong with it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give a TOML file of settings.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} cannot be read ({problem}): give a TOML file of settings.") from None
    except ValueError as problem:  # not TOML, or a number with thousands of digits
        raise UserError(f"{path} is not valid TOML ({problem}): repair it.") from None
    except RecursionError:
        raise UserError(f"{path} is not valid TOML (it is nested too deeply): repair it.") from None
