"""How good is a model on the test set?"""

from __future__ import annotations

import torch
from torch import Tensor

from kasync.data.federated import scaled
from kasync.work.clients import Clients
from kasync.work.stacks import StackedChain

CHUNK = {"cpu": 250, "cuda": 5000}  # samples at once
STACKED = 20_000  # samples at once for a stack of runs, all runs' together


def evaluate(clients: Clients, params: Tensor, classes: int) -> Tensor:
    """[2] accuracy (NaN for regression) and mean loss on the whole test set, in float64."""
    inputs, labels = clients.data.test_inputs, clients.data.test_labels
    size = CHUNK.get(params.device.type, 1000)

    def part(start: int) -> Tensor:
        with torch.no_grad():
            outputs = clients.model.forward(params, scaled(inputs[start : start + size], clients.scale))
            return _scores(clients, outputs, labels[start : start + size], classes).sum(0)

    starts = range(0, len(labels), size)
    parts = clients.pool.map(part, starts) if clients.pool is not None else map(part, starts)
    return torch.stack(list(parts)).sum(0) / len(labels)


def evaluate_stack(machine: StackedChain, clients: Clients, params: Tensor, classes: int) -> Tensor:
    """[R, 2] the same for R sets of parameters [R, D] on one test set, which is read once for all of them."""
    inputs, labels = clients.data.test_inputs, clients.data.test_labels
    runs = len(params)
    size = max(1, STACKED // runs)
    total = torch.zeros(runs, 2, dtype=torch.float64, device=params.device)
    for start in range(0, len(labels), size):
        wanted = labels[start : start + size].repeat(runs)
        outputs = machine.outputs(params, scaled(inputs[start : start + size], clients.scale))
        total += _scores(clients, outputs, wanted, classes).view(runs, -1, 2).sum(1)
    return total / len(labels)


def _scores(clients: Clients, outputs: Tensor, wanted: Tensor, classes: int) -> Tensor:
    """[N, 2] whether each output is right (NaN for regression), and its loss."""
    losses = clients.loss(outputs, wanted).double()
    right = (outputs.argmax(1) == wanted).double() if classes else torch.full_like(losses, torch.nan)
    return torch.stack([right, losses], dim=1)
