"""A lock on a folder, so that one process at a time works in it; the OS releases it when the holder dies.

The system itself forgets a lock when its holder dies, however it dies, so nothing has to be guessed from process
numbers; the file only says who holds it. Whoever gets the lock clears away what a dead one left half written.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kasync.errors import UserError

NAME = "lock.json"
_kept: dict[Path, int] = {}  # what this process holds until it ends


@contextmanager
def held(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Nobody else works in the folder meanwhile; refuse, after waiting so many seconds, if somebody does."""
    path = folder / NAME
    until = time.monotonic() + wait
    while (handle := _taken(path)) is None:
        if time.monotonic() >= until:
            raise UserError(f"{folder} is in use by {_holder(path)}: wait for it, or choose another folder with --out.")
        time.sleep(0.05)
    try:
        for left in folder.glob(".*.part"):
            left.unlink(missing_ok=True)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def keep(file: Path) -> None:
    """Nobody else uses this file until this process ends; a file beside it says who does."""
    path = file.with_name(f"{file.name}.lock").absolute()
    if path in _kept:
        return
    handle = _taken(path)
    if handle is None:
        raise UserError(f"{file} is in use by {_holder(path)}: wait for it, or choose another file.")
    _kept[path] = handle
    atexit.register(path.unlink, missing_ok=True)


def _taken(path: Path) -> int | None:
    """The open and locked file, in which we say who we are, or None when somebody else has it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as problem:
        raise UserError(f"{path} cannot be written ({problem.strerror}): choose another folder with --out.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == os.stat(path).st_ino:  # else the holder removed it while we came
            about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            os.ftruncate(handle, 0)
            with suppress(OSError):  # a full disk: the lock holds all the same
                os.pwrite(handle, json.dumps(about).encode(), 0)
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def _holder(path: Path, patience: float = 0.5) -> str:
    """Who has the lock; one that has just taken it says so in a moment."""
    until = time.monotonic() + patience
    while True:
        try:
            about = json.loads(path.read_text())
            return f"process {about['pid']} on {about['host']} since {about['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            if time.monotonic() >= until:
                return "another process"
            time.sleep(0.02)
