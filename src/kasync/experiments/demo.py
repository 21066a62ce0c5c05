"""What does a newcomer see first? Five rules on a thousand clients with one label each, a table and a picture."""

from __future__ import annotations

import csv
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kasync.errors import UserError
from kasync.experiments import catalogue, reproduce
from kasync.experiments.display import Display

FILE = Path(__file__).parent / "demo.toml"


@dataclass(frozen=True)
class Done:
    """What the demo made."""

    title: str
    rows: list[dict[str, Any]]
    picture: Path | None
    why: str = ""  # there is no picture


def demo(out: Path, display: Display | None = None, steps: int | None = None) -> Done:
    """Run it, or show what an earlier one made."""
    one = catalogue.read(FILE)
    overrides = {} if steps is None else {"steps": steps}
    planned = reproduce.Plan("quick", [(one, one.cells("quick", overrides=overrides))])
    outcome = reproduce.carry_out(planned, out, display=display)
    if outcome.failed:
        raise UserError(f"the demo's run {outcome.failed[0][0]} failed: {outcome.failed[0][1]}")
    rows = [
        {
            "rule": one.variant(row["rule"]).title,
            "final_accuracy": row.get("final_accuracy"),
            "stability": row.get("stability"),
            "average_staleness": row.get("average_staleness"),
        }
        for row in reproduce.rows(planned, out)
    ]
    curves = {one.variant(cell.rule).title: _curve(out / "runs" / cell.settings.name) for cell in planned.cells}
    task = one.tasks_at("quick")[0]
    title = f"{task.title}: {planned.cells[0].settings.steps:,} steps, true staleness"
    try:
        return Done(title, rows, picture(curves, title, out / "demo.png"))
    except ImportError:
        return Done(title, rows, None, "it needs matplotlib: pip install 'kasync[plot]'")


def picture(curves: dict[str, tuple[list[int], list[float]]], title: str, path: Path) -> Path:
    """Accuracy against steps, one line for each rule."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    styles = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))]  # told apart without colours, too
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"]  # Okabe and Ito's
    for place, (name, (steps, accuracies)) in enumerate(curves.items()):
        axes.plot(steps, accuracies, label=name, linestyle=styles[place % 5], color=colours[place % 5], linewidth=1.4)
    axes.set(xlabel="server steps", ylabel="test accuracy", ylim=(0, 1))
    axes.set_title("\n".join(textwrap.wrap(title, 70)), fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=9)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _curve(run: Path) -> tuple[list[int], list[float]]:
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["accuracy"]]
    return [int(row["step"]) for row in rows], [float(row["accuracy"]) for row in rows]
