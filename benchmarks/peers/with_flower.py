"""Flower's simulation: FedAvg in synchronous rounds of k clients, one actor for each thread.

It has no asynchronous strategy; a round of k clients is the nearest to k deliveries. Model and data stay in the actor.
"""

import logging
import os

import flwr
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from pace import Pace
from task import BATCH, LR, K, given
from torch.nn.functional import cross_entropy

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message, context):
    """One step of SGD on a batch of this client's samples."""
    task = given()
    model = task.model
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    part = task.slice_of(int(context.node_config["partition-id"]))
    chosen = part.start + torch.randperm(part.stop - part.start)[:BATCH]
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    optimizer.zero_grad()
    loss = cross_entropy(model(task.inputs[chosen]), task.labels[chosen])
    loss.backward()
    optimizer.step()
    told = MetricRecord({"num-examples": BATCH, "train_loss": loss.item()})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told})
    return FlowerMessage(content=content, reply_to=message)


class Counted(FedAvg):
    """Flower's FedAvg; every round is counted."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        returned = super().aggregate_train(server_round, replies)
        pace.done(sum(not reply.has_error() for reply in replies))
        return returned


@server_app.main()
def main(grid, context):
    task = given()
    strategy = Counted(fraction_train=K / task.clients, fraction_evaluate=0.0, min_train_nodes=K, min_available_nodes=K)
    pace.ready(version=flwr.__version__, mode=f"simulation, FedAvg, synchronous rounds of {K}, {actors} actor(s)")
    strategy.start(grid=grid, initial_arrays=ArrayRecord(task.model.state_dict()), num_rounds=10**9)


if __name__ == "__main__":
    pace, actors = Pace(), int(os.environ["PEERS_ACTORS"])
    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": actors}}
    run_simulation(server_app, client_app, num_supernodes=given().clients, backend_config=resources)
