"""Tells whether other programs use this machine, so that a turn should wait or not be counted."""

from __future__ import annotations

import time
from pathlib import Path

STAT = Path("/proc/stat")


def others(seconds: float = 0.25) -> float:
    """Cores kept busy by processes of ordinary priority (contestants wait meanwhile); 0 where that cannot be known.

    What runs with a lower priority (nice) takes next to nothing from a contestant, and is left out.
    """
    if not STAT.exists():
        return 0.0
    before = times()
    time.sleep(seconds)
    spent = [late - early for early, late in zip(before, times(), strict=True)]
    user, _, system, _, _, interrupts, soft, stolen = spent
    cores = sum(line.startswith("cpu") for line in STAT.read_text().splitlines()) - 1
    return cores * (user + system + interrupts + soft + stolen) / max(1, sum(spent))


def times() -> list[int]:
    """[8] user, nice, system, idle, waiting, interrupts, soft interrupts, stolen: in ticks, over all cores."""
    return [int(word) for word in STAT.read_text().split()[1:9]]


def wait_for_quiet(busy: float, patience: float) -> float:
    """Wait, at most `patience` seconds, until others keep no more than `busy` cores; returns what was seen last."""
    end = time.monotonic() + patience
    seen = others()
    while seen > busy and time.monotonic() < end:
        time.sleep(0.5)
        seen = others()
    return seen
