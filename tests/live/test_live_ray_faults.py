"""A Ray cluster of three nodes through a lost node, dead actors and a killed server: rows belong to their actors.

`make soak` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kasync import LocalSGD, models, rules, simulate
from kasync.data import federate, load, partition
from kasync.live.clients import clients_of
from kasync.live.deliveries import Delivery
from kasync.live.ray import RayFederation, WarmClients
from kasync.work.loop import flat_parameters

pytestmark = pytest.mark.long
ray = pytest.importorskip("ray")
CLIENTS, K = 6, 3


@dataclass(frozen=True)
class Told:
    """A client of the simulator that writes down where it runs, and dies when a file says so."""

    client: object
    folder: Path

    @property
    def number(self) -> int:
        return self.client.number

    def __call__(self, params: torch.Tensor, visit: int) -> Delivery:
        (self.folder / f"place {self.number}").write_text(f"{os.getpid()} {ray.get_runtime_context().get_node_id()}")
        death = self.folder / f"die {self.number}"
        if death.exists():
            death.unlink()
            os._exit(1)
        time.sleep(0.05 * (1 + 4 * (self.number == 0)))
        return self.client(params, visit)


def world():
    digits = load("digits")
    data = federate(digits, partition.labels(5, size=(60, 90))(digits, CLIENTS))
    torch.manual_seed(0)
    return models.mlp(784, 8), data, LocalSGD(3, 0.1, 8)


@pytest.fixture
def cluster() -> Iterator[object]:
    from ray.cluster_utils import Cluster

    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.extra = [made.add_node(num_cpus=2) for _ in range(2)]
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": paths}})  # fmt: skip
    yield made
    ray.shutdown()
    made.shutdown()


def places(folder: Path) -> dict[int, tuple[str, str]]:
    """Of each client that has worked, its process and its node."""
    found = {}
    for path in folder.glob("place *"):
        words = path.read_text().split()
        if len(words) == 2:
            found[int(path.name.split()[1])] = (words[0], words[1])
    return found


def test_after_a_lost_node_dead_actors_and_a_resume_the_model_is_the_replay_of_its_timeline(cluster, tmp_path):
    model, data, work = world()
    start = flat_parameters(model).clone()
    clients = [Told(client, tmp_path) for client in clients_of(model, data, work, seed=5)]
    rule = rules.ca2fl(0.5, clients=CLIENTS)
    settings = {"checkpoint": tmp_path / "state", "checkpoint_every": 3, "shortage": "wait", "rest": 0.1}
    with WarmClients(clients) as warm:
        first = RayFederation(rule, start, K, warm, **settings)
        running = first.run(10_000)
        for update in running:
            if update.number == 6:
                (tmp_path / "die 1").touch()
            if update.number >= 10 and len(places(tmp_path)) == CLIENTS:
                break
        before = places(tmp_path)
        lost = next(node for node in cluster.extra if any(where == node.node_id for _, where in before.values()))
        gone = [number for number, (_, where) in before.items() if where == lost.node_id]
        cluster.remove_node(lost, allow_graceful=False)
        for update in running:  # Ray restores the actors elsewhere
            moved = places(tmp_path)
            back = [n for n in gone if moved[n][1] != lost.node_id and moved[n][0] != before[n][0]]
            if update.number >= 20 and len(back) == len(gone):
                break
            assert update.number < 2000
        tally = first.federation.tally
        assert tally["failed"] >= 1 + len(gone)
        upto = first.federation.updates
        first.federation.journal = None  # no last word: as if the server had been killed between two saves
        del running, first
    again_clients = [Told(client, tmp_path) for client in clients_of(model, data, work, seed=5)]
    with WarmClients(again_clients) as warm:
        again = RayFederation(rule, start, K, warm, **settings)
        assert again.federation.updates <= upto
        updates = list(again.run(upto + 10))
        assert updates[-1].number == upto + 10
        had, params = again.timeline(), again.params.clone()
        table = next(value for name, value in again.federation.server.memory.items() if value.dim() == 2)
    assert had.steps == upto + 10
    pairs = [pair for step in zip(had.clients, had.versions, strict=True) for pair in zip(*step, strict=True)]
    assert len(pairs) == len(set(pairs)) == K * had.steps
    replay = simulate(model, data, rule, replace(had, population=CLIENTS), work, seed=5)
    assert len(list(replay)) == had.steps
    torch.testing.assert_close(params, replay.params, rtol=1e-4, atol=1e-5)
    assert len({tuple(np.round(row.numpy(), 6)) for row in table[:CLIENTS]}) == CLIENTS


def test_a_server_that_is_killed_goes_on_with_the_same_numbers(tmp_path):
    program = textwrap.dedent(f"""
        import sys, torch
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_live_ray_faults import K, clients_of, flat_parameters, rules, world, RayFederation, WarmClients
        model, data, work = world()
        with WarmClients(clients_of(model, data, work, seed=5)) as warm:
            run = RayFederation(rules.fedbuff(0.5), flat_parameters(model), K, warm, checkpoint=sys.argv[1],
                                shortage="wait")
            for update in run.run(int(sys.argv[2])):
                print(update.number, flush=True)
    """)
    command = [sys.executable, "-c", program, str(tmp_path / "state")]
    for _ in range(3):
        process = subprocess.Popen([*command, "100000"], stdout=subprocess.PIPE, text=True)
        seen = [process.stdout.readline() for _ in range(8)]
        process.kill()
        process.wait()
        assert seen[-1]
    last = int(seen[-1])
    subprocess.run([*command, str(last + 6)], check=True, capture_output=True)
    model, data, work = world()
    with WarmClients(clients_of(model, data, work, seed=5)) as warm:
        run = RayFederation(
            rules.fedbuff(0.5), flat_parameters(model), K, warm, checkpoint=tmp_path / "state", shortage="wait"
        )
        had, params = run.timeline(), run.params
    replay = simulate(model, data, rules.fedbuff(0.5), had, work, seed=5)
    assert len(list(replay)) == had.steps >= last + 6
    torch.testing.assert_close(params, replay.params, rtol=1e-4, atol=1e-5)
