"""My own model and my own data: any nn.Module, any arrays, and whose each row is.

python examples/own_model_and_data.py

Forty weather stations measure four things each; the network learns to predict a fifth. No station shows its rows.
"""

import numpy as np
import torch
from torch import nn

import kasync
from kasync import data, rules, timelines


class Forecast(nn.Module):
    """Two dense layers with a short cut."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.short = nn.Linear(4, 32), nn.Linear(32, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [N, 4] -> [N, 1]
        return self.outer(torch.tanh(self.inner(x))) + self.short(x)


rng = np.random.default_rng(0)
STATIONS, EACH = 40, 30
climate = rng.normal(size=(STATIONS, 4))  # every station has a weather of its own: the data are not IID
inputs = np.repeat(climate, EACH, axis=0) + rng.normal(size=(STATIONS * EACH, 4))  # [N, 4]
targets = np.sin(inputs[:, 0]) + 0.5 * inputs[:, 1] * inputs[:, 2] + 0.1 * rng.normal(size=len(inputs))  # [N]
names = [f"station {s}" for s in range(STATIONS) for _ in range(EACH)]  # whose each row is

stations = data.from_arrays(inputs, targets, owners=names, test_fraction=1 / 6, name="weather")
timeline = timelines.clock(STATIONS, k=4, steps=400, durations=timelines.durations.pareto(least=1.0, shape=2.0))
work = kasync.LocalSGD(steps=3, lr=0.05, batch_size=8)  # three local steps; the difference is delivered
torch.manual_seed(0)
model = Forecast()

run = kasync.simulate(model, stations, rules.fedbuff(lr=1.0), timeline, work, evaluate_every=100)
for record in run:
    if record.test_loss is not None:
        print(f"step {record.step:4}   squared error on the held-out rows {record.test_loss:.3f}")
run.load_into(model)  # from here on it is an ordinary PyTorch model
print("a forecast:", round(model(torch.zeros(1, 4)).item(), 3))
