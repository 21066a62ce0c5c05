"""Timelines on disk: one npz file without pickles, written whole or not at all, checked when read."""

import json
import os
import tempfile
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from kasync.errors import UserError
from kasync.timelines.invariants import broken
from kasync.timelines.timeline import Timeline

FORMAT = "kasync timeline"
VERSION = 1
OPTIONAL = ("copies", "local_steps")  # arrays that a timeline may lack


def save(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write a timeline; at no moment is there half a file under this name."""
    target = Path(path)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "population": timeline.population,
        "kind": timeline.kind,
        "settings": dict(timeline.settings),
    }
    present: dict[str, Any] = {name: getattr(timeline, name) for name in OPTIONAL}
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as problem:
        raise UserError(f"{target} cannot be written ({problem.strerror}): choose a folder that exists.") from problem
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(
                file,
                about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
                clients=timeline.clients,
                versions=timeline.versions,
                times=timeline.times,
                **{name: array for name, array in present.items() if array is not None},
            )
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
        _settle(target.parent)
    except OSError as problem:
        why = problem.strerror or problem
        raise UserError(f"{target} cannot be written ({why}): make room, or choose another place.") from None
    finally:
        Path(name).unlink(missing_ok=True)


def load(path: str | PathLike[str]) -> Timeline:
    """Read a timeline back; a file that is cut off, foreign or inconsistent is refused."""
    try:
        with np.load(Path(path), allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            wanted = ("clients", "versions", "times", *(name for name in OPTIONAL if name in stored))
            arrays = {name: stored[name] for name in wanted}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give a file that timelines.save wrote.") from None
    except Exception as problem:  # damaged bytes make the readers of zip, npy and json fail in many ways
        raise UserError(f"{path} is not a whole timeline file ({problem}): save the timeline again.") from problem
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
        raise UserError(f"{path} is not a timeline of format {VERSION}: save it again with this version of kasync.")
    try:
        timeline = Timeline(
            **arrays, population=int(about["population"]), kind=str(about["kind"]), settings=dict(about["settings"])
        )
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise UserError(f"{path} is inconsistent ({problem}): save the timeline again.") from problem
    too_many = timeline.population >= 2**31 - 1
    fault = f"{timeline.population} clients are too many" if too_many else broken(timeline)
    if fault:
        raise UserError(f"{path} is inconsistent ({fault}): save the timeline again.")
    return timeline


def _settle(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
