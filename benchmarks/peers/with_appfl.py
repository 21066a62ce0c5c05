"""APPFL's virtual-time AsyncSimDriver: FedBuff, every client in flight, each with a speed of its own.

Its memory option, on by default, collects garbage several times for every update; `PEERS_MEMORY=1` leaves it on, with
k clients in flight, for the first work of all of them would take minutes.
Logging is off, and the time of a step is fixed, so that the order of arrivals does not depend on this machine.
"""

import importlib.metadata
import logging
import os
import tempfile
from pathlib import Path

import numpy as np
from pace import Pace
from task import BATCH, LR, K, given, lend_torchvision

task, pace = given(), Pace()
changes = lend_torchvision()
from appfl.agent import SimClientAgent, SimServerAgent  # noqa: E402
from appfl.vsim import AsyncSimDriver, ClientProfile  # noqa: E402

NETWORK = """
import copy
from task import given


def network():
    return copy.deepcopy(given().model)


def accuracy(labels, outputs):
    return float((outputs.argmax(1) == labels).mean())
"""


class Server(SimServerAgent):
    """APPFL's server; every delivery is counted."""

    def global_update(self, *args, **kwargs):
        returned = super().global_update(*args, **kwargs)
        pace.done(1)
        return returned


spare = os.environ.get("PEERS_MEMORY") == "1"
folder = Path(tempfile.mkdtemp(prefix="peers-"))
(folder / "network.py").write_text(NETWORK)
logging.disable(logging.INFO)
model = {"model_path": str(folder / "network.py"), "model_name": "network"}
training = {
    "trainer": "VanillaTrainer",
    "mode": "step",
    "num_local_steps": 1,
    "optim": "SGD",
    "optim_args": {"lr": LR},
    "loss_fn": "CrossEntropyLoss",
    "metric_path": str(folder / "network.py"),
    "metric_name": "accuracy",
    "train_batch_size": BATCH,
    "device": "cpu",
    "logging_output_filename": "",
    "optimize_memory": spare,
}
serving = {
    "device": "cpu",
    "num_clients": task.clients,
    "num_global_epochs": 10**9,
    "scheduler": "AsyncScheduler",
    "scheduler_kwargs": {"optimize_memory": spare},
    "aggregator": "FedBuffAggregator",
    "aggregator_kwargs": {
        "K": K,
        "alpha": 1.0,
        "staleness_fn": "polynomial",
        "staleness_fn_kwargs": {"a": 0.5},
        "optimize_memory": spare,
    },
    "logging_output_dirname": str(folder),
    "optimize_memory": spare,
}
server = Server({"client_configs": {"model_configs": model, "train_configs": training}, "server_configs": serving})
names = [f"client{number}" for number in range(task.clients)]
settings = {"model_configs": model, "train_configs": training, "optimize_memory": spare}
clients = [SimClientAgent(settings, client_id=name, client_dataset=task.dataset(i)) for i, name in enumerate(names)]
slowness = np.random.default_rng(0).exponential(size=task.clients)
profiles = {name: ClientProfile(compute_factor=1.0 + slow) for name, slow in zip(names, slowness, strict=True)}
driver = AsyncSimDriver(
    server,
    clients,
    profiles,
    K if spare else task.clients,
    logging.getLogger("peers"),
    base_step_time=1.0,
    eval_every=0,
)
memory = "on (default)" if spare else "off"
pace.ready(
    version=importlib.metadata.version("appfl"),
    mode=f"AsyncSimDriver, FedBuffAggregator, asynchronous, virtual clock, memory option {memory}, logging off",
    changes=changes,
)
driver.run()
