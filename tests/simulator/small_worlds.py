"""Small data, models and rules for the tests of the simulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from kasync import Gradient, models, rules, server_gradient, simulate
from kasync.data.federated import FederatedData, from_arrays

CLIENTS = 12
FEATURES = 6
CLASSES = 4


def vectors(clients: int = CLIENTS, classes: int = CLASSES, samples: int = 150, seed: int = 0) -> FederatedData:
    """float32 [samples, 6]; clients hold 1 to 12 samples, of two labels each as far as it goes."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, samples)
    centres = draw.normal(size=(classes, FEATURES))
    inputs = (centres[labels] + draw.normal(size=(samples, FEATURES))).astype(np.float32)
    targets = labels if classes > 1 else (inputs @ draw.normal(size=FEATURES)).astype(np.float32)
    return from_arrays(inputs[30:], targets[30:], inputs[:30], targets[:30], shares(draw, clients, samples - 30, 12))


def pictures(clients: int = 6, seed: int = 0, shape: tuple[int, ...] = (3, 32, 32)) -> FederatedData:
    """uint8 [50, *shape] of noise; clients hold 1 to 6 samples."""
    draw = np.random.default_rng(seed)
    inputs = draw.integers(0, 256, (50, *shape)).astype(np.uint8)
    labels = draw.integers(0, 10, 50)
    return from_arrays(
        inputs[10:], labels[10:], inputs[:10], labels[:10], shares(draw, clients, 40, 6), classes=10, scale="symmetric"
    )


def shares(draw: np.random.Generator, clients: int, samples: int, most: int) -> list[np.ndarray]:
    """For each client 1 to `most` different samples; client 0 has one only."""
    sizes = [1, *draw.integers(1, most + 1, clients - 1).tolist()]
    return [draw.choice(samples, count, replace=False) for count in sizes]


def mlp(outputs: int = CLASSES, seed: int = 1) -> nn.Sequential:
    return models.mlp(FEATURES, (8,), outputs, seed)


class Residual(nn.Module):
    """A model that no chain of known layers is: a residual block, group norm, tanh."""

    def __init__(self, features: int = FEATURES, outputs: int = CLASSES, seed: int = 0) -> None:
        super().__init__()
        self.inner = nn.Linear(features, features)
        self.norm = nn.GroupNorm(2, features)
        self.outer = nn.Linear(features, outputs)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x + torch.tanh(self.norm(self.inner(x))))


@dataclass(frozen=True)
class Own:
    """A setting that stands for the server's own gradient, which two simulators compute differently."""

    count: int = 12


SETTINGS: dict[str, dict] = {  # learning rates are small, so that float32 differences stay differences of rounding
    "wkafl": {"lr": 0.05, "max_norm": 1.0, "threshold": 0.2, "loss_threshold": 1.2, "ratio": 1.0},
    "wkafl_as_coded": {"lr": 0.05, "max_norm": 1.0, "threshold": 0.2},
    "kasync_sgd": {"lr": 0.05},
    "twafl": {"lr": 0.05},
    "sasgd": {"lr": 0.1},
    "gsgm": {"lr": 0.02, "momentum": 0.3, "clients": CLIENTS},
    "zeno": {"lr": 0.02, "server_gradient": Own(), "slack": 1.0},
    "fedasync": {"mixing": 0.2},
    "fedbuff": {"lr": 0.05},
    "ca2fl": {"lr": 0.02, "clients": CLIENTS},
    "recall": {"lr": 0.001, "clients": CLIENTS, "half_distance": 0.008, "reach": 0.0015},
    "ace": {"lr": 0.02, "clients": CLIENTS},
    "fadas": {"lr": 0.002},
    "ringmaster": {"lr": 0.05, "max_staleness": 4},
    "ringleader": {"lr": 0.02, "clients": CLIENTS},
    "delay_adaptive": {"lr": 0.05, "concurrency": 2.0},
    "krum": {"lr": 0.02, "byzantine": 0},
    "geometric_median": {"lr": 0.05},
    "centered_clip": {"lr": 0.05, "radius": 0.5},
    "fltrust": {"lr": 0.02, "server_gradient": Own()},
    "aflguard": {"lr": 0.02, "server_gradient": Own(), "radius": 1.5},
    "fedstale": {"lr": 0.02, "clients": CLIENTS},
    "area": {"clients": CLIENTS, "lr": 0.05},
    "fedfa": {"queue": CLIENTS, "lr": 0.05},
    "rescaled_asgd": {"lr": 0.05, "clients": CLIENTS},
    "asyncfeded": {"lr": 0.05},
    "port": {"lr": 0.05},
    "gap_aware": {"lr": 0.05},
    "dc_asgd": {"lr": 0.05},
    "momentum_approximation": {"lr": 0.02, "momentum": 0.5},
    "momentum_look_ahead": {"lr": 0.02},
    "heloco": {"lr": 0.02},
    "delayed_nesterov": {"lr": 0.05, "every": 3},
    "fedavgm": {"lr": 0.01, "momentum": 0.5},
    "fedadam": {"lr": 0.001},
    "fedyogi": {"lr": 0.001},
    "ringmaster_lmo": {"lr": 0.001, "max_staleness": 4},
}


def make_rule(name: str, model: nn.Module, data: FederatedData, own=server_gradient, **more) -> rules.Rule:
    """The rule with the settings above; `own(model, data, samples)` makes the server's gradient where it needs one."""
    settings = SETTINGS[name] | more
    return rules.build(
        name,
        **{
            key: own(model, data, data.server_sample(value.count)) if isinstance(value, Own) else value
            for key, value in settings.items()
        },
    )


def finished(model, data, rule, timeline, work=None, **options):
    """The records of a whole run, and the simulation."""
    simulation = simulate(model, data, rule, timeline, Gradient(4) if work is None else work, **options)
    return list(simulation), simulation


def same_records(first, second) -> bool:
    """Whether two streams of records say the same, to the last bit."""
    return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))


def _same(a, b) -> bool:
    mine, yours = vars(a), vars(b)
    return mine.keys() == yours.keys() and all(_equal(mine[name], yours[name]) for name in mine)


def _equal(a, b) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, dict):
        return a == b
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
