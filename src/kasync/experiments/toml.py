"""How are settings written as TOML? The standard library reads it but does not write it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kasync.errors import UserError


def dumps(table: Mapping[str, Any]) -> str:
    """Plain values, then a [section] for each table and a [[section]] for each of a list; None is left out."""
    plain = {name: value for name, value in table.items() if not _is_section(value)}
    lines = _lines(plain)
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(name)}]", *_lines(value)]
        elif _is_section(value):
            for row in value:
                lines += ["", f"[[{_key(name)}]]", *_lines(row)]
    return "\n".join(lines).lstrip("\n") + "\n"


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


def _is_section(value: Any) -> bool:
    tables = isinstance(value, list | tuple) and bool(value) and all(isinstance(row, Mapping) for row in value)
    return isinstance(value, Mapping) or tables


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in table.items() if value is not None]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items() if each is not None)
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # repr writes inf and nan as TOML does
    if isinstance(value, str):
        return _text(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} has no form in TOML")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's, but for DEL
