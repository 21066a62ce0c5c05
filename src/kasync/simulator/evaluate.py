"""How good is a model on the test set?"""

from __future__ import annotations

import torch
from torch import Tensor

from kasync.data.federated import scaled
from kasync.work.clients import Clients

CHUNK = {"cpu": 250, "cuda": 5000}  # samples at once


def evaluate(clients: Clients, params: Tensor, classes: int) -> Tensor:
    """[2] accuracy (NaN for regression) and mean loss on the whole test set, in float64."""
    inputs, labels = clients.data.test_inputs, clients.data.test_labels
    size = CHUNK.get(params.device.type, 1000)

    def part(start: int) -> Tensor:
        with torch.no_grad():
            outputs = clients.model.forward(params, scaled(inputs[start : start + size], clients.scale))
            wanted = labels[start : start + size]
            right = (
                (outputs.argmax(1) == wanted).double().sum() if classes else outputs.new_full((), torch.nan).double()
            )
            return torch.stack([right, clients.loss(outputs, wanted).double().sum()])

    starts = range(0, len(labels), size)
    parts = clients.pool.map(part, starts) if clients.pool is not None else map(part, starts)
    return torch.stack(list(parts)).sum(0) / len(labels)
