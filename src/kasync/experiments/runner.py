"""How does one run become one folder, whatever interrupts it? docs/results-format.md says what is in it."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kasync
from kasync import checkpoint, lock, timelines
from kasync.errors import UserError
from kasync.experiments import files, metrics, tally, toml
from kasync.experiments.arrivals import timeline_of
from kasync.experiments.build import Ready, ready
from kasync.experiments.resolve import NO_RULE
from kasync.experiments.settings import ELSEWHERE, RunSettings
from kasync.experiments.story import Story, csv_text
from kasync.simulator import Record, Simulation, simulate
from kasync.timelines import Timeline

CHECKPOINT = "checkpoint.safetensors"
LIVE_SECONDS = 1.0  # between two writings of metrics.csv while a run goes on


class Stopped(Exception):
    """The run was asked to stop; its folder can be continued."""


@dataclass
class Watch:
    """What the caller wants to hear and say while a run goes on."""

    tell: Callable[[Record], None] = lambda record: None
    stop: Callable[[], bool] = lambda: False


def run(
    settings: RunSettings,
    folder: Path,
    watch: Watch | None = None,
    *,
    keep_model: bool = False,
    checkpoint_every: float = 30.0,
) -> dict[str, Any]:
    """Make the run in the folder, or continue it, or return the summary of a finished one."""
    settings = settings.resolved()
    files.make_folder(folder)
    with lock.held(folder):
        stored = _stored(settings, folder)
        if finished(folder):
            _forget_checkpoint(folder)  # it was killed just before its end
            return files.read_json(folder / "summary.json")
        if settings.rule.kind == NO_RULE:
            return _only_timeline(settings, folder)
        began = time.monotonic()
        parts = ready(settings)
        simulation = _simulation(settings, parts, folder, stored, checkpoint_every)
        _describe(settings, folder, parts.data.source, simulation.memory.hold)
        story = _follow(settings, simulation, folder, watch or Watch())
        summary = _finish(folder, parts, story, time.monotonic() - began, simulation)
        if keep_model:
            files.write_arrays(folder / "final.npz", {"params": simulation.params.cpu().numpy()})
        files.write_json(folder / "summary.json", summary)
        _forget_checkpoint(folder)
        return summary


def finished(folder: Path) -> bool:
    """Whether the run of this folder is complete."""
    return (folder / "summary.json").exists()


def tidy(folder: Path) -> None:
    """Clear away what a life that was killed between its last file and its end left in the folder of a finished run."""
    left = (path.name for path in folder.iterdir())
    if any(name in (CHECKPOINT, lock.NAME) or name.endswith((".part", ".tmp")) for name in left):
        with suppress(UserError), lock.held(folder):  # in use: its holder is about to do the same
            _forget_checkpoint(folder)


def _forget_checkpoint(folder: Path) -> None:
    (folder / CHECKPOINT).unlink(missing_ok=True)
    checkpoint.clear(folder, re.escape(CHECKPOINT))


def _stored(settings: RunSettings, folder: Path) -> dict[str, Any]:
    """What an earlier sitting wrote about itself; a folder of another run is refused."""
    path = folder / "run.toml"
    if not path.exists():
        return {}
    table = toml.read(path)
    if RunSettings.read(path).identity != settings.identity:
        ours = settings.table()
        differs = [name for name in ours if table.get(name) != ours[name] and name not in ELSEWHERE]
        raise UserError(
            f"{folder} holds a run with other settings ({', '.join(differs) or 'unlike these'}): "
            f"choose another folder with --out."
        )
    return table.get("made", {})


def _simulation(
    settings: RunSettings, parts: Ready, folder: Path, stored: dict[str, Any], checkpoint_every: float
) -> Simulation:
    """Ready to go on; the way of holding staleness stays what it was, since a checkpoint holds the one or the other."""
    hold = stored.get("hold", settings.hold) if (folder / CHECKPOINT).exists() else settings.hold
    return simulate(
        parts.model,
        parts.data,
        parts.rule,
        parts.timeline,
        parts.work,
        seed=settings.seed,
        device=settings.device,
        hold=hold,
        staleness=settings.staleness,
        evaluate_every=settings.evaluate_every,
        faults=parts.faults,
        checkpoint=folder / CHECKPOINT if _can_checkpoint() else None,
        checkpoint_every=checkpoint_every,
    )


def _can_checkpoint() -> bool:
    from importlib.util import find_spec

    return find_spec("safetensors") is not None


def _follow(settings: RunSettings, simulation: Simulation, folder: Path, watch: Watch) -> Story:
    """Loop over the run; metrics.csv grows meanwhile."""
    story, written = Story(), 0.0
    for record in simulation:
        is_evaluation = record.step % settings.evaluate_every == 0 or record.step == settings.steps
        story.add(record, is_evaluation)
        if is_evaluation and time.monotonic() - written > LIVE_SECONDS:
            files.write(folder / "metrics.csv", csv_text(story.rows))
            written = time.monotonic()
        watch.tell(record)
        if watch.stop():
            raise Stopped
    files.write(folder / "metrics.csv", csv_text(story.rows))
    return story


def _finish(folder: Path, parts: Ready, story: Story, seconds: float, simulation: Simulation) -> dict[str, Any]:
    columns = tally.table(story.records)
    files.write_arrays(folder / "steps.npz", tally.tally(columns, parts.data))
    last, data = story.rows[-1], parts.data
    return {
        "format": "kasync summary",
        "version": 1,
        **metrics.summary(story.rows, columns["weights"], columns["staleness"], columns["stage"]),
        "dropped": int(columns["dropped"].sum()),
        "skipped": int(columns["skipped"].sum()),
        "diverged": last["test_loss"] is None or not np.isfinite(last["test_loss"]),
        "timeline": asdict(parts.timeline.summary()),
        "data": {
            "name": data.name,
            "source": data.source,
            "clients": data.clients,
            "samples": len(data.indices),
            "classes": data.classes,
            "test_samples": len(data.test.labels),
        },
        "seconds": round(seconds, 3),
        "steps_per_second": round(len(story.records) / max(seconds, 1e-9), 3),
        "memory": str(simulation.memory),
    }


def _only_timeline(settings: RunSettings, folder: Path) -> dict[str, Any]:
    """No rule: the timeline is made and measured."""
    began = time.monotonic()
    timeline = timeline_of(settings)
    arrays = tally.held(timeline)
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
    if settings.arrivals.kind == "file":
        timeline = timeline_of(settings)
        settings = _beside(settings, folder, timeline)
    made = {
        "kasync": kasync.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device_words(settings.device),
        "source": source,
        "hold": hold,
    }
    files.write(folder / "run.toml", toml.dumps(settings.table() | {"made": made}))


def _beside(settings: RunSettings, folder: Path, timeline: Timeline) -> RunSettings:
    whole = timelines.load(settings.arrivals.settings["path"])
    timelines.save(whole, folder / "timeline.npz")
    return replace(settings, arrivals=settings.arrivals.having(path="timeline.npz"))


def device_words(device: str) -> str:
    """The device as a person names it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"
