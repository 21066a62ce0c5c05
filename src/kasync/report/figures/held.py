"""How stale are the models that clients hold? Appendix D: the mean over time, and the least it can be."""

from __future__ import annotations

from typing import Any

from kasync.report.figures.canvas import legend, line_style, panels
from kasync.report.figures.curves import draw_band
from kasync.report.look import looks
from kasync.report.results import Experiment
from kasync.report.series import during


def held(experiment: Experiment) -> Any | None:
    """A panel for each task, or None while nothing is finished."""
    look = looks(experiment.rules)
    figure, axes = panels(1, len(experiment.tasks))
    drawn = 0
    for panel, task in zip(axes[0], experiment.tasks, strict=True):
        for line in (line for line in experiment.lines if line.task is task):
            band = during(line, "held")
            if band is None:
                continue
            style = line_style(look[line.rule.label], len(band.x))
            draw_band(panel, band, style, line.rule.title)
            drawn += 1
        bounds = [run.summary["bound"] for line in experiment.lines if line.task is task for run in line.finished]
        if bounds:
            panel.axhline(bounds[0], color="black", linewidth=1.2, label="least mean by Appendix D")
        panel.set_title(task.title, fontsize=9)
        panel.set_xlabel("step", fontsize=9)
        panel.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("mean staleness held, from 1", fontsize=9)
    legend(figure, axes)
    return figure if drawn else None
