"""Validation of the arguments of simulate, before any work starts."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import nn

from kasync import checks
from kasync.core import Rule
from kasync.data.federated import FederatedData
from kasync.errors import UserError, unknown
from kasync.timelines import Timeline
from kasync.timelines.timeline import inconsistency
from kasync.work import Gradient, Work
from kasync.work.loop import BUFFERS
from kasync.work.trial import refuse_empty, refuse_optimizer

PRECISIONS = ("float32", "bfloat16")


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
    buffers: str,
    precision: str,
    metrics: Any,
    checkpoint: Any,
) -> None:
    """Refuse settings that are impossible, or that do not go together."""
    refuse_empty(model)
    if not isinstance(data, FederatedData):
        raise UserError(
            f"data is a {type(data).__name__}: make federated data of it with data.from_arrays, data.from_dataset or "
            "data.federate, which say who holds what."
        )
    if not isinstance(timeline, Timeline):
        raise UserError(
            f"timeline is a {type(timeline).__name__}: make one, as in timelines.uniform(clients=100, k=10, steps=500)."
        )
    if not isinstance(rule, Rule):
        raise UserError(
            f"rule = {getattr(rule, '__name__', rule)!r} is not a rule: make one, as in rules.wkafl(lr=0.01)."
        )
    if not isinstance(work, Work):
        raise UserError(
            f"work = {work!r}: use Gradient(batch_size), Local(batch_size, steps=..., lr=...) or Custom(loop, ...)."
        )
    if isinstance(work, Gradient) and getattr(timeline, "local_steps", None) is not None:
        raise UserError("the timeline has local steps for each delivery, and Gradient takes none: use work=Local(...).")
    checks.count("seed", seed, least=0)
    checks.count("evaluate_every", evaluate_every)
    checks.at_least("checkpoint_every", checkpoint_every, 0.0)
    if buffers not in BUFFERS:
        raise unknown("buffers", buffers, BUFFERS)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
        raise UserError("metrics: give a dict {name: function of (outputs, labels)}.")
    if not (checkpoint is None or isinstance(checkpoint, str | PathLike)):
        raise UserError(f"checkpoint = {checkpoint!r}: name a file.")
    refuse_optimizer(model, work)
    check_device(device)
    fault = inconsistency(timeline)
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
    if len(data.test) == 0:
        raise UserError("the data has no test set: give at least one test sample.")


def check_device(device: str) -> None:
    """Refuse a device that is not here."""
    try:
        place = torch.device(device)
        if place.type not in ("cpu", "cuda"):
            torch.empty(0, device=place)
    except (RuntimeError, TypeError):
        raise UserError(f"device = {device!r} is not known: use 'cpu' or 'cuda'.") from None
    there = torch.cuda.device_count() if place.type == "cuda" and torch.cuda.is_available() else 0
    if place.type == "cuda" and (place.index or 0) >= there:
        raise UserError(f"device = {device!r}: there are {there} CUDA GPUs here; use --device cpu, or device='cpu'.")
