"""kasync's simulator: FedBuff, every client at work all the time, exponential durations."""

import itertools

import numpy as np
import torch
from pace import Pace
from task import BATCH, HELD, K, given

import kasync
from kasync import rules, timelines
from kasync.data.federated import FederatedData, Samples

STEPS = 20_000

task, pace = given(), Pace()
pictures = Samples((task.inputs * 255).to(torch.uint8).numpy(), task.labels.numpy())
held = np.concatenate([np.arange(HELD) + task.slice_of(client).start for client in range(task.clients)])
data = FederatedData(pictures, pictures, held, np.arange(task.clients + 1) * HELD, 10)
pace.ready(version=kasync.__version__, mode=f"FedBuff, asynchronous, virtual clock, {torch.get_num_threads()} threads")
for seed in itertools.count():
    timeline = timelines.clock(task.clients, K, STEPS, timelines.durations.exponential(1.0), seed=seed)
    work = kasync.Gradient(BATCH)
    run = kasync.simulate(task.model, data, rules.fedbuff(lr=0.01), timeline, work, seed=seed, evaluate_every=STEPS)
    counted = 0
    for record in run:
        if record.step == run.done:  # the simulator computes several steps at a time: stop only where it stops
            pace.done(K * (run.done - counted))
            counted = run.done
