"""Who is ahead where? Final accuracy on every task of a group: what varies first along x, the rest as panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kasync.report.figures.canvas import draw_means, legend, panels, point_style
from kasync.report.look import Look, looks
from kasync.report.matrices import short_title
from kasync.report.measures import ACCURACY
from kasync.report.results import Experiment, Task

FEW = 4  # tasks that need no overview


def overview(experiment: Experiment, tasks: Sequence[Task]) -> Any | None:
    """A panel for each combination of what varies after the first; None for few tasks or while nothing is finished."""
    if len(tasks) < FEW:
        return None
    places = {task.name: _place(task, tasks) for task in tasks}  # task -> (x, row, column)
    names = [list(dict.fromkeys(place[part] for place in places.values())) for part in range(3)]
    look = looks(experiment.rules)
    figure, axes = panels(len(names[1]), len(names[2]), width=4.6, height=2.9, share_heights=True)
    drawn = 0
    for row, across in enumerate(names[1]):
        for column, down in enumerate(names[2]):
            inside = [task for task in tasks if places[task.name][1:] == (across, down)]
            for number, rule in enumerate(experiment.rules):
                drawn += _draw(axes[row, column], experiment, inside, names[0], places, number, look[rule.label])
            axes[row, column].set_xticks(range(len(names[0])), names[0])
            axes[row, column].set_xlim(-0.5, len(names[0]) - 0.5)
            axes[row, column].set_title(", ".join(part for part in (across, down) if part), fontsize=9)
        axes[row, 0].set_ylabel("final accuracy", fontsize=9)
    legend(figure, axes)
    return figure if drawn else None


def _draw(
    panel: Any,
    experiment: Experiment,
    tasks: Sequence[Task],
    names: Sequence[str],
    places: dict[str, tuple[str, str, str]],
    number: int,
    look: Look,
) -> int:
    """One rule in one panel, beside the others so that intervals can be seen; how many points there were."""
    rule = experiment.rules[number]
    shift = 0.6 * ((number + 0.5) / len(experiment.rules) - 0.5)
    points = [
        (names.index(places[task.name][0]) + shift, found)
        for task in tasks
        for line in experiment.beside(task, experiment.semantics[0])
        if line.rule is rule and (found := ACCURACY.estimate(line)) is not None
    ]
    if points:
        x, means = zip(*points, strict=True)
        draw_means(panel, x, means, rule.title, point_style(look, ours=number == 0))
    return len(points)


def _place(task: Task, tasks: Sequence[Task]) -> tuple[str, str, str]:
    """What of a task's title stands at x, in the row and in the column: parts that vary among the tasks, in order."""
    split = [short_title(each).split(", ") for each in tasks]
    own = short_title(task).split(", ")
    if len({len(parts) for parts in split}) > 1:
        return short_title(task), "", ""
    varying = [part for place, part in enumerate(own) if len({parts[place] for parts in split}) > 1]
    first, *rest = varying or [short_title(task)]
    return first, ", ".join(rest[:-1]), rest[-1] if rest else ""
