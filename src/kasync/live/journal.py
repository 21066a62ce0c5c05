"""How does a live run survive being killed, with every accepted delivery counted exactly once?

An accepted delivery is on disk before anything is done with it, in a file that names the update it waits for. After
the update the whole state is saved, and only then are those files removed. Whatever the moment of death, a file that
names an earlier update than the saved one was used, and one that names the next was not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kasync.checkpoint import Checkpoint, clear
from kasync.core import ServerState
from kasync.live.diary import Diary
from kasync.live.waiting import Waiting

if TYPE_CHECKING:
    from kasync.live.loop import Federation


@dataclass(frozen=True)
class Journal:
    """A file for the state, and beside it one for each delivery that waits; told apart from other runs by identity."""

    path: Path
    identity: Mapping[str, str]

    def keep(self, update: int, place: int, waiting: Waiting) -> None:
        """Put an accepted delivery on disk."""
        tensors = {"row": waiting.row} | ({} if waiting.start is None else {"start": waiting.start})
        about = {
            "node": named(waiting.node),
            "version": waiting.version,
            "loss": waiting.loss,
            "examples": waiting.examples,
            "metrics": dict(waiting.metrics),
        }
        self._file(update, place).save(update, {**tensors, "about": packed(about)})

    def save(self, federation: Federation, now: float) -> None:
        """Put the state after an update on disk, then forget the deliveries it used."""
        about = {
            "updates": federation.updates,
            "seconds": now - federation.began,
            "left": len(federation.waiting),
            "nodes": [named(client.node) for client in federation.roster],
            "offences": [client.offences for client in federation.roster],
            "aside": [client.aside for client in federation.roster],
            "diary": federation.diary.table(),
        }
        for place, waiting in enumerate(federation.waiting):  # they wait for the next update now
            self.keep(federation.updates, place, waiting)
        Checkpoint(self.path, self.identity).save(
            federation.updates, {**federation.server.state_dict(), "about": packed(about)}
        )
        for file in self._files():
            if update_of(file) < federation.updates:
                file.unlink(missing_ok=True)

    def restore(self, federation: Federation, now: float) -> bool:
        """Bring a new federation to where the journal ends; whether there was anything."""
        state = Checkpoint(self.path, self.identity)
        state.ready()
        clear(self.path.parent, self._waiting)
        found = state.load()
        federation.began = now
        left = self._restore_state(federation, found[1], now) if found is not None else 0
        for file in self._files():
            if update_of(file) == federation.updates:
                federation.waiting.append(self._read(file, federation))
            else:
                file.unlink(missing_ok=True)  # used before the last save
        federation.diary.tally["accepted"] += len(federation.waiting) - left
        return found is not None or bool(federation.waiting)

    def _restore_state(self, federation: Federation, tensors: dict[str, Tensor], now: float) -> int:
        """Take over what was saved after an update; how many deliveries waited then."""
        about = unpacked(tensors.pop("about"))
        device = federation.server.params.device
        federation.server = ServerState.from_state_dict(
            {
                name: value.to(device, copy=True) for name, value in tensors.items()
            }  # else they would change with the file
        )
        federation.updates = about["updates"]
        federation.began = now - about["seconds"]
        federation.diary = Diary.of(about["diary"])
        for node, offences, aside in zip(about["nodes"], about["offences"], about["aside"], strict=True):
            client = federation.roster.join(node)
            client.present, client.offences, client.aside = False, offences, aside
        return about["left"]

    def _read(self, file: Path, federation: Federation) -> Waiting:
        found = Checkpoint(file, self.identity).load()
        assert found is not None  # it was listed, and nobody else works here
        device = federation.server.params.device
        tensors = {name: value.to(device, copy=True) for name, value in found[1].items()}
        about = unpacked(tensors["about"].cpu())
        client = federation.roster.join(about["node"])
        client.waiting = True
        client.present = False
        return Waiting(client=client.number, row=tensors["row"], start=tensors.get("start"), **about)

    def _file(self, update: int, place: int) -> Checkpoint:
        return Checkpoint(self.path.with_name(f"{self.path.name}.{update:09d}.{place:06d}.waiting"), self.identity)

    def _files(self) -> Iterator[Path]:
        """The deliveries on disk, in the order they came."""
        return iter(sorted(path for path in self.path.parent.iterdir() if re.fullmatch(self._waiting, path.name)))

    @property
    def _waiting(self) -> str:
        """A pattern of the names that _file gives; those of a run whose file begins with our name are not ours."""
        return rf"{re.escape(self.path.name)}\.\d{{9,}}\.\d{{6,}}\.waiting"


def update_of(file: Path) -> int:
    """The update that the delivery in this file waits for."""
    return int(file.name.split(".")[-3])


def named(node: Hashable) -> int | str:
    """The name of a node as json has it."""
    return node if isinstance(node, int) else str(node)


def packed(table: Mapping[str, Any]) -> Tensor:
    """[n] uint8 json."""
    return torch.frombuffer(bytearray(json.dumps(table).encode()), dtype=torch.uint8)


def unpacked(bits: Tensor) -> dict[str, Any]:
    return json.loads(bits.numpy().tobytes())
