"""Grids of runs: planned, recorded and made, each distinct run once, stacked on a GPU where alike."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kasync import files
from kasync.errors import UserError, unknown
from kasync.experiments import experiment as catalogue
from kasync.experiments.display import Display
from kasync.experiments.experiment import Cell, Experiment, Tuned
from kasync.experiments.runner import Stopped, Wanted, Watch, described, run, run_together, tidy
from kasync.experiments.settings import RunSettings
from kasync.experiments.store import Store, one_kind

ENGINES = ("local", "ray")
BOTH = ("true", "published-code")
OWN = "own"  # scale of a comparison of one's own
STACKED = 0.85  # share of a device's memory for what runs hold
LANES = 2  # stacks side by side: while one opens or closes its folders, the other keeps the device busy


@dataclass(frozen=True)
class Plan:
    """Experiments and all their cells, checked."""

    experiments: Sequence[tuple[Experiment, Sequence[Cell]]]

    @property
    def cells(self) -> list[Cell]:
        return [cell for _, cells in self.experiments for cell in cells]

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Of every run, as tables; experiments share some."""
        return {cell.settings.name: cell.settings.table() for cell in self.cells}


def plan(
    names: Sequence[str] = (),
    *,
    scale: str = "quick",
    seeds: int | None = None,
    staleness: str = "true",
    tuned: str | None = None,
    rules: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Plan:
    """Everything that will be run; whatever cannot work is refused here. `tasks` are names or patterns (`mnist*`)."""
    if seeds is not None and seeds < 1:
        raise UserError(f"seeds = {seeds}: give at least 1.")
    chosen = Tuned.read(Path(tuned)) if tuned else None
    wanted = range(seeds) if seeds is not None else None
    planned = []
    for name in names or catalogue.names():
        one = catalogue.load(name, scale)
        trained = one.kind == "training"
        one = replace(one.only(tasks, rules if trained else None), tuned=tuned)
        ways = semantics(staleness) if trained else BOTH[:1]
        planned.append((one, one.cells(wanted, ways, chosen if trained else None, overrides)))
    return Plan(planned)


def semantics(text: str) -> Sequence[str]:
    """`both`, or names separated by commas."""
    return BOTH if text == "both" else tuple(text.split(","))


def carry_out(made: Plan, out: Path, **where: Any) -> Outcome:
    """Record the experiments and `make` their runs; what is finished is skipped, what is not continues."""
    store, places = Store(out), dict[str, set[tuple[str, str]]]()
    for one, cells in made.experiments:
        about = one.record()
        if one.scale == OWN:  # comparisons of one's own stand beside each other
            first = {cell.rule.label: cell.settings for cell in reversed(cells)}
            about["rules"] = [{**row, **_marks(first[row["label"]])} for row in about["rules"]]
        labels = store.record(one.key, about, [cell.record() for cell in cells])
        places.setdefault(one.key, set()).update((cell.task.name, labels[cell.rule.label]) for cell in cells)
    return replace(make((cell.settings for cell in made.cells), out, **where), places=places)


def _marks(settings: RunSettings) -> dict[str, Any]:
    """What tells a contender from others of its name: its settings, and a digest of all but seed and staleness."""
    return {
        "settings": dict(settings.rule.settings),
        "fingerprint": replace(settings, seed=0, staleness="").identity[:16],
    }


@dataclass(frozen=True)
class Outcome:
    """What became of a grid."""

    made: int
    skipped: int  # they were finished already
    failed: tuple[tuple[str, str], ...]  # (run, sentence)
    places: Mapping[str, set[tuple[str, str]]] = field(default_factory=dict)  # experiment -> its (task, rule)


def make(
    runs: Iterable[RunSettings | Wanted],
    out: Path,
    *,
    engine: str = "local",
    jobs: int = 1,
    workers: int | None = None,
    address: str | None = None,
    display: Display | None = None,
) -> Outcome:
    """Make every run that is not finished, each once; a run that fails does not stop the others.

    On Ray runs go side by side; with `workers` one after the other, each spread over so many workers.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if jobs < 1:
        raise UserError(f"jobs = {jobs}: give at least 1.")
    if engine == "local":
        for name, value in (("workers", workers), ("address", address)):
            if value is not None:
                raise UserError(f"{name} = {value!r} is for engine 'ray': give that too, or leave {name} out.")
    by_name = {one.name: one for one in map(described, runs)}
    one_kind({(one.device_kind, one.precision) for one in by_name.values()}, "these runs")
    files.make_folder(out / "runs")
    store, display = Store(out), display or Display()
    missing = {name: one for name, one in by_name.items() if not store.finished(name)}
    for name in by_name.keys() - missing.keys():
        tidy(out / "runs" / name)  # nothing to do for a packed one
    display.begin(len(by_name), len(by_name) - len(missing))
    try:
        if engine == "ray" and workers is None:
            from kasync.experiments.ray_engine import make_all

            by_settings = {name: one.settings for name, one in missing.items() if one.settings is not None}
            failed = make_all(by_settings, out, display, jobs, address)
        else:
            spread = {} if workers is None else {"engine": engine, "workers": workers, "address": address}
            failed = make_local(missing, out, display, jobs, spread)
    finally:
        display.end()
    return Outcome(len(missing) - len(failed), len(by_name) - len(missing), tuple(failed))


def make_local(
    runs: Mapping[str, Wanted], out: Path, display: Display, jobs: int, spread: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """On the CPU one after the other, since a run uses all cores; on a GPU `jobs` at once, stacked where alike."""
    on_gpu = any(one.device.startswith("cuda") for one in runs.values())
    rounded = any(one.precision == "tf32" for one in runs.values())  # PyTorch's switch is the process's
    lanes = min(LANES, jobs) if on_gpu and not rounded and not spread else 1
    most = jobs // lanes if on_gpu and not spread else 1
    failed: list[tuple[str, str]] = []
    stop = threading.Event()

    def attempt(stack: Mapping[str, Wanted]) -> None:
        try:
            if not stop.is_set():
                _make_stack(stack, out, display, stop, spread)
        except Stopped:
            return
        except Exception as problem:
            if len(stack) > 1:  # one of them is at fault, and the others need not fail with it
                for name, one in stack.items():
                    attempt({name: one})
                return
            (name,) = stack
            failed.append((name, reason(problem, out / "runs" / name)))
            display.failed(*failed[-1])

    if lanes == 1:
        for stack in stacks(runs, most):
            attempt(stack)
        return failed
    with ThreadPoolExecutor(lanes, initializer=_own_stream) as pool:
        waiting = [pool.submit(attempt, stack) for stack in stacks(runs, most)]
        try:
            for each in waiting:
                while wait([each], timeout=0.2).not_done:  # in short waits, so that Ctrl-C is heard
                    pass
                each.result()
        except BaseException:
            stop.set()
            raise
    return failed


def _own_stream() -> None:
    """A CUDA stream for this thread alone, so that small steps of several runs overlap."""
    torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def _make_stack(
    stack: Mapping[str, Wanted], out: Path, display: Display, stop: threading.Event, spread: Mapping[str, Any]
) -> None:
    """Several runs as one, or one by itself."""
    for name, one in stack.items():
        display.start(name, one.steps)
    (first, one), *others = stack.items()
    try:
        if not others:
            watch = Watch(tell=lambda record: display.step(first, record), stop=stop.is_set)
            summaries = [run(one, out / "runs" / first, watch, spread=spread)]
        else:
            folders = [(each, out / "runs" / name) for name, each in stack.items()]
            share = STACKED / LANES
            summaries = run_together(folders, lambda f, record: display.step(f.name, record), stop.is_set, share)
        for name in stack:
            (out / "runs" / name / "error.txt").unlink(missing_ok=True)
    finally:
        if one.device_kind == "cuda":
            _tidy(one.device)
    for name, summary in zip(stack, summaries, strict=True):
        display.done(name, summary)


def reason(problem: Exception, folder: Path) -> str:
    """A sentence; what nobody foresaw (a GPU that is full, a fault of ours) leaves its traceback beside the run."""
    if isinstance(problem, UserError):
        return str(problem)
    files.make_folder(folder)
    files.write(folder / "error.txt", "".join(traceback.format_exception(problem)))
    first = str(problem).strip().partition("\n")[0]
    return f"{type(problem).__name__}: {first} (see {folder / 'error.txt'})"


def _tidy(device: str) -> None:
    """Give a finished run's memory back once little is left: the next run asks the driver how much there is."""
    free, total = torch.cuda.mem_get_info(device)
    if free < total / 2:
        gc.collect()
        torch.cuda.empty_cache()


def stacks(runs: Mapping[str, Wanted], most: int) -> Iterator[dict[str, Wanted]]:
    """The runs in stacks of at most `most`, in the order they were asked for; a run alone is a stack of one."""
    groups: dict[str, list[str]] = {}
    for name, one in runs.items():
        groups.setdefault(one.alike or name, []).append(name)
    for names in groups.values():
        for start in range(0, len(names), most):
            yield {name: runs[name] for name in names[start : start + most]}
