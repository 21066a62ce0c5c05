"""The timeline that the settings under [arrivals] describe, with the faults of a run."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kasync import components
from kasync.errors import UserError
from kasync.experiments.faulty import with_faults
from kasync.experiments.settings import RunSettings
from kasync.timelines import Timeline
from kasync.timelines import settings as described
from kasync.timelines.settings import parsed, stored

__all__ = ["from_text", "parsed", "stored", "timeline_of"]

KEPT = 200_000  # deliveries of a timeline that is worth its memory


def timeline_of(settings: RunSettings) -> Timeline:
    """The timeline of a run; a wrong setting is an error that names the nearest one."""
    kind, given = settings.arrivals.kind, dict(settings.arrivals.settings)
    described.check(kind, given)
    return with_faults(settings, lambda steps: _made(settings, steps, kind, given))


def from_text(text: str | None, trace: str | Path | None = None) -> dict[str, Any] | None:
    """[arrivals] from `clock:durations=pareto,shape=2` and a trace: a csv of client,seconds, or a folder of traces."""
    if trace is None:
        return parsed(text) if text else None
    table = parsed(text) if text else {"kind": "clock"}
    if table["kind"] != "clock" or "durations" in table:
        raise UserError(f"{trace} and {text!r} both say how long work takes: name no durations beside a trace.")
    if Path(trace).is_dir():
        return {**table, "kind": "traces", "folder": str(trace)}
    return {**table, "durations": {"kind": "trace", "source": str(trace)}}


def _made(settings: RunSettings, steps: int, kind: str, given: Mapping[str, Any]) -> Timeline:
    if kind in ("file", "uniform"):
        return described.timeline(kind, given, settings.clients, settings.k, steps, settings.seed)
    decisive = json.dumps([kind, given, settings.clients, settings.k, steps, settings.seed], sort_keys=True)
    return (_played if steps * settings.k <= KEPT else _played.__wrapped__)(decisive)


@functools.lru_cache(maxsize=64)
def _played(decisive: str) -> Timeline:
    """All rules of a comparison share it, and playing a clock takes as long as some runs on a GPU."""
    kind, given, *rest = json.loads(decisive)
    if components.is_own(given.get("select")):
        given["select"] = components.load(given["select"], "select")
    return described.timeline(kind, given, *rest)
