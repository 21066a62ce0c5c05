"""What do staleness or few labels per client cost? Final accuracy against x, the paper's numbers hollow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kasync.report.figures.canvas import DASH, MARKER, draw_means, legend, panels
from kasync.report.look import Look, looks
from kasync.report.measures import ACCURACY, PRINTED
from kasync.report.results import Experiment, Line, Task
from kasync.report.tables import WORDS


def ladder(experiment: Experiment, tasks: Sequence[Task]) -> Any | None:
    """A panel for each semantics; None where the tasks have fewer than two values of x or nothing is finished."""
    if len({task.x for task in tasks if task.x is not None}) < 2:
        return None
    ways = experiment.semantics
    look = looks(experiment.rules)
    figure, axes = panels(1, len(ways), width=4.4, height=3.4, share_heights=True)
    places = {task.name: float(place) for place, task in enumerate(tasks)}
    drawn = 0
    for panel, way in zip(axes[0], ways, strict=True):
        rules = [rule for rule in experiment.rules if any(line.rule is rule for line in experiment.lines)]
        for number, rule in enumerate(rules):
            lines = [line for task in tasks for line in experiment.beside(task, way) if line.rule is rule]
            shift = 0.5 * ((number + 0.5) / len(rules) - 0.5)  # beside each other, so that intervals can be seen
            drawn += _draw(panel, lines, look[rule.label], places, shift)
        panel.set_xticks(list(places.values()), [f"{task.x:g}" for task in tasks])
        panel.set_xlim(-0.5, len(tasks) - 0.5)
        panel.set_xlabel(_meaning(tasks), fontsize=9)
        panel.set_title(WORDS[way], fontsize=9)
    axes[0, 0].set_ylabel("final accuracy", fontsize=9)
    low, high = axes[0, 0].get_ylim()
    axes[0, 0].set_ylim(max(low, 0.0), min(high, 1.02))  # wide intervals end where accuracies do
    if any(task.paper for task in tasks):
        axes[0, 0].errorbar([], [], marker="o", linestyle="", mfc="none", color="#555555", label="printed in the paper")
    legend(figure, axes)
    return figure if drawn else None


def _draw(panel: Any, lines: Sequence[Line], look: Look, places: dict[str, float], shift: float) -> int:
    """One rule: means with intervals joined by a line, and what is printed; how many points there were."""
    found = [(places[line.task.name] + shift, line, ACCURACY.estimate(line)) for line in lines]
    points = [(x, each) for x, _, each in found if each is not None]
    if points:
        x, means = zip(*points, strict=True)
        style = {"color": look.colour, "linestyle": DASH[look.dash], "marker": MARKER[look.marker]}
        draw_means(panel, x, means, lines[0].rule.title, style | {"markersize": 5, "linewidth": 1.3, "capsize": 2.5})
    printed = [(x, value) for x, line, _ in found if (value := line.paper(PRINTED[ACCURACY.name])) is not None]
    if printed:
        xs, values = zip(*printed, strict=True)
        marker = MARKER[look.marker]
        panel.plot(xs, values, linestyle="", marker=marker, mfc="none", color=look.colour, markersize=8)
    return len(points)


def _meaning(tasks: Sequence[Task]) -> str:
    """What x is, read from the titles."""
    if all("P/K" in task.title for task in tasks):
        return "P/K, clients for each place in a step"
    if all("label" in task.title for task in tasks):
        return "labels per client"
    return "x"
