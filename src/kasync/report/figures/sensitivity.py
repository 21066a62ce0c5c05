"""How much does the learning rate matter? Accuracy against the rate as a multiple of each rule's own."""

from __future__ import annotations

from typing import Any

from kasync.report.figures.canvas import draw_means, legend, panels, point_style
from kasync.report.look import looks
from kasync.report.rates import FOLD, sweeps
from kasync.report.results import Experiment


def sensitivity(experiment: Experiment) -> Any | None:
    """A panel for each task, the first rule drawn on top; None while nothing is finished."""
    found = list(sweeps(experiment))
    if not found:
        return None
    tasks = [task for task in experiment.tasks if any(sweep.task is task for sweep in found)]
    rules = list(dict.fromkeys(sweep.rule for sweep in found))
    look = looks(rules)
    figure, axes = panels(1, len(tasks), width=5.2, height=4.2, share_heights=True)
    for panel, task in zip(axes[0], tasks, strict=True):
        panel.axvspan(FOLD**-0.5, FOLD**0.5, color="#000000", alpha=0.05, linewidth=0, label=f"{FOLD:g}-fold range")
        for sweep in (sweep for sweep in found if sweep.task is task):
            style = point_style(look[sweep.rule.label], ours=sweep.rule == rules[0])
            draw_means(panel, sweep.factors, sweep.accuracies, sweep.rule.title, style)
        panel.set_xscale("log")
        panel.set_title(task.title, fontsize=9)
        panel.set_xlabel("learning rate / the rule's own", fontsize=9)
    axes[0, 0].set_ylabel("final accuracy", fontsize=9)
    low, high = axes[0, 0].get_ylim()
    axes[0, 0].set_ylim(max(low, 0.0), min(high, 1.0))
    legend(figure, axes)
    return figure
