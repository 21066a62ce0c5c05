"""A federation of three hosts, 50 ms apart and losing 1% of the packets, through everything that can happen to it.

A partition of a minute, a host killed, the SuperLink and the ServerApp killed, and a client that floods the server
with useless replies, in one run. Nothing may be lost or doubled, and the simulator, given the timeline and the same
clients, must end with the same model. `make soak` runs it; it takes a quarter of an hour and root.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace

import hosts
import numpy as np
import pytest
import torch
from loopback import Loopback, Processes, wait_for
from safetensors.torch import load_file

from kasync import LocalSGD, models, rules, simulate, timelines
from kasync.data import federate, load, partition
from kasync.live.journal import read_state

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hosts.possible(), reason="needs root, /dev/net/tun and ip netns"),
]
HONEST, K, PATIENCE = 4, 2, 1500
CLIENT = """
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from digits_app import task

app = ClientApp()
torch.set_num_threads(1)

@app.train()
def train(message: Message, context: Context) -> Message:
    number, arrays = int(context.node_config["partition-id"]), message.content["arrays"].to_torch_state_dict()
    client = task.clients()[number]
    params = torch.cat([value.flatten() for value in arrays.values()])
    row = client(params, int(message.content["config"]["visit"])).values
    if "flood" in context.node_config:
        row = row * float("nan")
    pieces = row.split([value.numel() for value in arrays.values()])
    brought = {name: piece.view_as(arrays[name]) for name, piece in zip(arrays, pieces)}
    metrics = MetricRecord({"number": number})
    return Message(RecordDict({"arrays": ArrayRecord(brought), "metrics": metrics}), reply_to=message)
"""
SERVER = '''
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from digits_app import task
from kasync import rules
from kasync.live.flower import KAsync

app = ServerApp()

class Counted(KAsync):
    """Tells every client how many of its deliveries were accepted, from which it knows which samples to draw."""

    def configure_dispatch(self, server_round, content, node_id):
        client = self.run.federation.roster.by_node[node_id]
        config = ConfigRecord({**content["config"], "visit": client.used + client.waiting})
        return RecordDict({**content, "config": config})

@app.main()
def main(grid: Grid, context: Context) -> None:
    run = context.run_config
    strategy = Counted(
        rules.fedbuff(1.0), k=2, brings="gradients", weighted_by_key=None, shortage="wait", offences=None, rest=1.0,
        longest_rest=5.0, checkpoint=str(run["checkpoint"]), timeline=str(run["timeline"]), min_available_nodes=3,
    )
    start = ArrayRecord(task.network().state_dict())
    strategy.start(grid, start, num_rounds=int(run["num-server-rounds"]), timeout=600)
    print("final accuracy: the end", flush=True)
'''
TASK = """
import torch
from kasync import LocalSGD, models
from kasync.data import federate, load, partition
from kasync.live.clients import clients_of

def network():
    torch.manual_seed(0)
    return models.mlp(784, 16)

def clients():
    digits = load("digits")
    data = federate(digits, partition.labels(6, size=(200, 300))(digits, 4))
    return clients_of(network(), data, LocalSGD(10, 0.1, 16), seed=5)
"""


def test_through_partition_deaths_and_a_flood_the_model_is_the_replay_of_its_own_timeline(tmp_path):
    with hosts.Network(3, delay=0.025, loss=0.01) as network, Processes(tmp_path) as processes:  # 50 ms there and back
        home, second, third = network.names
        world = Loopback(
            processes, HONEST + 1, address=network.addresses[0], host=home, database=str(tmp_path / "superlink.db")
        )
        for name, text in (("client_app", CLIENT), ("server_app", SERVER), ("task", TASK)):
            (world.app / "digits_app" / f"{name}.py").write_text(text)
        ids = {number: int(world.register(number)) for number in range(HONEST + 1)}
        places = {0: second, 1: second, 2: third, 3: third, HONEST: second}

        def start_node(number: int):
            flood = " flood=true" if number == HONEST else ""
            config = f"partition-id={number % HONEST} num-partitions={HONEST}{flood}"
            return world.start_node(number, config, host=places[number])

        nodes = {number: start_node(number) for number in places}
        settings = f"checkpoint='{tmp_path / 'state'}' timeline='{tmp_path / 'timeline.npz'}' num-server-rounds="

        def seen(run: str, more: int) -> None:
            upto = world.updates(run) + more
            wait_for(f"update {upto} of {run}", lambda: world.updates(run) >= upto, PATIENCE)

        world.start_run("first", f"{settings}1000")
        seen("first", 2)

        network.cut(1)  # a minute without the second host
        time.sleep(60)
        network.join(1)
        seen("first", 1)

        for number in (2, 3):  # the third host dies and comes back
            processes.kill(processes.family(nodes[number]))
        seen("first", 1)
        for number in (2, 3):
            nodes[number] = start_node(number)

        processes.kill(processes.named("flwr-serverapp"))
        world.start_run("second", f"{settings}1000")
        seen("second", 2)

        processes.kill(processes.family(world.superlink))  # and the ServerApp with it
        world.superlink = world.start_superlink()
        wait_for("the SuperLink's return", world._answers, PATIENCE)
        made = read_state(tmp_path / "state")["updates"]
        world.start_run("third", f"{settings}{made + 4}")
        wait_for("the end", lambda: "final accuracy" in processes.said("third"), PATIENCE)
        said = "".join(processes.said(run) for run in ("first", "second", "third"))

    state = read_state(tmp_path / "state")
    steps, tally = state["step_log"], state["tally"]
    assert state["updates"] == made + 4
    pairs = [pair for step in zip(steps["clients"], steps["versions"], strict=True) for pair in zip(*step, strict=True)]
    assert len(pairs) == len(set(pairs)) == tally["used"] == K * state["updates"]
    assert tally["accepted"] == tally["used"] + len(state["left"])
    assert tally["refused"] >= 3
    assert len(re.findall("not finite", said)) >= tally["refused"]

    number_of = {node: number for number, node in ids.items()}
    clients = [number_of[int(client["node"])] for client in state["clients"]]  # our number -> whose data
    had = timelines.load(tmp_path / "timeline.npz")
    assert had.steps == state["updates"]
    place = {client["number"]: clients[row] for row, client in enumerate(state["clients"])}
    used = np.vectorize(place.get)(had.clients)
    assert HONEST not in used  # nothing of the one that floods
    assert len(set(used.ravel())) == HONEST
    digits = load("digits")
    data = federate(digits, partition.labels(6, size=(200, 300))(digits, HONEST))
    torch.manual_seed(0)
    timeline = replace(had, clients=used, population=HONEST)
    replay = simulate(models.mlp(784, 16), data, rules.fedbuff(1.0), timeline, LocalSGD(10, 0.1, 16), seed=5)
    assert len(list(replay)) == state["updates"]
    torch.testing.assert_close(load_file(tmp_path / "state")["params"], replay.params, rtol=1e-4, atol=1e-5)
