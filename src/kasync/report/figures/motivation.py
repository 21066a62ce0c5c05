"""Do few gradients decide? Figure 2: predominant gradients per step, and staleness against the number that count."""

from __future__ import annotations

from typing import Any

import numpy as np

from kasync.report.figures.canvas import MARKER, legend, panels
from kasync.report.intervals import bands
from kasync.report.look import Look, looks
from kasync.report.results import Experiment, Line
from kasync.report.series import counts


def motivation(experiment: Experiment) -> Any | None:
    """A row of two panels for each semantics and task, or None while nothing is finished."""
    rows = [(task, way) for way in experiment.semantics for task in experiment.tasks]
    look = looks(experiment.rules)
    figure, axes = panels(len(rows), 2)
    drawn = 0
    for (histogram, scatter), (task, way) in zip(axes, rows, strict=True):
        lines = [line for line in experiment.beside(task, way) if line.finished]
        for place, line in enumerate(lines):
            _histogram(histogram, line, look[line.rule.label], place, len(lines))
            _scatter(scatter, line, look[line.rule.label])
        drawn += len(lines)
        histogram.set_title(f"{task.title}\n(a) gradients with a weight above 0.1", fontsize=9)
        histogram.set_xlabel("number of predominant gradients", fontsize=9)
        histogram.set_ylabel("share of steps", fontsize=9)
        scatter.set_title(f"{task.title}\n(b) how stale are those that count", fontsize=9)
        scatter.set_xlabel("average number of aggregated gradients, $N_{ave}(\\mu)$", fontsize=9)
        scatter.set_ylabel("their average staleness", fontsize=9)
        scatter.set_xlim(left=0)
        scatter.set_ylim(bottom=0)
    legend(figure, axes)
    return figure if drawn else None


def _histogram(panel: Any, line: Line, look: Look, place: int, lines: int) -> None:
    shares = counts(line, "predominant_count")  # [k + 1]
    if shares is None:
        return
    top = int(np.flatnonzero(shares > 0)[-1]) + 2
    width = 0.8 / lines
    x = np.arange(len(shares)) - 0.4 + width * (place + 0.5)
    panel.bar(
        x[:top], shares[:top], width, color=look.colour, hatch=("", "///", "...", "xx")[place % 4], edgecolor="white"
    )
    panel.set_xticks(np.arange(max(top, round(panel.get_xlim()[1]))))


def _scatter(panel: Any, line: Line, look: Look) -> None:
    """A point for each seed and mu, and the line through the means."""
    rows = [run.summary["aggregated"] for run in line.finished]
    number = np.array([[row["number"] for row in run] for run in rows])  # [seeds, mus]
    stale = np.array([[row["staleness"] for row in run] for run in rows])  # [seeds, mus]
    panel.scatter(number, stale, s=14, color=look.colour, alpha=0.45, linewidths=0)
    style = {"color": look.colour, "marker": MARKER[look.marker], "markersize": 5, "linewidth": 1.4}
    panel.plot(bands(number)[0], bands(stale)[0], label=line.rule.title, **style)
    last = -np.inf
    for mu, x, y in zip([row["mu"] for row in rows[0]], number.mean(0), stale.mean(0), strict=True):
        if x - last > 0.05 * number.max():  # two labels at one place could not be read
            text = f"$\\mu$ = {mu:g}"
            panel.annotate(text, (x, y), (4, -9), textcoords="offset points", fontsize=7, color=look.colour)
            last = x
