"""What can a person get wrong in a call of simulate? Everything is looked at before work starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from kasync import checks
from kasync.core import Rule
from kasync.data.federated import FederatedData, scaled
from kasync.errors import UserError
from kasync.timelines import Timeline
from kasync.timelines.invariants import broken
from kasync.work import Gradient, LocalSGD
from kasync.work.general import check as check_model
from kasync.work.layers import Loss


def check(
    model: nn.Module,
    data: FederatedData,
    rule: Rule,
    timeline: Timeline,
    work: Any,
    seed: int,
    device: str,
    evaluate_every: int,
    checkpoint_every: float,
) -> None:
    """Refuse settings that are impossible, or that do not go together."""
    if not isinstance(rule, Rule):
        raise UserError(
            f"rule = {getattr(rule, '__name__', rule)!r} is not a rule: make one, as in rules.wkafl(lr=0.01)."
        )
    if not isinstance(work, Gradient | LocalSGD):
        raise UserError(f"work = {work!r}: use Gradient(batch_size) or LocalSGD(steps, lr, batch_size).")
    checks.count("seed", seed, least=0)
    checks.count("evaluate_every", evaluate_every)
    checks.at_least("checkpoint_every", checkpoint_every, 0.0)
    check_model(model)
    _check_device(device)
    fault = broken(timeline)
    if fault:
        raise UserError(f"the timeline cannot be replayed: {fault}.")
    if timeline.population > data.clients:
        raise UserError(
            f"the timeline has {timeline.population} clients but the data {data.clients}: partition it for as many."
        )
    if rule.clients is not None and rule.clients < timeline.population:
        raise UserError(
            f"{rule.name} remembers {rule.clients} clients, the timeline has {timeline.population}: raise its clients."
        )
    empty = int((data.sizes[np.unique(timeline.clients)] == 0).sum())
    if empty:
        raise UserError(f"{empty} clients of the timeline have no sample: partition the data so that each has one.")
    if len(data.test.labels) == 0:
        raise UserError("the data has no test set: give at least one test sample.")


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"device = {device!r} is not known: use 'cpu' or 'cuda'.") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device = {device!r}: no CUDA GPU is there; use device='cpu'.")


def check_fit(model: nn.Module, data: FederatedData, loss: Loss) -> None:
    """Try the model and the loss on two samples: do they fit the data?"""
    inputs = scaled(torch.from_numpy(data.test.inputs[:2].copy()), data.scale)
    labels = torch.from_numpy(data.test.labels[:2].copy())
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            outputs = model(inputs.to(device)).cpu()
    except (RuntimeError, ValueError, TypeError) as problem:
        shape, reason = tuple(inputs.shape[1:]), str(problem).splitlines()[0]
        raise UserError(
            f"the model does not take the data's inputs of shape {shape} ({reason}): choose another."
        ) from None
    if data.classes and (outputs.dim() < 2 or outputs.shape[1] < data.classes):
        raise UserError(
            f"the model's outputs have shape {tuple(outputs.shape[1:])} for {data.classes} classes: give one for each."
        )
    try:
        losses = loss(outputs, labels)
    except (RuntimeError, ValueError, TypeError, IndexError) as problem:
        raise UserError(f"the loss fails on two samples ({str(problem).splitlines()[0]}): check it.") from None
    if losses.shape != labels.shape[:1]:
        raise UserError(
            f"the loss returns shape {tuple(losses.shape)} for two samples: return one for each (reduction='none')."
        )
