"""The programs that are killed: a simulation, a grid, a tuning, a Flower server, each with small real work."""

from __future__ import annotations

import functools
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from safetensors.numpy import load_file
from small_worlds import CLASSES, CLIENTS, FEATURES, make_rule, mlp, vectors
from torch import nn

from kasync import Gradient, Local, rules, simulate, timelines
from kasync.comparison import tuning
from kasync.data.federated import from_arrays
from kasync.experiments import grid, runner
from kasync.live.flower import KAsync
from kasync.live.journal import read_state

CLOCKED = ("seconds", "steps_per_second", "memory")  # of a summary: not the run's, the machine's
MINE = """
title = "mine"
shows = "that death changes nothing"
command = "kasync reproduce mine.toml"
rules = ["wkafl", "gsgm", "fresh"]
seeds = { quick = 2 }

[[quick]]
name = "tiny"
problem = "digits"
run = { dataset = "synthetic", model = "logistic", clients = 20, k = 4, steps = 60, partition = { kind = "iid" } }
"""


class Simulated:
    """One run with a checkpoint after every piece."""

    may_remain = ""

    def given(self) -> tuple[Any, ...]:
        """Model, data, rule, timeline and work."""
        return (
            mlp(),
            vectors(),
            make_rule("wkafl", mlp(), vectors()),
            timelines.uniform(CLIENTS, 3, 150, seed=4),
            Gradient(4),
        )

    def live(self, folder: Path) -> None:
        place = {"checkpoint": folder / "run.ckpt", "checkpoint_every": 0.0}
        simulation = simulate(*self.given(), evaluate_every=5, **place)
        told = [value for record in simulation for value in (record.step, record.loss, record.accuracy or 0.0)]
        whole = json.dumps(told + simulation.params.tolist())
        (folder / "result").write_text(whole)

    def story(self, folder: Path) -> Any:
        return (folder / "result").read_text()

    def after_death(self, folder: Path, seen: dict[str, Any]) -> list[str]:
        return []


class Dropping(Simulated):
    """The same with dropout, batch norm and an optimiser's state at every client; each life has other threads."""

    def given(self) -> tuple[Any, ...]:
        torch.set_num_threads(1 + os.getpid() % 3)
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, CLASSES)
        )
        draw = np.random.default_rng(0)
        inputs, labels = draw.normal(size=(120, FEATURES)), draw.integers(0, CLASSES, 120)
        parts = list(np.arange(96).reshape(CLIENTS, -1))
        held = from_arrays(inputs[:96], labels[:96], inputs[96:], labels[96:], parts, classes=CLASSES)
        work = Local(4, steps=2, lr=0.01, optimizer=torch.optim.AdamW, keep=True)
        return model, held, rules.fedbuff(0.5), timelines.uniform(CLIENTS, 3, 150, seed=4), work


class Grid:
    """`kasync reproduce` of six runs, with a checkpoint after every piece."""

    may_remain = ""

    def live(self, folder: Path) -> None:
        grid.run = functools.partial(runner.run, checkpoint_every=0.0)  # a grid's own is every 30 seconds
        settings = folder.parent / "mine.toml"
        settings.write_text(MINE)
        self.work(str(settings), folder)

    def work(self, settings: str, folder: Path) -> None:
        outcome = grid.carry_out(grid.plan([settings]), folder)
        assert outcome.failed == (), outcome.failed

    def story(self, folder: Path) -> Any:
        found: dict[str, Any] = {}
        for run in sorted((folder / "runs").iterdir()):
            with np.load(run / "steps.npz", allow_pickle=False) as arrays:
                steps = {name: arrays[name].tobytes() for name in arrays}
            summary = json.loads((run / "summary.json").read_text())
            told = {name: value for name, value in summary.items() if name not in CLOCKED}
            found[run.name] = ((run / "metrics.csv").read_text(), steps, told)
        for listed in sorted((folder / "experiments").glob("*.json")):
            found[listed.name] = json.loads(listed.read_text())["cells"]
        return found

    def after_death(self, folder: Path, seen: dict[str, Any]) -> list[str]:
        """A run that was finished stays as it was."""
        wrong = []
        for path in sorted(folder.glob("runs/*/summary.json")):
            made = path.stat().st_mtime_ns
            if seen.setdefault(str(path), made) != made:
                wrong.append(f"{path} was made again")
        wrong += [f"{name} was lost" for name in seen if not Path(name).exists()]
        return wrong


