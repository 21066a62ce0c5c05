"""How does a run survive being killed at any moment? One file, written aside, checked, and put in place at once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from kasync.errors import UserError

VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A place for the state of one run, which is told apart from other runs by its `identity`."""

    path: Path
    identity: Mapping[str, str]  # what must agree for the state to be of use: model, data, rule, timeline, ...

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write, fsync, rename: whoever looks sees the old state or the new one, never half of it."""
        from safetensors.torch import save_file

        held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        about = {"version": VERSION, "step": step, "identity": dict(self.identity), "checksum": checksum(held)}
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_file(held, aside, metadata={"kasync": json.dumps(about)})
            with open(aside, "rb") as file:
                os.fsync(file.fileno())
            os.replace(aside, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as problem:
            aside.unlink(missing_ok=True)
            raise UserError(
                f"checkpoint {self.path} cannot be written ({problem.strerror}): choose another place."
            ) from None

    def load(self) -> tuple[int, dict[str, Tensor]] | None:
        """The step and the tensors of the last save, or None if there was none."""
        if not self.path.exists():
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["kasync"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step, identity, wanted = int(about["step"]), about["identity"], about["checksum"]
        except (SafetensorError, OSError, KeyError, ValueError, TypeError):
            raise UserError(f"checkpoint {self.path} cannot be read: delete it to start again.") from None
        if about.get("version") != VERSION:
            raise UserError(f"checkpoint {self.path} has version {about.get('version')}, not {VERSION}: delete it.")
        if checksum(tensors) != wanted:
            raise UserError(f"checkpoint {self.path} is damaged (its checksum differs): delete it to start again.")
        for name, value in self.identity.items():
            if identity.get(name) != value:
                raise UserError(
                    f"checkpoint {self.path} belongs to another run: its {name} is {identity.get(name)}, not {value}; "
                    f"choose another place or delete it."
                )
        return step, tensors


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)};".encode())
        digest.update(value.numpy().reshape(-1).view("uint8").data)
    return digest.hexdigest()
