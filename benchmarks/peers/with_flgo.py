"""FLGo's FedBuff on its virtual clock, every client at work all the time.

Latencies are spread over ten times as many ticks as there are clients: about one delivery falls into a tick, so that
its buffer holds k deliveries when it is emptied, and not all that came in one tick.
"""

import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

import flgo
import flgo.algorithm.fedbuff
import flgo.benchmark.partition
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from pace import Pace
from task import BATCH, LR, K, given

CHANGE = "__getitems__ added to its TaskDataset (newer torch refuses to load from it without)"
FromDatasetPipe.TaskDataset.__getitems__ = lambda self, chosen: [self[i] for i in chosen]

CONFIG = """
import copy
from task import given

pictures, labels = given().inputs, given().labels.tolist()
train_data = list(zip(pictures, labels))
test_data = train_data[:100]


def get_model():
    return copy.deepcopy(given().model)
"""


class FedBuff:
    """FLGo's FedBuff; what it was handed is counted."""

    Client = flgo.algorithm.fedbuff.Client

    class Server(flgo.algorithm.fedbuff.Server):
        arrived = 0

        def package_handler(self, received_packages):
            self.arrived += len(received_packages["__cid"])
            updated = super().package_handler(received_packages)
            if updated:
                pace.done(self.arrived)
                self.arrived = 0
            return updated


task, pace = given(), Pace()
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    sys.path.insert(0, folder)
    Path("config_of_random.py").write_text(CONFIG)
    benchmark = importlib.import_module(flgo.gen_benchmark_from_file("random_pictures", "config_of_random.py"))
    benchmark.visualize = None  # a picture of the partition, minutes for many clients
    partitioner = flgo.benchmark.partition.IIDPartitioner(num_clients=task.clients)
    flgo.gen_task_by_(benchmark, partitioner, "random_task")
    option = {
        "num_rounds": 10**9,
        "num_steps": 1,
        "batch_size": BATCH,
        "learning_rate": LR,
        "proportion": 1.0,
        "train_holdout": 0.0,
        "eval_interval": -1,
        "algo_para": [K / task.clients, 1.0],
        "responsiveness": f"UNI-1-{10 * task.clients}",
        "no_log_console": True,
        "no_tqdm": True,
    }
    runner = flgo.init("random_task", FedBuff, option)
    pace.ready(version=importlib.metadata.version("flgo"), mode="fedbuff, asynchronous, virtual clock", changes=CHANGE)
    runner.run()
