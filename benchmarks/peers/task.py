"""The task that everybody trains: LeNet, random pictures of CIFAR-10's shape, and who holds which.

Needs torch only: it is read in environments in which kasync is not installed.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

K, BATCH, LR, HELD = 10, 8, 0.01, 20  # HELD: samples of each client


@dataclass(frozen=True)
class Task:
    """One federated problem."""

    model: nn.Module
    inputs: Tensor  # [clients * HELD, 3, 32, 32] float32 between 0 and 1
    labels: Tensor  # [clients * HELD]
    clients: int

    def slice_of(self, client: int) -> slice:
        """Where a client's samples lie."""
        return slice(client * HELD, (client + 1) * HELD)

    def dataset(self, client: int) -> torch.utils.data.TensorDataset:
        part = self.slice_of(client)
        return torch.utils.data.TensorDataset(self.inputs[part], self.labels[part])


@cache
def given() -> Task:
    """The task that peers.py wrote for this process, on the number of threads it asked for."""
    torch.set_num_threads(int(os.environ["PEERS_THREADS"]))
    return Task(**torch.load(os.environ["PEERS_TASK"], weights_only=False, mmap=True))


def lend_torchvision() -> str:
    """Make `import torchvision` work where its compiled half does not fit the torch beside it; says what was done.

    Seen where torch is a CPU build and torchvision one for CUDA. Nothing here looks at a picture through it.
    """
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            lent.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
        return "torchvision's operators nms and qnms declared (its compiled half is for another build of torch)"
    return ""


lent = torch.library.Library("torchvision", "FRAGMENT")
