"""How is a whole grid of runs made? Each distinct run once, finished ones skipped, by the engine that is asked for."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kasync import lock
from kasync.errors import UserError, unknown
from kasync.experiments import files, stacking
from kasync.experiments.display import Display, Silent
from kasync.experiments.experiment import Cell
from kasync.experiments.runner import Stopped, Watch, finished, run, run_together, tidy
from kasync.experiments.settings import RunSettings

ENGINES = ("local", "ray")
STACKED = 0.85  # share of a device's memory for what runs hold


@dataclass(frozen=True)
class Outcome:
    """What became of a grid."""

    made: int
    skipped: int  # they were finished already
    failed: tuple[tuple[str, str], ...]  # (run, sentence)


def record(out: Path, about: dict[str, Any], cells: Sequence[Cell], tuned: str | None = None, suffix: str = "") -> Path:
    """Write, or add to, the list of an experiment's cells; several processes may do so at once."""
    folder = files.make_folder(out / "experiments")
    path = folder / f"{about['name']}-{about['scale']}{suffix}.json"
    with lock.held(folder, wait=10.0):
        before = files.read_json(path) if path.exists() else {}
        entries = [cell.entry() for cell in cells]
        places = {_place(entry) for entry in entries}
        kept = [entry for entry in before.get("cells", []) if _place(entry) not in places]
        rules = {row["label"]: row for row in [*before.get("rules", []), *about["rules"]]}
        tasks = {row["name"]: row for row in [*before.get("tasks", []), *about["tasks"]]}
        lists = {"tasks": list(tasks.values()), "rules": list(rules.values()), "cells": [*kept, *entries]}
        merged = {**about, "tuned": tuned, **lists}
        files.write_json(path, merged)
    return path


def make(
    cells: Iterable[Cell],
    out: Path,
    *,
    engine: str = "local",
    jobs: int = 1,
    address: str | None = None,
    display: Display | None = None,
) -> Outcome:
    """Make every run of the cells that is not finished; a run that fails does not stop the others."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if jobs < 1:
        raise UserError(f"jobs = {jobs}: give at least 1.")
    files.make_folder(out / "runs")
    runs = {cell.settings.name: cell.settings for cell in cells}
    open_runs = {name: settings for name, settings in runs.items() if not finished(out / "runs" / name)}
    for name in runs.keys() - open_runs.keys():
        tidy(out / "runs" / name)
    display = display or Silent()
    display.begin(len(runs), len(runs) - len(open_runs))
    try:
        if engine == "ray":
            from kasync.experiments.ray_engine import make_all

            failed = make_all(open_runs, out, display, jobs, address)
        else:
            failed = _make_local(open_runs, out, display, jobs)
    finally:
        display.end()
    return Outcome(len(open_runs) - len(failed), len(runs) - len(open_runs), tuple(failed))


def _make_local(runs: dict[str, RunSettings], out: Path, display: Display, jobs: int) -> list[tuple[str, str]]:
    """On the CPU one after the other, since a run uses all cores; on a GPU `jobs` at once, stacked where alike."""
    on_gpu = any(settings.device.startswith("cuda") for settings in runs.values())
    lanes = min(stacking.LANES, jobs) if on_gpu else 1
    most = jobs // lanes if on_gpu else 1
    queue, guard, stop = stacking.stacks(runs, most), threading.Lock(), threading.Event()
    failed: list[tuple[str, str]] = []
    broken: list[BaseException] = []

    def attempt(stack: dict[str, RunSettings]) -> None:
        try:
            _make_stack(stack, out, display, stop)
        except Stopped:
            raise
        except Exception as problem:
            if len(stack) > 1:  # one of them is at fault, and the others need not fail with it
                for name, settings in stack.items():
                    attempt({name: settings})
                return
            (name,) = stack
            failed.append((name, _why(problem, out / "runs" / name)))
            display.failed(*failed[-1])

    def work() -> None:
        while not stop.is_set():
            with guard:
                stack = next(queue, None)
            if stack is None:
                return
            try:
                attempt(stack)
            except Stopped:
                return
            except BaseException as problem:
                broken.append(problem)
                stop.set()
                return

    if lanes == 1:
        work()
    else:
        _side_by_side(work, lanes, stop)
    if broken:
        raise broken[0]
    return failed


def _make_stack(stack: dict[str, RunSettings], out: Path, display: Display, stop: threading.Event) -> None:
    """Several runs as one, or one by itself."""
    for name, settings in stack.items():
        display.start(name, settings.steps)
    first = next(iter(stack))
    try:
        if len(stack) == 1:
            tell = Watch(tell=lambda record: display.step(first, record), stop=stop.is_set)
            summaries = [run(stack[first], out / "runs" / first, tell)]
        else:
            folders = [(settings, out / "runs" / name) for name, settings in stack.items()]
            share = STACKED / stacking.LANES
            summaries = run_together(folders, lambda f, record: display.step(f.name, record), stop.is_set, share)
        for name in stack:
            (out / "runs" / name / "error.txt").unlink(missing_ok=True)
    finally:
        if stack[first].device.startswith("cuda"):
            _tidy(stack[first].device)
    for name, summary in zip(stack, summaries, strict=True):
        display.done(name, summary)


def _why(problem: Exception, folder: Path) -> str:
    """A sentence; what nobody foresaw (a GPU that is full, a fault of ours) leaves its traceback beside the run."""
    if isinstance(problem, UserError):
        return str(problem)
    files.write(folder / "error.txt", "".join(traceback.format_exception(problem)))
    first = str(problem).strip().partition("\n")[0]
    return f"{type(problem).__name__}: {first} (see {folder / 'error.txt'})"


def _tidy(device: str) -> None:
    """Give a finished run's memory back once little is left: the next run asks the driver how much there is."""
    import gc

    import torch

    free, total = torch.cuda.mem_get_info(device)
    if free < total / 2:
        gc.collect()
        torch.cuda.empty_cache()


def _side_by_side(work: Any, jobs: int, stop: threading.Event) -> None:
    """So many threads, each with a CUDA stream of its own, so that small steps of several runs overlap."""
    import torch

    def in_stream() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            work()

    threads = [threading.Thread(target=in_stream, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # in short waits, so that Ctrl-C is heard
    except BaseException:
        stop.set()
        for thread in threads:
            thread.join(30)
        raise


def _place(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[key] for key in ("task", "rule", "staleness", "seed"))
