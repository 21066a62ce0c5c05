"""What does a bare PyTorch loop do: one client after the other, one step of SGD on a batch of its own, no server."""

import torch
from pace import Pace
from task import BATCH, HELD, LR, K, given
from torch.nn.functional import cross_entropy

task, pace = given(), Pace()
optimizer = torch.optim.SGD(task.model.parameters(), lr=LR)
pace.ready(version=torch.__version__, mode="forward, backward and SGD step, nothing else")
client = 0
while True:
    for _ in range(K):
        part = task.slice_of(client)
        chosen = torch.randperm(HELD)[:BATCH] + part.start
        optimizer.zero_grad()
        cross_entropy(task.model(task.inputs[chosen]), task.labels[chosen]).backward()
        optimizer.step()
        client = (client + 1) % task.clients
    pace.done(K)
