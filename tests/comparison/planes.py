"""A model, a rule and arrivals of the user's own, for comparisons that take a second."""

import torch
from torch import nn

import kasync
from kasync import timelines


class Plane(nn.Module):
    """One dense layer that starts as the global generator says."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


def plain(lr: float, favour: float = 1.0) -> kasync.Rule:
    """A rule of the user's own."""
    return kasync.Rule("plain", lr, (kasync.parts.ClipNorms(10.0 * favour),))


def arrivals(seed: int) -> kasync.timelines.Timeline:
    return timelines.uniform(clients=6, k=2, steps=40, seed=seed)