class Tuning(Grid):
    """`kasync tune` of two rules with three rates each."""

    def work(self, settings: str, folder: Path) -> None:
        tuning.tune(settings, folder, budget=3, rules=["wkafl", "fresh"])

    def story(self, folder: Path) -> Any:
        return super().story(folder), (folder / "tuned" / "mine-quick.toml").read_text()


class Served:
    """A Flower server whose three clients bring numbers that nobody else ever brings.

    The first two parameters are trained (each client pulls towards its own goal); of the others, parameter 2 + n is
    changed by the n-th message that any client ever answered, so that what was used can be read off, once or twice.
    """

    may_remain = ".waiting"
    rounds, room, goals = 60, 20_000, (1.0, 2.0, 4.0)

    def __init__(self, k: int) -> None:
        self.k = k

    def live(self, folder: Path) -> None:
        torch.set_num_threads(1)
        logging.getLogger("flwr").setLevel(logging.ERROR)
        logging.getLogger("kasync.live").addHandler(logging.NullHandler())
        start = ArrayRecord({"w": Array(np.zeros(2 + self.room, np.float32))})
        strategy = KAsync(
            rules.kasync_sgd(1.0),
            k=self.k,
            brings="gradients",
            min_available_nodes=3,
            shortage="wait",
            poll=0.001,
            checkpoint=folder / "state",
            timeline=folder / "timeline.npz",
        )
        clients = FakeGrid((0, 1, 2), functools.partial(self.answer, folder.parent))
        strategy.start(clients, start, num_rounds=self.rounds)

    def answer(self, outside: Path, message: Message) -> list[Message]:
        """The client's side: it lives on when the server dies, so what it counts is kept outside the folder."""
        with open(outside / "answers", "ab", buffering=0) as file:
            file.write(b".")
            number = os.fstat(file.fileno()).st_size - 1
        gradient = np.zeros(2 + self.room, np.float32)
        goal = self.goals[message.metadata.dst_node_id]
        gradient[:2] = 0.25 * (message.content["arrays"]["w"].numpy()[:2] - goal)
        gradient[2 + number] = 1.0
        arrays = ArrayRecord({"w": Array(gradient)})
        return [Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)]

    def story(self, folder: Path) -> Any:
        """With k = 3 all three are used in every step, so the trained numbers are the same to rounding."""
        state, about = load_file(folder / "state"), read_state(folder / "state")
        trained = [round(float(value), 5) for value in state["params"][:2]] if self.k == 3 else None
        return about["updates"], about["tally"]["used"], trained

    def after_death(self, folder: Path, seen: dict[str, Any]) -> list[str]:
        """Nothing that was accepted is lost or counted twice."""
        if not (folder / "state").exists():
            return []
        state = load_file(folder / "state")
        about = read_state(folder / "state")
        updates = about["updates"]
        stamps = -self.k * state["params"][2:]
        used = set(np.flatnonzero(stamps).tolist())
        waiting: list[int] = []
        for file in folder.glob("state.*.waiting"):
            if int(file.name.split(".")[1]) >= updates or file.name.removeprefix("state.") in about["left"]:
                waiting += np.flatnonzero(load_file(file)["row"][2:]).tolist()
        wrong = []
        if not np.isin(np.round(stamps, 4), (0.0, 1.0)).all():
            wrong.append("a delivery was used twice")
        if len(used) != self.k * updates:
            wrong.append(f"{len(used)} deliveries in {updates} updates")
        if len(set(waiting)) != len(waiting) or used & set(waiting):
            wrong.append("a delivery that waits was used or waits twice")
        accepted = used | set(waiting)
        if lost := seen.get("accepted", set()) - accepted:
            wrong.append(f"{len(lost)} accepted deliveries were lost")
        seen["accepted"] = accepted
        return wrong


PROGRAMS = {
    "simulate": Simulated,
    "simulate, dropout": Dropping,
    "reproduce": Grid,
    "tune": Tuning,
    "flower, all": functools.partial(Served, 3),
    "flower, two of three": functools.partial(Served, 2),
}
