"""The ClientApp of flower_race.py: local SGD on a small network, then sleep until the work has taken its seconds.

numpy alone: in a deployment every message starts a process, and what that takes is nobody's work.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

client_app = ClientApp()


def trained(arrays: ArrayRecord, config: ConfigRecord, client: int) -> tuple[ArrayRecord, MetricRecord]:
    """Some steps of SGD on the samples of this client; the network has one hidden layer of ReLU."""
    samples = np.load(Path(config["folder"]) / f"samples-{config['seed']}-{client}.npz")
    inputs, labels = samples["inputs"], samples["labels"]  # [N, 784], [N]
    names = list(arrays)
    into, shift, out, bias = (arrays[name].numpy().copy() for name in names)  # [H, 784], [H], [10, H], [10]
    size, rate = int(config["batch"]), np.float32(config["rate"])
    for batch in np.random.default_rng().integers(len(labels), size=(int(config["steps"]), size)):
        seen = inputs[batch]  # [B, 784]
        hidden = np.maximum(seen @ into.T + shift, 0)  # [B, H]
        scores = hidden @ out.T + bias  # [B, 10]
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        loss = float(-np.log(chances[np.arange(size), labels[batch]] + 1e-12).mean())
        error = chances  # [B, 10] gradient of the mean loss
        error[np.arange(size), labels[batch]] -= 1
        error /= size
        back = (error @ out) * (hidden > 0)  # [B, H]
        gradients = (back.T @ seen, back.sum(0), error.T @ hidden, error.sum(0))
        for param, gradient in zip((into, shift, out, bias), gradients, strict=True):
            param -= rate * gradient
    values = dict(zip(names, (into, shift, out, bias), strict=True))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    return ArrayRecord({name: Array(value) for name, value in values.items()}), metrics


@client_app.train()
def train(message: Message, context: Context) -> Message:
    began = time.monotonic()
    config, client = message.content["config"], int(context.node_config["partition-id"])
    arrays, metrics = trained(message.content["arrays"], config, client)
    ends = began + float(config["seconds"]) * (1.0 if client < int(config["fast"]) else float(config["factor"]))
    over = Path(config["folder"]) / f"over-{config['race']}"
    while time.monotonic() < ends and not over.exists():  # nobody waits for work of a race that is over
        time.sleep(min(0.1, max(ends - time.monotonic(), 0.0)))
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client_app.evaluate()
def warm(message: Message, context: Context) -> Message:
    trained(message.content["arrays"], message.content["config"], int(context.node_config["partition-id"]))
    time.sleep(2.0)  # so that no process of the simulation does it for two
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
