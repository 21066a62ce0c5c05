"""My data, my model and my rule, compared with published rules in Python and, by name, on the command line.

python examples/mine.py
kasync compare --rules examples/mine.py:fair,fedbuff --dataset examples/mine.py:quadrants --model examples/mine.py:Gated
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import kasync
from kasync import data, parts, rules, timelines


def quadrants(clients: int = 30, seed: int = 0) -> data.FederatedData:
    """Points on a plane; the class is the sign of x y, and clients have more of one class than of the other."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(1300, 2)).astype(np.float32)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).astype(int)
    share = data.partition.dirichlet(alpha=1.0).over(labels, clients, seed)
    return data.from_arrays(inputs, labels, parts=share, test_fraction=0.2, name="quadrants")


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.out = nn.Linear(2, 16), nn.Linear(2, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.value(x) * torch.tanh(self.gate(x)))


@dataclass(frozen=True)
class FavourTheStruggling(kasync.Part):
    """weights ~ exp(favour * loss_i)"""

    favour: float

    def __call__(self, step: kasync.Step) -> kasync.Step:
        excess = step.losses - step.largest(step.losses)
        return step.weighed(step.averaged((self.favour * excess).exp()))


def fair(lr: float, favour: float = 1.0) -> kasync.Rule:
    return kasync.Rule("fair", lr, (parts.ClipNorms(10.0), FavourTheStruggling(favour)))


if __name__ == "__main__":
    chosen = {"fair": fair(0.5), "FedBuff": rules.fedbuff(0.5), "WKAFL": rules.wkafl(0.5)}
    found = kasync.compare(Gated, quadrants(), chosen, lambda seed: timelines.uniform(30, 5, 150, seed), seeds=5)
    print(found.table.round(3).to_string())
    print(found.verdict)
