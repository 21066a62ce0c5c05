"""Three clients that outlive their Ray server, and a server that finds them again."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from safetensors.numpy import load_file

from kasync import rules
from kasync.live.deliveries import Delivery
from kasync.live.journal import read_state
from kasync.live.ray import Actor, RayFederation

ROUNDS, GOALS, SPACE = 40, (1.0, 2.0, 4.0), "killing"
SIZE = 2 + len(GOALS) * (ROUNDS + 1)


@dataclass(frozen=True)
class Marking:
    """Pulls the first two parameters towards its goal, and marks the place of its visit among the others."""

    number: int

    def __call__(self, params: torch.Tensor, visit: int) -> Delivery:
        gradient = torch.zeros(SIZE)
        gradient[:2] = 0.25 * (params[:2] - GOALS[self.number])
        gradient[2 + len(GOALS) * visit + self.number] = 1.0
        return Delivery(gradient, 1.0, 1.0)


class Kept:
    """Actors that were there before this process, in the place of WarmClients."""

    def __init__(self) -> None:
        self.actors = [ray.get_actor(f"client-{number}") for number in range(len(GOALS))]

    def __len__(self) -> int:
        return len(self.actors)


class Rayed:
    """A Ray server with k = 3 = clients, so that the trained numbers are the same to rounding."""

    may_remain = ""

    def live(self, folder: Path) -> None:
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        ray.init(address=os.environ["KASYNC_RAY"], namespace=SPACE, **options)
        clients: Any = Kept()
        federation = RayFederation(
            rules.kasync_sgd(1.0), torch.zeros(SIZE), len(GOALS), clients, checkpoint=folder / "state", shortage="wait"
        )
        for _ in federation.run(ROUNDS):
            pass

    def story(self, folder: Path) -> Any:
        state, about = load_file(folder / "state"), read_state(folder / "state")
        return about["updates"], about["tally"]["used"], np.round(state["params"], 5).tolist()

    def after_death(self, folder: Path, seen: dict[str, Any]) -> list[str]:
        """Of every client, each visit so far was used exactly once."""
        if not (folder / "state").exists():
            return []
        state = load_file(folder / "state")
        updates = read_state(folder / "state")["updates"]
        marks = -len(GOALS) * state["params"][2:]
        wanted = np.zeros_like(marks)
        wanted[: len(GOALS) * updates] = 1.0
        wrong = [] if np.allclose(marks, wanted) else ["a delivery was lost or used twice"]
        wrong += ["updates were lost"] if updates < seen.get("updates", 0) else []
        seen["updates"] = updates
        return wrong


def keep() -> None:
    """Start Ray and the clients, tell where, and hold them until the input ends."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False, namespace=SPACE)
    kind: Any = ray.remote(Actor)
    actors = [
        kind.options(num_cpus=0, name=f"client-{number}").remote(Marking(number), number, None, 0)
        for number in range(len(GOALS))
    ]
    ray.get([actor.ready.remote() for actor in actors])
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from ray_clients import keep as kept  # under its own name, so that an actor can import what it is sent

    kept()
