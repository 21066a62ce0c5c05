"""How much memory a run will need, where it is held, and whether it fits: known before the start."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kasync import kernel
from kasync.core import Rule
from kasync.data.federated import FederatedData
from kasync.errors import UserError, unknown
from kasync.simulator.plan import Plan
from kasync.simulator.run import BLOCK

HOLDS = ("auto", "gradients", "versions")
SHARE = 0.9  # of what is available that a run may take
VECTORS = 12  # long vectors that a step has under way: parameters, direction, what a rule and its optimiser remember


@dataclass(frozen=True)
class Memory:
    """What a run holds, in bytes, which way of holding staleness was chosen, and where."""

    hold: str
    held: int  # gradients that wait, or model versions
    tables: int  # what the rule remembers for clients
    data: int
    working: int  # one step's rows
    available: int
    capacity: int  # of the device, whoever uses it
    piece: int = 0  # what one piece of work needs beside its row, as measured
    workers: int = 1  # pieces of work at the same time
    place: str = "device"  # where rows and versions are held: device, host, disk, or Ray's object store
    rows: int = 0  # that workers of Ray may have under way or waiting
    beside: int = 0  # what clients keep between visits, what waits beside rows and versions, what metrics read

    @property
    def own(self) -> int:
        """What each of several runs on the same data needs on the device."""
        held = (self.held if self.place == "device" else 0) + self.beside
        return held + self.tables + self.working + self.piece * self.workers

    @property
    def total(self) -> int:
        return self.own + self.data

    def __str__(self) -> str:
        what = "waiting gradients" if self.hold == "gradients" else "model versions"
        where = "" if self.place == "device" else f" ({self.place})"
        parts = [f"{size(self.held)} {what}{where}", f"{size(self.tables)} rule's tables", f"{size(self.data)} data"]
        if self.beside:
            parts.append(f"{size(self.beside)} kept by clients, beside rows and for metrics")
        if self.piece:
            parts.append(f"{size(self.piece)} for each of {self.workers} pieces of work")
        return f"memory: {size(self.total)} ({', '.join(parts)}) of {size(self.available)} available"


def size(count: int) -> str:
    """Bytes as a person reads them."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def available(device: str) -> int:
    """Bytes that can still be taken on the device."""
    if torch.device(device).type == "cuda":
        reserved, taken = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved - taken  # kept by PyTorch, but free again
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = capacity(device)
    return max(0, min([free, *_limits()]))


def _limits() -> Iterator[int]:
    """What a container and this process's own limits leave."""
    for folder, highest, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            yield int(Path(folder, highest).read_text(encoding="ascii")) - int(
                Path(folder, used).read_text(encoding="ascii")
            )
        except (OSError, ValueError):  # no such group, or "max"
            continue
    try:
        import resource

        status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except (ImportError, OSError):
        return
    for limit, field in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            yield most - next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def capacity(device: str) -> int:
    """Bytes the device has."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if sys.platform == "win32":
        import ctypes

        status = (ctypes.c_ulonglong * 8)(64)  # MEMORYSTATUSEX: size and load, total, available ...
        ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        return int(status[2])  # what is free: nothing else says it there
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def spilling() -> Path:
    """The folder in which rows are held where memory is short."""
    return Path(tempfile.gettempdir())


def places(device: str) -> dict[str, int]:
    """Where rows can be held, nearest first, and the bytes that are free there."""
    room = {"device": available(device)}
    if torch.device(device).type == "cuda":
        room["host"] = available("cpu")
    return room | {"disk": free_on_disk()}


def free_on_disk() -> int:
    """Bytes that rows may take in a file."""
    return shutil.disk_usage(spilling()).free


def choose(
    plan: Plan,
    rule: Rule,
    data: FederatedData,
    length: int,
    hold: str,
    device: str,
    piece: int = 0,
    workers: int = 1,
    backend: str = "loop",
    kept: int = 0,
    brought: int = 0,
    outputs: int = 0,
) -> Memory:
    """The way and place of holding staleness asked for, or the fastest that fits; refuse what does not fit.

    In bytes: a piece of work needs `piece`, a client keeps `kept` between its visits, `brought` waits beside a row, and
    metrics read `outputs`.
    """
    if hold not in HOLDS:
        raise unknown("hold", hold, HOLDS)
    if rule.needs_starts and hold == "gradients":
        raise UserError(f"hold = 'gradients' keeps no model versions, which {rule.name} needs: use hold='versions'.")
    k, row = plan.timeline.k, 4 * length
    counts = {"gradients": plan.rows + 1, "versions": plan.versions + 1}
    room, total = places(device), capacity(device)
    inputs = data_bytes(data)
    all_kept = kept * len(np.unique(plan.timeline.clients)) if kept else 0

    def need(kind: str, place: str) -> Memory:
        held = counts[kind] * row
        working = _rows_under_way(plan, rule, kind, device, backend, k) * row
        fixed = (kind, held, rule.table_rows * row, inputs, working, room["device"], total)
        beside = all_kept + brought * counts[kind] + outputs
        one = Memory(*fixed, piece, 1, place, beside=beside)
        spare = SHARE * one.available - one.total + piece
        fitting = max(1, min(workers, int(spare // piece))) if piece else workers
        return Memory(*fixed, piece, fitting, place, beside=beside)

    kinds = ["versions"] if rule.needs_starts else ["gradients", "versions"] if hold == "auto" else [hold]
    options = [need(kind, "device") for kind in kinds]
    smallest_first = sorted(kinds, key=lambda kind: counts[kind])
    options += [need(kind, place) for place in room if place != "device" for kind in smallest_first]
    for option in options:
        elsewhere = option.place == "device" or option.held <= SHARE * room[option.place]
        if option.total <= SHARE * option.available and elsewhere:
            return option
    told = "; ".join(str(option) for option in options[: len(kinds)])
    raise UserError(
        f"this run does not fit on {device}: {told}. Use fewer clients or steps, a larger k, or a smaller model."
    )


def data_bytes(data: FederatedData) -> int:
    """What all samples take, and the lists of who has which."""
    return sum(_bytes(samples) for samples in (data.train, data.test)) + 8 * len(data.indices)


def _bytes(samples: object) -> int:
    """What the columns of some samples take."""
    inputs = getattr(samples, "inputs")  # noqa: B009
    columns = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
    return sum(column.nbytes for column in columns)


def _rows_under_way(plan: Plan, rule: Rule, kind: str, device: str, backend: str, k: int) -> int:
    """Long rows of one step beside those that are held."""
    if torch.device(device).type == "cuda":
        first = min(BLOCK, int(plan.bounds[1])) if kind == "gradients" and backend != "loop" else 0
        return 6 * k + 16 + first  # all begin on version 0
    copied = 2 * k if rule.table_rows or not kernel.available() else 0
    delivered = 2 * k if kind == "versions" else 0
    several = min(BLOCK, int(plan.bounds[1])) if backend == "vmap" else 0
    return VECTORS + copied + delivered + several
