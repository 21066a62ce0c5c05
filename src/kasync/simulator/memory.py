"""How much memory will a run need, and does it fit?"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from kasync.core import Rule
from kasync.data.federated import FederatedData
from kasync.errors import UserError, unknown
from kasync.simulator.plan import Plan
from kasync.simulator.run import BLOCK

HOLDS = ("auto", "gradients", "versions")


@dataclass(frozen=True)
class Memory:
    """What a run holds, in bytes, and which way of holding staleness was chosen."""

    hold: str
    held: int  # gradients that wait, or model versions
    tables: int  # what the rule remembers for clients
    data: int
    working: int  # one step's rows
    available: int
    capacity: int  # of the device, whoever uses it

    @property
    def own(self) -> int:
        """What each of several runs on the same data needs."""
        return self.held + self.tables + self.working

    @property
    def total(self) -> int:
        return self.own + self.data

    def __str__(self) -> str:
        what = "waiting gradients" if self.hold == "gradients" else "model versions"
        parts = f"{size(self.held)} {what}, {size(self.tables)} rule's tables, {size(self.data)} data"
        return f"memory: {size(self.total)} ({parts}) of {size(self.available)} available"


def size(count: int) -> str:
    """Bytes as a person reads them."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def available(device: str) -> int:
    """Bytes that can still be taken on the device."""
    if torch.device(device).type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
            device
        )  # free again, but not given back
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return capacity(device)


def capacity(device: str) -> int:
    """Bytes the device has."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def choose(plan: Plan, rule: Rule, data: FederatedData, length: int, hold: str, device: str) -> Memory:
    """The way of holding staleness that was asked for, or the faster one that fits; refuse what does not fit."""
    if hold not in HOLDS:
        raise unknown("hold", hold, HOLDS)
    if rule.needs_starts and hold == "gradients":
        raise UserError(f"hold = 'gradients' keeps no model versions, which {rule.name} needs: use hold='versions'.")
    k = plan.timeline.k
    row = 4 * length
    counts = {"gradients": plan.rows + 1, "versions": plan.versions + 1}

    room = (available(device), capacity(device))

    def need(kind: str) -> Memory:
        inputs = data.train.inputs.nbytes + data.test.inputs.nbytes + 8 * len(data.indices)
        first = min(BLOCK, int(plan.bounds[1])) if kind == "gradients" else 0  # all begin on version 0
        working = (6 * k + 16 + first) * row
        return Memory(kind, counts[kind] * row, rule.table_rows * row, inputs, working, *room)

    kinds = ["versions"] if rule.needs_starts else ["gradients", "versions"] if hold == "auto" else [hold]
    options = [need(kind) for kind in kinds]
    for option in options:
        if option.total <= 0.9 * option.available:
            return option
    told = "; ".join(str(option) for option in options)
    raise UserError(
        f"this run does not fit on {device}: {told}. Use fewer clients or steps, a larger k, or a smaller model."
    )
