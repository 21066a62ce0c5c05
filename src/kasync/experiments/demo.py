"""The demo: a server that waits for everybody beside three that do not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kasync.errors import UserError
from kasync.experiments import experiment, grid
from kasync.experiments.display import Display
from kasync.experiments.experiment import Experiment

FILE = Path(__file__).parent / "demo.toml"


@dataclass(frozen=True)
class Done:
    """What the demo made."""

    experiment: Experiment
    title: str


def demo(out: Path, display: Display | None = None, steps: int | None = None) -> Done:
    """Run it, or show what an earlier one made."""
    one = experiment.read(FILE)
    planned = grid.Plan([(one, one.cells(overrides={} if steps is None else {"steps": steps}))])
    outcome = grid.carry_out(planned, out, display=display)
    if outcome.failed:
        raise UserError(f"the demo's run {outcome.failed[0][0]} failed: {outcome.failed[0][1]}")
    return Done(one, one.tasks[0].title)
