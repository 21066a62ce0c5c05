"""Many runs side by side on Ray: each one is a task, its folder is the result, the same as a local one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kasync.errors import UserError
from kasync.experiments.display import Display
from kasync.experiments.runner import run
from kasync.experiments.settings import RunSettings


def make_all(
    runs: Mapping[str, RunSettings], out: Path, display: Display, jobs: int, address: str | None
) -> list[tuple[str, str]]:
    """Make the runs, `jobs` on each GPU or one on each core; the runs that failed, with their sentences."""
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports usage to its makers otherwise
        try:
            ray.init(address=address, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        except ConnectionError as problem:
            raise UserError(f"no Ray cluster answers at {address!r} ({problem}): start one or leave it out.") from None
    try:
        return _gathered(ray, runs, out.resolve(), display, jobs)
    finally:
        if ours:
            ray.shutdown()


def _gathered(
    ray: Any, runs: Mapping[str, RunSettings], out: Path, display: Display, jobs: int
) -> list[tuple[str, str]]:
    waiting = {}
    for name, settings in runs.items():
        share = {"num_gpus": 1 / jobs} if settings.device.startswith("cuda") else {"num_cpus": 1}
        task = ray.remote(max_retries=2, **share)(_one)
        waiting[task.remote(settings.table(), str(out / "runs" / name), dict(_passed_on()))] = name
        display.start(name, settings.steps)
    failed = []
    while waiting:
        (ready,), _ = ray.wait(list(waiting), num_returns=1)
        name = waiting.pop(ready)
        summary, why = ray.get(ready)
        if why is None:
            display.done(name, summary)
        else:
            failed.append((name, why))
            display.failed(name, why)
    return failed


def _one(table: dict[str, Any], folder: str, environment: dict[str, str]) -> tuple[dict[str, Any], str | None]:
    """In a process of Ray's: (summary, None), or ({}, what was wrong)."""
    os.environ.update(environment)
    try:
        return run(RunSettings.of(table), Path(folder)), None
    except UserError as problem:
        return {}, str(problem)


def _passed_on() -> Mapping[str, str]:
    return {name: os.environ[name] for name in ("KASYNC_DATA", "KASYNC_CACHE") if name in os.environ}


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("the engine 'ray' needs Ray, which is not installed: pip install 'kasync[ray]'.") from None
    return ray
