"""One run, one folder, whatever interrupts it; docs/results-format.md says what is in it."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kasync
from kasync import checkpoint, files, lock, timelines
from kasync.errors import UserError
from kasync.experiments import metrics
from kasync.experiments.build import Ready, ready, timeline_of
from kasync.experiments.metrics import rows_of, told
from kasync.experiments.settings import ELSEWHERE, NO_RULE, RunSettings, facts_of
from kasync.simulator import Record, Simulation, together

CHECKPOINT = "checkpoint.safetensors"
MAY_DIFFER = ("seed", "staleness", "validation", "partition", "arrivals", "data")  # between runs of one stack
LIVE_SECONDS = 1.0  # between two writings of metrics.csv while a run goes on


class Stopped(Exception):
    """The run was asked to stop; its folder can be continued."""


@dataclass
class Watch:
    """What the caller wants to hear and say while a run goes on."""

    tell: Callable[[Record], None] = lambda record: None
    stop: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda words: None


@dataclass(frozen=True, eq=False)
class Opened:
    """A run that is ready to go on in its folder; it ends after `accepted` steps that took something, if not 0."""

    folder: Path
    parts: Ready
    simulation: Simulation
    accepted: int = 0


@dataclass(frozen=True, eq=False)
class Wanted:
    """A run that somebody described, by settings or by values of Python.

    name    of its folder among others
    table   its settings, as run.toml has them
    ready   makes its parts
    alike   equal for runs that may be stacked; None for one that cannot be
    """

    name: str
    table: Mapping[str, Any]
    ready: Callable[[], Ready]
    alike: str | None
    settings: RunSettings | None = None  # where they describe it

    @property
    def steps(self) -> int:
        return int(self.table["steps"])

    @property
    def device(self) -> str:
        return str(self.table["device"])

    @property
    def device_kind(self) -> str:
        return self.device.partition(":")[0]

    @property
    def precision(self) -> str:
        return str(self.table["precision"])


def run(
    wanted: RunSettings | Wanted,
    folder: Path,
    watch: Watch | None = None,
    *,
    keep_model: bool = False,
    checkpoint_every: float = 30.0,
    spread: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the run in the folder, or continue it, or return the summary of a finished one.

    `spread` has what kasync.simulate takes to compute clients' work on a cluster: engine, workers, address.
    """
    one = described(wanted.resolved() if isinstance(wanted, RunSettings) else wanted)
    watch, new = watch or Watch(), not folder.exists()
    files.make_folder(folder)
    try:
        with lock.held(folder):
            begun = _begun(one, folder)
            if finished(folder):
                _forget_checkpoint(folder)  # it was killed just before its end
                done: dict[str, Any] = files.read_json(folder / "summary.json")
                return done
            if begun and not (folder / CHECKPOINT).exists():
                watch.say(f"{folder} was begun and has no checkpoint yet: it starts over.")
            opened = _open(one, folder, begun, checkpoint_every, spread or {})
            return opened if isinstance(opened, dict) else closed(opened, follow(opened, watch), keep_model)
    except UserError:
        with suppress(OSError):  # it is not empty: something began
            if new:
                folder.rmdir()
        raise


def run_together(
    wanted: Sequence[tuple[RunSettings | Wanted, Path]],
    tell: Callable[[Path, Record], None] = lambda folder, record: None,
    stop: Callable[[], bool] = lambda: False,
    share: float = 1.0,
) -> list[dict[str, Any]]:
    """Make runs that can be stacked as one, or as few as fit into this share of the device's memory."""
    summaries: list[dict[str, Any]] = []
    while len(summaries) < len(wanted):
        with ExitStack() as locks:
            opened, room = [], None
            for one, folder in wanted[len(summaries) :]:
                files.make_folder(folder)
                locks.enter_context(lock.held(folder))
                _begun(described(one), folder)
                ready_to_go = _open(described(one), folder, {}, None, {})
                assert isinstance(ready_to_go, Opened), "a run that trains nothing is never alike"
                opened.append(ready_to_go)
                memory = ready_to_go.simulation.memory
                room = (share * memory.capacity if room is None else room) - memory.own
                if room < memory.own:
                    break
            began = time.monotonic()
            for _ in together([each.simulation for each in opened]):
                for each in opened:
                    tell(each.folder, each.simulation.latest)
                if stop():
                    raise Stopped
            seconds = (time.monotonic() - began) / len(opened)
            summaries += [closed(each, seconds, False, len(opened)) for each in opened]
    return summaries


