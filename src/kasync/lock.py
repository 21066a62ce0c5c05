"""Locks on folders and files between processes; the operating system releases them when the holder dies.

The lock itself is filelock's, so it works on Linux, macOS and Windows. A JSON file beside it
names the holder in error messages.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from kasync.errors import UserError

NAME = "lock.json"  # names the holder of a folder; the locked file is NAME + LOCKED
LOCKED = ".flock"
_kept: dict[Path, FileLock] = {}  # held until this process ends


@contextmanager
def held(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Lock the folder for this block; raise UserError if another process still holds it after `wait` seconds."""
    holder = folder / NAME
    lock = _acquired(holder, wait)
    if lock is None:
        raise UserError(f"{folder} is in use by {_holder(holder)}: wait for it, or choose another folder with --out.")
    try:
        for left in folder.glob(".*.part"):  # half-written files of a process that died
            left.unlink(missing_ok=True)
        yield
    finally:
        _release(holder, lock)


def keep(file: Path) -> None:
    """Lock the file until this process ends; a second call for the same file does nothing."""
    holder = file.with_name(f"{file.name}.lock").absolute()
    if holder in _kept:
        return
    lock = _acquired(holder)
    if lock is None:
        raise UserError(f"{file} is in use by {_holder(holder)}: wait for it, or choose another file.")
    _kept[holder] = lock
    atexit.register(_release, holder, lock)


def _acquired(holder: Path, wait: float = 0.0) -> FileLock | None:
    """The lock, with our name in the file `holder`, or None when another process has it."""
    lock = FileLock(holder.with_name(holder.name + LOCKED), mode=0o644, thread_local=False)
    try:
        lock.acquire(timeout=wait, poll_interval=0.05)
    except Timeout:
        return None
    except OSError as problem:
        raise UserError(f"{holder} cannot be written ({problem.strerror}): choose another folder with --out.") from None
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with suppress(OSError):  # a full disk: the lock holds all the same
        holder.write_text(json.dumps(about), encoding="utf-8")
    return lock


def _release(holder: Path, lock: FileLock) -> None:
    holder.unlink(missing_ok=True)
    with suppress(OSError):  # Windows: an open file cannot be removed; filelock removes it after the release
        Path(lock.lock_file).unlink()
    lock.release()


def _holder(path: Path, patience: float = 0.5) -> str:
    """Who holds the lock; a process that has just taken it writes its name within `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            return f"process {about['pid']} on {about['host']} since {about['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            if time.monotonic() >= until:
                return "another process"
            time.sleep(0.02)
