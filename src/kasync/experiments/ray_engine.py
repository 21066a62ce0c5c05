"""Many runs side by side on Ray: each one is a task, and its folder is the result, the same as a local one."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kasync import files, lock
from kasync.experiments import grid
from kasync.experiments.display import Display
from kasync.experiments.runner import run
from kasync.experiments.settings import RunSettings

Files = dict[str, bytes]  # of a run's folder, by name
Told = tuple[dict[str, Any], str | None, Files | None]  # summary, what was wrong, and files that lie elsewhere
RETRIES = 2  # times that a run whose worker or node died is begun again


def make_all(
    runs: Mapping[str, RunSettings], out: Path, display: Display, jobs: int, address: str | None
) -> list[tuple[str, str]]:
    """Make the runs, `jobs` on each GPU or one on each core; the runs that failed, with their sentences."""
    import ray

    from kasync.simulator.ray import connect, disconnect, dismiss

    ours = connect(address)
    dismiss()
    folder = files.make_folder(out.resolve() / "runs")
    sign = folder / f".seen-{uuid.uuid4().hex}"  # who sees it works on the disk of this process
    passed_on = {name: os.environ[name] for name in ("KASYNC_DATA", "KASYNC_CACHE") if name in os.environ}
    waiting, failed = {}, []
    try:
        sign.touch()
        for name, settings in runs.items():
            share = {"num_gpus": 1 / jobs} if settings.device.startswith("cuda") else {"num_cpus": 1}
            task: Any = ray.remote(max_retries=RETRIES, **share)(_one)  # type: ignore[call-overload]
            begun = _files(folder / name)
            waiting[task.remote(settings.table(), str(folder / name), str(sign), begun, passed_on)] = name
            display.start(name, settings.steps)
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            name = waiting.pop(ready)
            try:
                summary, why, found = ray.get(ready)
                _put(folder / name, found or {})
            except Exception as problem:  # of Ray: its worker or node died too often, or was full
                summary, why = {}, grid.reason(problem, folder / name)
            if why is None:
                display.done(name, summary)
            else:
                failed.append((name, why))
                display.failed(name, why)
    finally:
        sign.unlink(missing_ok=True)
        if ours:
            disconnect()
    return failed


def _one(table: dict[str, Any], folder: str, sign: str, begun: Files, environment: dict[str, str]) -> Told:
    """In a process of Ray's, on the driver's disk where that is seen, else in a folder of its own."""
    os.environ.update(environment)
    place = Path(folder)
    if Path(sign).exists():
        return (*_made(table, place), None)
    aside = Path(tempfile.mkdtemp(prefix="kasync-run-")) / place.name
    try:
        if begun:
            _put(aside, begun)
        summary, why = _made(table, aside)
        found = _files(aside)
        return summary, None if why is None else why.replace(str(aside), folder), found
    finally:
        shutil.rmtree(aside.parent, ignore_errors=True)


def _made(table: dict[str, Any], folder: Path) -> tuple[dict[str, Any], str | None]:
    """(summary, None), or ({}, what was wrong): whatever one run raises, the grid goes on."""
    try:
        summary = run(RunSettings.of(table), folder)
    except Exception as problem:
        return {}, grid.reason(problem, folder)
    (folder / "error.txt").unlink(missing_ok=True)
    return summary, None


def _files(folder: Path) -> Files:
    """What a run's folder holds, its checkpoint too: a run goes on wherever it is made."""
    if not folder.is_dir():
        return {}
    kept = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".part" and path.name != lock.NAME]
    return {path.name: path.read_bytes() for path in kept}


def _put(folder: Path, found: Files) -> None:
    """Write these files; the summary last, since it says that the run is finished."""
    if not found:
        return
    files.make_folder(folder)
    for name in sorted(found, key=lambda name: name == "summary.json"):
        files.write(folder / name, found[name])