def finished(folder: Path) -> bool:
    """Whether the run of this folder is complete."""
    return (folder / "summary.json").exists()


def tidy(folder: Path) -> None:
    """Clear away what a life that was killed between its last file and its end left in the folder of a finished run."""
    left = (path.name for path in folder.glob("*"))
    if any(name in (CHECKPOINT, lock.NAME) or name.endswith((".part", ".tmp")) for name in left):
        with suppress(UserError), lock.held(folder):  # in use: its holder is about to do the same
            _forget_checkpoint(folder)


def _forget_checkpoint(folder: Path) -> None:
    (folder / CHECKPOINT).unlink(missing_ok=True)
    checkpoint.clear(folder, re.escape(CHECKPOINT))


# ---- from a description to a run that is ready to go on


def described(run: RunSettings | Wanted) -> Wanted:
    """A run as its resolved settings describe it, or as somebody described it already."""
    if isinstance(run, Wanted):
        return run
    return Wanted(run.name, run.table(), partial(ready, run), _alike(run), run)


def _alike(settings: RunSettings) -> str | None:
    """Runs that differ in what arrives and in the learning rate, and in nothing else, can be stacked."""
    rule, simple = settings.rule, settings.optimizer in ("none", "plain", "muon")
    plain = settings.work.kind == "gradient" and simple and settings.hold != "versions"
    if not plain or settings.faults or settings.accepted or rule.kind == NO_RULE or not facts_of(rule.kind).stackable:
        return None
    kept = {name: value for name, value in settings.table().items() if name not in MAY_DIFFER}
    kept["rule"] = {name: value for name, value in rule.table().items() if name != "lr"}
    return json.dumps(kept, sort_keys=True, default=str)


def _begun(wanted: Wanted, folder: Path) -> dict[str, Any]:
    """What an earlier sitting wrote about itself; a folder of a run with other settings is refused."""
    path = folder / "run.toml"
    if not path.exists():
        return {}
    table, settings = files.read_toml(path), wanted.settings
    if settings is not None and RunSettings.read(path).identity != settings.identity:
        ours = settings.table()
        differs = [name for name in ours if table.get(name) != ours[name] and name not in ELSEWHERE]
        raise UserError(
            f"{folder} holds a run with other settings ({', '.join(differs) or 'unlike these'}): "
            f"choose another folder with --out."
        )
    made: dict[str, Any] = table.get("made", {})
    return made


def _open(
    wanted: Wanted,
    folder: Path,
    begun: Mapping[str, Any],
    checkpoint_every: float | None,
    spread: Mapping[str, Any],
) -> Opened | dict[str, Any]:
    """The run ready to go on, or the summary of one that trains nothing.

    The way of holding staleness stays what it was, since a checkpoint holds the one or the other.
    """
    settings = wanted.settings
    if settings is not None:
        if settings.rule.kind == NO_RULE:
            return _only_timeline(wanted, settings, folder)
        torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
    parts, options = wanted.ready(), dict(spread)
    if checkpoint_every is not None:
        options |= {"checkpoint": folder / CHECKPOINT, "checkpoint_every": checkpoint_every}
        if (folder / CHECKPOINT).exists():
            options["hold"] = begun.get("hold", parts.options["hold"])
    simulation = parts.simulation(**options)
    _describe(wanted, folder, parts.data.source, simulation.memory.hold)
    return Opened(folder, parts, simulation, settings.accepted if settings else 0)


# ---- what a run leaves behind


