"""How does accuracy grow? Figures 5 to 11: a panel for each task, a row for each semantics, bands for the intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kasync.report.figures.canvas import legend, line_style, panels
from kasync.report.intervals import FEW, LEVEL
from kasync.report.look import looks
from kasync.report.results import Experiment, Task
from kasync.report.series import Band, evaluations
from kasync.report.tables import WORDS

WIDE, NARROW = 6, 3  # panels in a row, at most; how many where there are more
BAND, RANGE = f"{LEVEL:.0%} interval over seeds", "range of the seeds"


def curves(experiment: Experiment, tasks: Sequence[Task]) -> Any | None:
    """Test accuracy against steps, a row of panels for each semantics; None while nothing has been evaluated."""
    ways = experiment.semantics
    look = looks(experiment.rules)
    shown = [(way, task) for way in ways for task in tasks]
    columns = len(tasks) if len(tasks) <= WIDE else NARROW
    rows = -(-len(shown) // columns)
    figure, axes = panels(rows, columns)
    drawn = 0
    for place, (panel, (way, task)) in enumerate(zip(axes.flat, shown, strict=False)):
        for line in experiment.beside(task, way):
            band = evaluations(line, "accuracy")
            if band is not None:
                style = line_style(look[line.rule.label], len(band.x))
                draw_band(panel, band, style, line.rule.title)
                drawn += 1
        panel.set_title(task.title if len(ways) == 1 else f"{task.title}\n{WORDS[way]}", fontsize=9)
        if place >= len(shown) - columns:
            panel.set_xlabel("step", fontsize=9)
        if place % columns == 0:
            panel.set_ylabel("test accuracy", fontsize=9)
    for panel in axes.flat[len(shown) :]:
        panel.set_visible(False)
    _share_heights(axes)
    axes[0, 0].fill_between([], [], [], color="#555555", alpha=0.25, linewidth=0, label=band_words(experiment))
    legend(figure, axes)
    return figure if drawn else None


def band_words(experiment: Experiment) -> str:
    """What the shade means."""
    return BAND if max(len(line.runs) for line in experiment.lines) >= FEW else RANGE


def draw_band(panel: Any, band: Band, style: dict[str, Any], label: str) -> None:
    """The mean as a line, its interval as a band."""
    panel.plot(band.x, band.mean, label=label, **style)
    panel.fill_between(band.x, band.low, band.high, color=style["color"], alpha=0.16, linewidth=0)


def _share_heights(axes: Any) -> None:
    """One range for all panels, between 0 and 1: a wide interval of few seeds must not squeeze the curves."""
    means = [value for panel in axes.flat for line in panel.lines for value in line.get_ydata() if value == value]
    if means:
        spread = max(max(means) - min(means), 0.02)
        for panel in axes.flat:
            panel.set_ylim(max(0.0, min(means) - 0.06 * spread), min(1.0, max(means) + 0.06 * spread))
