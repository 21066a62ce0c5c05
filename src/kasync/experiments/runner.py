"""One run, one folder, whatever interrupts it; docs/results-format.md says what is in it."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kasync
from kasync import checkpoint, files, lock, timelines
from kasync.errors import UserError
from kasync.experiments import metrics
from kasync.experiments.build import Ready, ready, simulation, timeline_of
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

    alike   equal for runs that may be stacked; None for one that cannot be
    open    folder, what it says of itself, seconds between checkpoints, how work is spread -> ready to go on;
            or the summary of a run that trains nothing
    begun   folder -> what an earlier sitting wrote about itself; a folder of another run is refused
    """

    steps: int
    device: str
    precision: str
    alike: str | None
    open: Callable[[Path, Mapping[str, Any], float | None, Mapping[str, Any]], Opened | dict[str, Any]]
    begun: Callable[[Path], dict[str, Any]] = lambda folder: {}


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
    one, watch, new = of(wanted), watch or Watch(), not folder.exists()
    files.make_folder(folder)
    try:
        with lock.held(folder):
            begun = one.begun(folder)
            if finished(folder):
                _forget_checkpoint(folder)  # it was killed just before its end
                done: dict[str, Any] = files.read_json(folder / "summary.json")
                return done
            if begun and not (folder / CHECKPOINT).exists():
                watch.say(f"{folder} was begun and has no checkpoint yet: it starts over.")
            opened = one.open(folder, begun, checkpoint_every, spread or {})
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
                of(one).begun(folder)
                ready_to_go = of(one).open(folder, {}, None, {})
                assert isinstance(ready_to_go, Opened), "a run that trains nothing is never alike"
                opened.append(ready_to_go)
                memory = ready_to_go.simulation.memory
                room = (share * memory.capacity if room is None else room) - memory.own
                if room < memory.own:
                    break
            summaries += _stacked(opened, tell, stop)
    return summaries


def _stacked(
    opened: Sequence[Opened], tell: Callable[[Path, Record], None], stop: Callable[[], bool]
) -> list[dict[str, Any]]:
    """Make these runs as one stack; what they leave behind."""
    began = time.monotonic()
    for _ in together([one.simulation for one in opened]):
        for one in opened:
            tell(one.folder, one.simulation.latest)
        if stop():
            raise Stopped
    each = (time.monotonic() - began) / len(opened)
    return [closed(one, each, False, len(opened)) for one in opened]


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


# ---- a run that settings describe


def of(wanted: RunSettings | Wanted) -> Wanted:
    return described(wanted.resolved()) if isinstance(wanted, RunSettings) else wanted


def described(settings: RunSettings) -> Wanted:
    """A run as its resolved settings describe it."""
    opens, begun = partial(_open, settings), partial(_begun, settings)
    return Wanted(settings.steps, settings.device, settings.precision, _alike(settings), opens, begun)


def _alike(settings: RunSettings) -> str | None:
    """Runs that differ in what arrives and in the learning rate, and in nothing else, can be stacked."""
    rule, simple = settings.rule, settings.optimizer in ("none", "plain", "muon")
    plain = settings.work.kind == "gradient" and simple and settings.hold != "versions"
    if not plain or settings.faults or settings.accepted or rule.kind == NO_RULE or not facts_of(rule.kind).stackable:
        return None
    kept = {name: value for name, value in settings.table().items() if name not in MAY_DIFFER}
    kept["rule"] = {name: value for name, value in rule.table().items() if name != "lr"}
    return json.dumps(kept, sort_keys=True, default=str)


def _begun(settings: RunSettings, folder: Path) -> dict[str, Any]:
    path = folder / "run.toml"
    if not path.exists():
        return {}
    table = files.read_toml(path)
    if RunSettings.read(path).identity != settings.identity:
        ours = settings.table()
        differs = [name for name in ours if table.get(name) != ours[name] and name not in ELSEWHERE]
        raise UserError(
            f"{folder} holds a run with other settings ({', '.join(differs) or 'unlike these'}): "
            f"choose another folder with --out."
        )
    made: dict[str, Any] = table.get("made", {})
    return made


def _open(
    settings: RunSettings,
    folder: Path,
    begun: Mapping[str, Any],
    checkpoint_every: float | None,
    spread: Mapping[str, Any],
) -> Opened | dict[str, Any]:
    """The way of holding staleness stays what it was, since a checkpoint holds the one or the other."""
    if settings.rule.kind == NO_RULE:
        return _only_timeline(settings, folder)
    torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
    parts, options = ready(settings), dict(spread)
    if checkpoint_every is not None:
        options |= {"checkpoint": folder / CHECKPOINT, "checkpoint_every": checkpoint_every}
        if (folder / CHECKPOINT).exists():
            options["hold"] = begun.get("hold", settings.hold)
    found = simulation(settings, parts, **options)
    _describe(settings, folder, parts.data.source, found.memory.hold)
    return Opened(folder, parts, found, settings.accepted)


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


def _only_timeline(settings: RunSettings, folder: Path) -> dict[str, Any]:
    """No rule: the timeline is made and measured."""
    began = time.monotonic()
    timeline = timeline_of(settings)
    arrays = metrics.held(timeline)
    round_steps = settings.clients // settings.k  # Appendix D speaks of the time after these
    settled = timelines.held_staleness(timeline)[round_steps:] + 1.0
    files.write_arrays(folder / "steps.npz", arrays)
    _describe(settings, folder, "no data: only the timeline is made", "")
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


def _describe(settings: RunSettings, folder: Path, source: str, hold: str) -> None:
    """run.toml: the settings and what the run was made with; a timeline from a file is kept beside it."""
    made = made_with(settings.device, source, hold)
    if settings.arrivals.kind == "file":
        timelines.save(timelines.load(settings.arrivals.settings["path"]), folder / "timeline.npz")
        settings = replace(settings, arrivals=settings.arrivals.having(path="timeline.npz"))
    files.write(folder / "run.toml", files.toml_text(settings.table() | {"made": made}))


def made_with(device: str, source: str, hold: str) -> dict[str, str]:
    """The versions, the device and the precision that a run is made with."""
    return {
        "kasync": kasync.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device_words(device),
        "source": source,
        "hold": hold,
    }


def device_words(device: str) -> str:
    """The device as a person names it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"
