"""Results on disk, whole or not at all: written aside, flushed, renamed."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError


def write(path: Path, content: bytes | str) -> None:
    """Put the content under this name; whoever looks sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with open(aside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as problem:
        aside.unlink(missing_ok=True)
        raise _unwritable(path, problem) from None


def csv_text(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """Rows under their names, in the order in which they come; empty where a row has none."""
    text = io.StringIO()
    columns = names or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_json(path: Path, value: Any) -> None:
    """Numbers that are not finite become null."""
    write(path, json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, NDArray]) -> None:
    """One npz file without pickles."""
    for name, array in arrays.items():
        if array.dtype == object:
            raise TypeError(f"{name} holds objects, which only a pickle could store")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write(path, buffer.getvalue())


def read_json(path: Path) -> Any:
    """What a JSON file of ours says, or a sentence that says what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{path} cannot be read ({problem}): delete it and run the command again.") from None


def make_folder(path: Path) -> Path:
    """The folder, made if it was not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise _unwritable(path, problem) from None
    return path


def _unwritable(path: Path, problem: OSError) -> UserError:
    return UserError(
        f"{path} cannot be written ({problem.strerror or problem}): choose another folder with --out, or make room and "
        f"run the same command again; it continues where it stopped."
    )


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
