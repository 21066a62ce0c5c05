"""Files written whole or not at all, and read with a sentence for whatever is wrong: TOML, JSON, CSV, arrays."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import threading
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError

AGAIN = "choose another folder with --out, or make room and run the same command again; it continues where it stopped"


def write(path: Path, content: bytes | str, remedy: str = AGAIN) -> None:
    """Put the content under this name, written aside, flushed, renamed: whoever looks sees the old file or the new."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with open(aside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        if hasattr(os, "O_DIRECTORY"):  # the rename itself should last, where the system lets a folder be opened
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as problem:
        aside.unlink(missing_ok=True)
        raise _unwritable(path, problem, remedy) from None


def make_folder(path: Path) -> Path:
    """The folder, made if it was not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise _unwritable(path, problem, AGAIN) from None
    return path


def _unwritable(path: Path, problem: OSError, remedy: str) -> UserError:
    return UserError(f"{path} cannot be written ({problem.strerror or problem}): {remedy}.")


def csv_text(rows: Iterable[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """Rows under their names, in the order in which they come; empty where a row has none."""
    rows, text = list(rows), io.StringIO()
    columns = names or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_json(path: Path, value: Any) -> None:
    """Numbers that are not finite become null."""
    write(path, json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What a JSON file of ours says, or a sentence that says what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{path} cannot be read ({problem}): delete it and run the command again.") from None


def plain(value: Any) -> Any:
    """As JSON can say it."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], remedy: str = AGAIN) -> None:
    """One npz file without pickles."""
    for name, array in arrays.items():
        if array.dtype == object:
            raise TypeError(f"{name} holds objects, which only a pickle could store")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue(), remedy)


def toml_text(table: Mapping[str, Any]) -> str:
    """The tables as TOML; None, for which it has no word, is left out."""
    import tomli_w

    def said(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: said(each) for name, each in value.items() if each is not None}
        return [said(each) for each in value] if isinstance(value, list | tuple) else value

    return tomli_w.dumps(said(table))


def read_toml(path: Path) -> dict[str, Any]:
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


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Tables in tables as names with dots: rule.lr."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        elif not isinstance(value, Mapping):
            yield f"{prefix}{name}", value


def nested(row: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `flat`."""
    table: dict[str, Any] = {}
    for name, value in row.items():
        *path, last = name.split(".")
        inner = table
        for each in path:
            inner = inner.setdefault(each, {})
        inner[last] = value
    return table
