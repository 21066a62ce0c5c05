"""A run's state in one file that survives a kill at any moment: written aside, checked, and put in place at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, contiguous_format, uint8

from kasync.errors import UserError

VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A place for the state of one run, which is told apart from other runs by its `identity`."""

    path: Path
    identity: Mapping[str, str]  # what must agree for the state to be of use: model, data, rule, timeline, ...

    def ready(self) -> None:
        """Refuse a place that cannot be written, and clear away what a killed run left half written there."""
        if self.path.is_dir():
            raise UserError(f"checkpoint {self.path} is a folder: name a file in it.")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            clear(self.path.parent, re.escape(self.path.name))
            self._aside.mkdir()
            self._aside.rmdir()
        except OSError as problem:
            raise self._unwritable(problem) from None

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write, fsync, rename: whoever looks sees the old state or the new one, never half of it."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        held = {name: value.detach().cpu().clone(memory_format=contiguous_format) for name, value in tensors.items()}
        about = {"version": VERSION, "step": step, "identity": dict(self.identity)}
        about["checksum"] = checksum(about, held)
        try:
            self._aside.mkdir(exist_ok=True)
            save_file(held, self._aside / "whole", metadata={"kasync": json.dumps(about)})
            with open(self._aside / "whole", "rb+") as file:  # Windows flushes only what is open for writing
                os.fsync(file.fileno())
            os.replace(self._aside / "whole", self.path)
            self._aside.rmdir()
            if hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
                folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except (OSError, SafetensorError) as problem:
            shutil.rmtree(self._aside, ignore_errors=True)
            raise self._unwritable(problem) from None

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        """The step and the tensors of the last save, or None if there was none.

        The tensors are windows into the file: copy what is to outlive it.
        """
        if not self.path.exists():
            return None
        about, tensors = _read(self.path)
        if about["version"] != VERSION:
            found = words(about["version"])
            raise UserError(f"checkpoint {self.path} has version {found}, not {VERSION}: delete it to start again.")
        wanted = about.pop("checksum")
        if not _whole(about, tensors, wanted):
            raise UserError(f"checkpoint {self.path} is damaged (its checksum differs): delete it to start again.")
        for name, value in self.identity.items():
            found = about["identity"].get(name)
            if found != value:
                raise UserError(
                    f"checkpoint {self.path} belongs to another run: its {name} is {words(found)}, not {value}; "
                    f"choose another place or delete it."
                )
        return about["step"], tensors

    @property
    def _aside(self) -> Path:
        """A folder, since safetensors has temporary files of its own."""
        return self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")

    def _unwritable(self, problem: Exception) -> UserError:
        reason = getattr(problem, "strerror", None) or str(problem).splitlines()[0]
        return UserError(f"checkpoint {self.path} cannot be written ({reason}): choose another place.")


def words(found: object) -> str:
    """What a file says, on one line."""
    return " ".join(str(found).split())[:200]


def clear(folder: Path, names: str) -> None:
    """Remove what dead processes left half written under names of this pattern; the living may still be writing."""
    for left in folder.iterdir():
        found = re.fullmatch(rf"(?:{names})\.(\d+)\.tmp", left.name)
        if found and not _at_work(int(found[1])):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def _at_work(process: int) -> bool:
    """Whether another process of this number is alive."""
    if sys.platform == "win32":  # there os.kill would end the process, or send it Ctrl-C
        import ctypes

        kernel, code = ctypes.windll.kernel32, ctypes.c_ulong()
        handle = kernel.OpenProcess(0x1000, False, process)  # PROCESS_QUERY_LIMITED_INFORMATION
        alive = bool(handle) and bool(kernel.GetExitCodeProcess(handle, ctypes.byref(code))) and code.value == 259
        kernel.CloseHandle(handle)
        return alive and process != os.getpid()
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return process != os.getpid()


def identity_of(path: Path) -> dict[str, str]:
    """What the checkpoint at this place says of its run; nothing where there is none, or none that can be read."""
    try:
        return dict(_read(path, with_tensors=False)[0]["identity"])
    except UserError:
        return {}


def _read(path: Path, with_tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["kasync"])
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
        known = {name: about[name] for name in ("version", "step", "identity", "checksum")}
        if not isinstance(known["step"], int) or not isinstance(known["identity"], dict):
            raise TypeError
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError):
        raise UserError(f"checkpoint {path} cannot be read: delete it to start again.") from None
    return known, tensors


def _whole(about: Mapping[str, Any], tensors: Mapping[str, Tensor], wanted: object) -> bool:
    try:
        return checksum(about, tensors) == wanted
    except TypeError:  # a type of numbers that we never save
        return False


def checksum(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """sha256 over what is said of the run, and over names, types, shapes and bytes."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)};".encode())
        digest.update(value.reshape(-1).view(uint8).numpy().data)  # numpy knows no bfloat16
    return digest.hexdigest()