def follow(opened: Opened, watch: Watch) -> float:
    """Loop over the run while metrics.csv grows; the seconds it took."""
    began, written, taken = time.monotonic(), 0.0, 0
    for record in opened.simulation:
        taken += bool((record.weights > 0).any())
        if record.test_loss is not None and time.monotonic() - written > LIVE_SECONDS:
            files.write(opened.folder / "metrics.csv", files.csv_text(rows_of(told(opened.simulation))))
            written = time.monotonic()
        watch.tell(record)
        if watch.stop():
            raise Stopped
        if 0 < opened.accepted <= taken and record.test_loss is not None:
            break
    return time.monotonic() - began


def closed(opened: Opened, seconds: float, keep_model: bool, stacked: int = 1) -> dict[str, Any]:
    """Write what a finished run leaves behind; the summary last, since it says that the run is finished."""
    folder, simulation, data = opened.folder, opened.simulation, opened.parts.data
    columns = told(simulation)
    rows = rows_of(columns)
    files.write(folder / "metrics.csv", files.csv_text(rows))
    files.write_arrays(folder / "steps.npz", metrics.tally(columns, data))
    summary = {
        "format": "kasync summary",
        "version": 1,
        **metrics.summary(rows, columns["weights"], columns["staleness"], columns["stage"]),
        "dropped": int(columns["dropped"].sum()),
        "skipped": int(columns["skipped"].sum()),
        "diverged": not np.isfinite(rows[-1]["test_loss"]),
        "timeline": asdict(opened.parts.timeline.head(simulation.done).summary()),
        "data": {
            "name": data.name,
            "source": data.source,
            "clients": data.clients,
            "samples": len(data.indices),
            "classes": data.classes,
            "test_samples": len(data.test),
        },
        "seconds": round(seconds, 3),
        "steps_per_second": round(simulation.done / max(seconds, 1e-9), 3),
        "stacked": stacked,
        "memory": str(simulation.memory),
    }
    if keep_model:
        files.write_arrays(folder / "final.npz", {"params": simulation.params.cpu().numpy()})
    files.write_json(folder / "summary.json", summary)
    _forget_checkpoint(folder)
    return summary


def _only_timeline(wanted: Wanted, settings: RunSettings, folder: Path) -> dict[str, Any]:
    """No rule: the timeline is made and measured."""
    began = time.monotonic()
    timeline = timeline_of(settings)
    arrays = metrics.held(timeline)
    round_steps = settings.clients // settings.k  # Appendix D speaks of the time after these
    settled = timelines.held_staleness(timeline)[round_steps:] + 1.0
    files.write_arrays(folder / "steps.npz", arrays)
    _describe(wanted, folder, "no data: only the timeline is made", "")
    summary = {
        "format": "kasync summary",
        "version": 1,
        "bound": timelines.staleness_bound(settings.clients, settings.k),
        "held": float(settled.mean()) if len(settled) else None,
        "least_held": float(settled.min()) if len(settled) else None,
        "delivered": float(timeline.staleness[round_steps:].mean() + 1.0) if len(settled) > 1 else None,
        "timeline": asdict(timeline.summary()),
        "seconds": round(time.monotonic() - began, 3),
    }
    files.write_json(folder / "summary.json", summary)
    return summary


def _describe(wanted: Wanted, folder: Path, source: str, hold: str) -> None:
    """run.toml: the settings and what the run was made with; a timeline from a file is kept beside it."""
    table, settings, cuda = dict(wanted.table), wanted.settings, wanted.device_kind == "cuda"
    if settings is not None and settings.arrivals.kind == "file":
        timelines.save(timelines.load(settings.arrivals.settings["path"]), folder / "timeline.npz")
        table["arrivals"] = settings.arrivals.having(path="timeline.npz").table()
    table["made"] = {
        "kasync": kasync.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(wanted.device) if cuda else f"CPU, {torch.get_num_threads()} threads",
        "source": source,
        "hold": hold,
    }
    files.write(folder / "run.toml", files.toml_text(table))
