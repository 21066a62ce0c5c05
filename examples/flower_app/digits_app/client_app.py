"""The app's clients: any ClientApp that returns trained arrays would do."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app import task

app = ClientApp()
torch.set_num_threads(1)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Some epochs on the samples of this client."""
    run, node = context.run_config, context.node_config
    model = task.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = task.samples(int(node["partition-id"]), int(node["num-partitions"]), int(run["labels-per-client"]))
    loss = task.train(model, data, int(run["local-epochs"]), float(run["lr"]), int(run["batch-size"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """How well does the model do here?"""
    model = task.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({**task.test(model), "num-examples": 1000})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
