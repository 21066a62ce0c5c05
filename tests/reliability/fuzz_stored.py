"""Damaged timelines and checkpoints, and their readers."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutations import BYTES, Canary, spoilt_bytes, spoilt_fields
from safetensors.torch import save_file
from small_worlds import CLIENTS, mlp, vectors
from spoilt_numbers import spoilt_array, spoilt_tensor

from kasync import Gradient, rules, simulate, timelines
from kasync.checkpoint import Checkpoint, checksum, identity_of


class Timelines:
    """A npz file with a timeline."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "timeline.npz"
        timelines.save(timelines.uniform(6, 2, 20, seed=1), self.path)
        self.whole = self.path.read_bytes()
        with np.load(self.path, allow_pickle=False) as stored:
            self.arrays = {name: stored[name] for name in stored}

    def make(self, draw: Random) -> Path:
        if draw.random() < 0.4:
            self.path.write_bytes(spoilt_bytes(draw, self.whole))
            return self.path
        arrays: dict[str, Any] = dict(self.arrays)
        for _ in range(draw.choice((1, 1, 2))):
            name = draw.choice(list(arrays))
            if name == "about" and draw.random() < 0.7:
                arrays[name] = self._about(draw)
            else:
                arrays[name] = spoilt_array(draw, arrays[name], self.folder / "canary")
            if draw.random() < 0.1:
                del arrays[draw.choice(list(arrays))]
        with open(self.path, "wb") as file:
            (np.savez_compressed if draw.random() < 0.5 else np.savez)(file, **arrays)
        return self.path

    def _about(self, draw: Random) -> np.ndarray:
        about = spoilt_fields(draw, json.loads(self.arrays["about"].tobytes()))
        text = json.dumps(about).encode()
        return np.frombuffer(text if draw.random() < 0.7 else spoilt_bytes(draw, text, len(text)), dtype=np.uint8)

    def read(self, made: Path) -> None:
        found = timelines.load(made)
        if found.population < 10**6:  # a summary counts something for every client
            found.summary()


class Checkpoints:
    """A checkpoint of a simulation; spoilt by a person, its checksum differs, and by an enemy it does not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "run.ckpt"
        self.timeline = timelines.uniform(CLIENTS, 3, 12, seed=4)
        for record in self.simulation():
            if record.step == 8:
                break
        self.whole = self.path.read_bytes()
        found = Checkpoint(self.path, {}).load()
        assert found is not None
        self.step, self.tensors = found[0], {name: value.clone() for name, value in found[1].items()}
        self.identity = dict(self.simulation().checkpoint.identity)  # type: ignore[union-attr]

    def simulation(self) -> Any:
        options: dict[str, Any] = {"evaluate_every": 4, "checkpoint": self.path, "checkpoint_every": 0.0}
        return simulate(mlp(), vectors(), rules.wkafl(0.05), self.timeline, Gradient(2), **options)

    def make(self, draw: Random) -> Path:
        way = draw.random()
        if way < 0.4:
            self.path.write_bytes(spoilt_bytes(draw, self.whole, 2000))
        elif way < 0.45:
            self.path.write_bytes(Canary.pickled(self.folder / "canary", draw.randrange(6)))
        elif way < 0.5:
            torch.save({"x": Canary(self.folder / "canary")}, self.path)
        else:
            self._by_fields(draw)
        return self.path

    def _by_fields(self, draw: Random) -> None:
        about: dict[str, Any] = {"version": 1, "step": self.step, "identity": self.identity}
        tensors = dict(self.tensors)
        if draw.random() < 0.6:
            about = spoilt_fields(draw, about)
        if draw.random() < 0.6:
            name = draw.choice(list(tensors))
            match draw.randrange(3):
                case 0:
                    del tensors[name]
                case 1:
                    tensors[f"{name}x"] = tensors.pop(name)
                case 2:
                    tensors[name] = spoilt_tensor(draw, tensors[name])
        try:
            about["checksum"] = checksum(about, tensors)
        except (TypeError, ValueError, OverflowError):
            about["checksum"] = "0" * 64
        text = json.dumps(about) if draw.random() < 0.9 else draw.choice(BYTES).decode(errors="replace")
        save_file(tensors, self.path, metadata={"kasync": text})

    def read(self, made: Path) -> None:
        identity_of(made)
        Checkpoint(made, self.identity).load()  # most are refused here, before a model is built
        for _ in self.simulation():
            pass
