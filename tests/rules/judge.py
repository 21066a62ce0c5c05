"""Runs a rule and a plain loop on the same deliveries, step after step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from kasync import Arrivals, Rule, ServerState, Step

RELATIVE = {torch.float32: 1e-5, torch.float64: 1e-9}
ROUNDING = {torch.float32: 5e-7, torch.float64: 1e-15}  # of the largest number that went into the sum


class Plain(Protocol):
    """A rule as a plain loop."""

    def move(self, params: Tensor, arrivals: Arrivals) -> Tensor: ...


def follow(
    rule: Rule,
    plain: Plain,
    deliveries: Iterable[Arrivals],
    params: Tensor,
    strict: bool = False,
    moving: bool = False,
) -> list[Step]:
    """Let both move from the same parameters at every step, each with the memory of its own past.

    Unless moving, these are the given ones every time, so that a gradient of norm 1e-8 is not lost beside them. Unless
    strict, the rounding of the largest number so far is forgiven: a sum that cancels cannot be better than that.
    """
    server, steps, largest = ServerState.initial(params), [], 0.0
    for number, arrivals in enumerate(deliveries):
        before = server.params if moving else params
        expected = plain.move(before.double(), arrivals)
        server, step = rule(replace(server, params=before), arrivals)
        error = float(((server.params - before).double() - expected).norm())
        largest = max(largest, rule.lr * float(arrivals.gradients.double().norm(dim=1).max()), float(before.norm()))
        forgiven = 0.0 if strict else ROUNDING[params.dtype] * largest
        allowed = RELATIVE[params.dtype] * float(expected.norm()) + forgiven
        assert error <= allowed, f"step {number}: off by {error:g} where {expected.norm():g} was expected"
        steps.append(step)
    return steps
