"""The record of a live run on disk: its log of steps, its state, and every accepted delivery until it was used.

An accepted delivery is on disk before anything is done with it, in a file that names the update it came before. Every
`every` updates the whole state is saved, with the names of the files that still wait, and only then are the others
removed. Whatever the moment of death, a file that the state does not name was used if it came before the saved update
and waits if it came later: a server that starts again makes later updates again, from the same deliveries. The log of
steps grows by a line for each update; what a dead server wrote beyond its last saved state is cut off. One process at
a time: two servers with one journal would each forget what the other accepted.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kasync import fingerprint, lock
from kasync.checkpoint import Checkpoint, clear
from kasync.core import ServerState
from kasync.errors import UserError
from kasync.live.deliveries import Accepted
from kasync.live.roster import KEPT
from kasync.timelines import Timeline

if TYPE_CHECKING:
    from kasync.live.loop import Federation


@dataclass
class StepLog:
    """One entry for each step, and how many replies ended in which way."""

    clients: list[list[int]] = field(default_factory=list)  # of each step
    versions: list[list[int]] = field(default_factory=list)  # of each step
    times: list[float] = field(default_factory=list)  # of each step, in seconds of running
    tally: Counter[str] = field(default_factory=Counter)

    def note(self, clients: list[int], versions: list[int], time: float) -> None:
        self.clients.append(clients)
        self.versions.append(versions)
        self.times.append(max(time, self.times[-1]) if self.times else time)

    def timeline(self, population: int, rule: str) -> Timeline | None:
        """The longest stretch of steps with equally many deliveries; work begun before it counts as begun with it."""
        if not self.clients:
            return None
        stretches, start = [], 0
        for _, steps in groupby(self.clients, len):
            count = len(list(steps))
            stretches.append((count, start))
            start += count
        count, start = max(stretches, key=lambda stretch: (stretch[0], stretch[1]))
        stop = start + count
        highest = max(map(max, self.clients[start:stop]))  # the number of one that is somebody else now, perhaps
        return Timeline(
            clients=np.array(self.clients[start:stop]),
            versions=np.maximum(np.array(self.versions[start:stop]) - start, 0),
            times=np.array(self.times[start:stop]) - (self.times[start - 1] if start else 0.0),
            population=max(population, highest + 1),
            kind="live",
            settings={"rule": rule, "first_step": start, "steps": len(self.clients), **self.tally},
        )

    def lines(self, first: int) -> str:
        """The steps from this one on, a line of json each."""
        rows = zip(self.clients[first:], self.versions[first:], self.times[first:], strict=True)
        return "".join(json.dumps([clients, versions, time]) + "\n" for clients, versions, time in rows)

    def read(self, text: str) -> None:
        """Take over the steps of these lines."""
        for line in text.splitlines():
            clients, versions, time = json.loads(line)
            self.note(clients, versions, time)


class Storage(Protocol):
    """Where a journal lies: files of tensors by name, and a text that grows."""

    def ready(self) -> None: ...
    def save(self, name: str, step: int, tensors: Mapping[str, Tensor]) -> None: ...
    def load(self, name: str) -> tuple[int, dict[str, Tensor]] | None: ...
    def names(self) -> list[str]: ...
    def remove(self, name: str) -> None: ...
    def append(self, name: str, text: str, at: int) -> None: ...
    def text(self, name: str, size: int | None) -> str: ...


@dataclass(frozen=True)
class Local:
    """Files of one folder."""

    path: Path  # of the state; the others have its name before their own
    identity: Mapping[str, str]

    def ready(self) -> None:
        Checkpoint(self.path, self.identity).ready()
        lock.keep(self.path)
        clear(self.path.parent, rf"{re.escape(self.path.name)}\.\d+\.\d+\.waiting")

    def save(self, name: str, step: int, tensors: Mapping[str, Tensor]) -> None:
        Checkpoint(self._file(name), self.identity).save(step, tensors)

    def load(self, name: str) -> tuple[int, dict[str, Tensor]] | None:
        found = Checkpoint(self._file(name), self.identity).load()
        # tensors are windows into the file, which will be written again
        return None if found is None else (found[0], {name: value.clone() for name, value in found[1].items()})

    def names(self) -> list[str]:
        start = f"{self.path.name}."
        return [path.name[len(start) :] for path in self.path.parent.iterdir() if path.name.startswith(start)]

    def remove(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def append(self, name: str, text: str, at: int) -> None:
        path = self._file(name)
        try:
            with open(path, "r+b" if path.exists() else "xb") as file:
                file.seek(at)
                file.truncate()
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise UserError(f"{path} cannot be written ({problem.strerror}): choose another place.") from None

    def text(self, name: str, size: int | None) -> str:
        path = self._file(name)
        found = path.read_bytes()[:size] if path.exists() else b""
        if len(found) < (size or 0):
            raise UserError(f"{path} is shorter than its checkpoint says: delete both to start again.")
        return found.decode()

    def _file(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}") if name else self.path


SEGMENT = 1 << 18  # bytes of a growing text that one object holds


class Remote:
    """Objects under an address that fsspec understands (s3://, gs://, memory://); nothing locks it.

    An object store cannot append: a text that grows lies in objects of SEGMENT bytes, of which the last is written
    again.
    """

    def __init__(self, address: str, identity: Mapping[str, str]) -> None:
        import fsspec  # torch needs it too

        self.address, self.identity = address, identity
        try:
            self.system, self.base = fsspec.core.url_to_fs(address)
        except (ImportError, ValueError) as problem:
            raise UserError(f"checkpoint {address} is no place that fsspec can reach ({problem}).") from None
        self.tails: dict[str, bytes] = {}  # of each text, what its last object holds
        self.aside = tempfile.TemporaryDirectory(prefix="kasync-")

    def ready(self) -> None:
        try:
            self.system.makedirs(self.system._parent(self.base), exist_ok=True)
            self.system.pipe_file(f"{self.base}.ready", b"")
            self.system.rm_file(f"{self.base}.ready")
        except OSError as problem:
            raise UserError(f"checkpoint {self.address} cannot be written ({problem}): choose another place.") from None

    def save(self, name: str, step: int, tensors: Mapping[str, Tensor]) -> None:
        local = Path(self.aside.name) / "out"
        Checkpoint(local, self.identity).save(step, tensors)
        self.system.put_file(str(local), self._object(name))

    def load(self, name: str) -> tuple[int, dict[str, Tensor]] | None:
        if not self.system.exists(self._object(name)):
            return None
        local = Path(self.aside.name) / "in"
        self.system.get_file(self._object(name), str(local))
        found = Checkpoint(local, self.identity).load()
        return None if found is None else (found[0], {name: value.clone() for name, value in found[1].items()})

    def names(self) -> list[str]:
        start = f"{self.base.rsplit('/', 1)[-1]}."
        self.system.invalidate_cache()
        found = [path.rsplit("/", 1)[-1] for path in self.system.ls(self.system._parent(self.base), detail=False)]
        return [name[len(start) :] for name in found if name.startswith(start)]

    def remove(self, name: str) -> None:
        if self.system.exists(self._object(name)):
            self.system.rm_file(self._object(name))

    def append(self, name: str, text: str, at: int) -> None:
        first = at // SEGMENT
        if name not in self.tails:
            self.tails[name] = self.text(name, at).encode()[first * SEGMENT :]
            for path in self._segments(name)[first + 1 :]:  # of a dead process, beyond its last saved state
                self.system.rm_file(path)
        rest = self.tails[name][: at - first * SEGMENT] + text.encode()
        for number, start in enumerate(range(0, len(rest), SEGMENT), first):
            self.tails[name] = rest[start : start + SEGMENT]
            self.system.pipe_file(f"{self._object(name)}.{number:06d}", self.tails[name])

    def text(self, name: str, size: int | None) -> str:
        found = b"".join(self.system.cat_file(path) for path in self._segments(name))[:size]
        if len(found) < (size or 0):
            raise UserError(f"{self._object(name)} is shorter than its checkpoint says: delete both to start again.")
        return found.decode()

    def _segments(self, name: str) -> list[str]:
        """The objects of a text, in order."""
        there = {found for found in self.names() if found.startswith(f"{name}.")}
        numbers = range(len(there))
        return [f"{self._object(name)}.{n:06d}" for n in numbers if f"{name}.{n:06d}" in there]

    def _object(self, name: str) -> str:
        return f"{self.base}.{name}" if name else self.base


STEPS = "steps"
WAITING = re.compile(r"(\d{9,})\.(\d{6,})\.waiting")


class Journal:
    """The state, each delivery that waits and the log of steps; told apart from other runs by identity."""

    def __init__(self, path: str | os.PathLike[str], identity: Mapping[str, str], every: int = 1) -> None:
        self.place = os.fspath(path)
        if self.place.startswith(("file://", "local://")):
            from fsspec.implementations.local import LocalFileSystem

            self.place = LocalFileSystem._strip_protocol(self.place)
        far = "://" in self.place
        self.storage: Storage = Remote(self.place, identity) if far else Local(Path(self.place), identity)
        self.every = every
        self.written = 0  # steps of the log that are on disk
        self.size = 0  # their bytes
        self.places: Counter[int] = Counter()  # deliveries on disk for each update, from the one that is waited for on

    def keep(self, update: int, waiting: Accepted, k: int) -> str:
        """Put an accepted delivery on disk, with how many make an update; the name of its file."""
        tensors = {"row": waiting.row}
        for name in ("start", "buffers"):
            if getattr(waiting, name) is not None:
                tensors[name] = getattr(waiting, name)
        about = {
            "node": named(waiting.node),
            "client": waiting.client,
            "version": waiting.version,
            "loss": waiting.loss,
            "examples": waiting.examples,
            "metrics": dict(waiting.metrics),
            "k": k,
        }
        name = f"{update:09d}.{self.places[update]:06d}.waiting"
        self.places[update] += 1
        self.storage.save(name, update, {**tensors, "about": packed(about)})
        return name

    def save(self, federation: Federation, now: float, whatever: bool = False) -> None:
        """Put the state after an update on disk, then forget the deliveries it used."""
        self.places = Counter({update: n for update, n in self.places.items() if update >= federation.updates})
        if federation.updates % self.every and not whatever:
            return
        lines = federation.step_log.lines(self.written)
        self.storage.append(STEPS, lines, self.size)
        self.written, self.size = len(federation.step_log.clients), self.size + len(lines.encode())
        about: dict[str, Any] = {
            "updates": federation.updates,
            "room": federation.roster.room,
            "seconds": now - federation.began,
            "left": [waiting.file for waiting in federation.waiting],
            "clients": [{n: getattr(client, n) for n in KEPT} | {"node": named(client.node)} for client in federation],
            "tally": dict(federation.step_log.tally),
            "step_log": {"steps": self.written, "size": self.size},
        }
        self.storage.save("", federation.updates, {**federation.tensors(), "about": packed(about)})
        for name, update in self._files():
            if update < federation.updates and name not in about["left"]:
                self.storage.remove(name)

    def restore(self, federation: Federation, now: float) -> bool:
        """Bring a new federation to where the journal ends; whether there was anything."""
        self.storage.ready()
        found = self.storage.load("")
        federation.began = now
        left = self._restore_state(federation, found[1], now) if found is not None else []
        for name, update in self._files():
            if update >= federation.updates or name in left:
                k = self._read(name, federation)
                self.places[update] = int(name.split(".")[1]) + 1
                if update > federation.updates:
                    federation.remade = (update, k)
            else:
                self.storage.remove(name)  # used before the last save
        for number, waiting in enumerate(federation.waiting):
            if waiting.version > federation.version + number // federation.remade[1]:
                raise UserError(
                    f"{self.place} is older than the deliveries beside it, or was deleted without them: "
                    f"delete {self.place}.*.waiting too, to start without them."
                )
        federation.step_log.tally["accepted"] += len(federation.waiting) - len(left)
        return found is not None or bool(federation.waiting)

    def _restore_state(self, federation: Federation, tensors: dict[str, Tensor], now: float) -> list[str]:
        """Take over what was saved after an update; the files of the deliveries that waited then."""
        about = unpacked(tensors.pop("about"))
        device = federation.server.params.device
        buffers = tensors.pop("buffers", None)
        federation.buffers = None if buffers is None else buffers.to(device)
        federation.server = ServerState.from_state_dict({name: value.to(device) for name, value in tensors.items()})
        federation.updates = about["updates"]
        if about.get("room") is not None:
            federation.rule, federation.roster.room = federation.rule.for_clients(about["room"]), about["room"]
        federation.began = now - about["seconds"]
        self.written, self.size = about["step_log"]["steps"], about["step_log"]["size"]
        federation.step_log.read(self.storage.text(STEPS, self.size))
        federation.step_log.tally = Counter(about["tally"])
        federation.roster.restore(about["clients"])
        return about["left"]

    def _read(self, name: str, federation: Federation) -> int:
        """Let a delivery wait again; how many made an update when it was accepted."""
        found = self.storage.load(name)
        assert found is not None  # it was listed, and nobody else works here
        tensors = found[1]
        about = unpacked(tensors.pop("about"))
        client, k = federation.roster.join(about.pop("node"), about["client"]), about.pop("k", federation.terms.k)
        federation.admit(client, tensors, {**about, "file": name})
        return k

    def _files(self) -> list[tuple[str, int]]:
        """The deliveries on disk and the updates they wait for, in the order they came."""
        found = sorted(name for name in self.storage.names() if WAITING.fullmatch(name))
        return [(name, int(name.split(".")[0])) for name in found]


def read_state(path: str | Path) -> dict[str, Any]:
    """What the state of a live run says beside its tensors, its log of steps included."""
    found = Local(Path(path), {}).load("")
    if found is None:
        raise UserError(f"{path} holds no live run: give the file that the run's checkpoint= named.")
    about, step_log = unpacked(found[1]["about"]), StepLog()
    step_log.read(Local(Path(path), {}).text(STEPS, about["step_log"]["size"]))
    steps = {"clients": step_log.clients, "versions": step_log.versions, "times": step_log.times}
    return {**about, "step_log": steps}


def named(node: Hashable) -> int | str:
    """The name of a node as json has it."""
    return node if isinstance(node, int) else str(node)


def packed(table: Mapping[str, Any]) -> Tensor:
    """[n] uint8 json."""
    return torch.frombuffer(bytearray(json.dumps(table).encode()), dtype=torch.uint8)


def unpacked(bits: Tensor) -> dict[str, Any]:
    return json.loads(bits.cpu().numpy().tobytes())


def identity(**parts: object) -> dict[str, str]:
    """What tells a live run from another, whatever carries it: a fingerprint of each named part."""
    return {
        name: f"{getattr(value, 'name', type(value).__name__)} {fingerprint.of(value)}" for name, value in parts.items()
    }
