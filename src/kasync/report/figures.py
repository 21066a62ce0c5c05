"""Figures for papers: PNG and PDF in the paper's layout, and how a rule looks wherever it is drawn."""

from __future__ import annotations

import colorsys
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kasync import files
from kasync.errors import optional
from kasync.experiments.experiment import Contender, Task
from kasync.experiments.settings import built_in
from kasync.report.numbers import FOLD, Band, counts, during, evaluations, sweeps
from kasync.report.results import ACCURACY, PRINTED, WORDS, Findings, Line, Results
from kasync.statistics import FEW, LEVEL, bands

FORMATS = {"png": {}, "pdf": {"CreationDate": None, "ModDate": None}}  # no dates: the same results, the same files
WIDE, NARROW = 6, 3  # panels in a row, at most; how many where there are more
MANY = 4  # tasks of a group from which on one figure shows all of them
LONGER = 3  # times as long as the shortest run from which on time is drawn in powers of ten
BAND, RANGE = f"{LEVEL:.0%} interval over seeds", "range of the seeds"
DASH = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKER = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "x", "triangle-down": "v"}
MARKER |= {"cross": "P", "star": "*"}
FIRST = {"linestyle": "-", "linewidth": 2.4, "markersize": 7, "elinewidth": 1.4, "capsize": 3, "zorder": 5}  # on top
OTHERS = {"linewidth": 1.0, "markersize": 4, "elinewidth": 0.6, "capsize": 1.5, "alpha": 0.85}

# Colours of Okabe and Ito (Color Universal Design, 2008) without their yellow, which cannot be read on white, then
# colours of Tol's muted scheme (2021); each with what stands for it on black.
COLOURS = (
    ("#0072B2", "#3D9BE9"),
    ("#D55E00", "#FF7F2A"),
    ("#009E73", "#1FC79A"),
    ("#CC79A7", "#E79BC5"),
    ("#E69F00", "#F0B429"),
    ("#56B4E9", "#A5DDFF"),
    ("#000000", "#F5F5F5"),
    ("#767676", "#9A9A9A"),
    ("#882255", "#D0557F"),
    ("#332288", "#8C7BEA"),
    ("#999933", "#C9C95A"),
    ("#44AA99", "#7BD8CB"),
    ("#661100", "#B0604C"),
    ("#AA4499", "#D877C9"),
)


@dataclass(frozen=True)
class Look:
    """Colour on white and on black, dash and marker, in the words of plotly."""

    colour: str
    dark: str
    dash: str
    marker: str


def looks(rules: Sequence[Contender]) -> dict[str, Look]:
    """By label: the well-known rules look the same in every experiment, others take the places left."""
    labels = [rule.label for rule in rules]
    taken = {label: facts.place for label in labels if (facts := built_in(label)) and facts.place is not None}
    free = (place for place in range(len(COLOURS) + len(labels)) if place not in taken.values())
    return {label: look(taken[label] if label in taken else next(free)) for label in labels}


def look(place: int) -> Look:
    """The place-th look; no colour comes twice: after those of the list hues follow, far from the one before."""
    hue = (place * 0.618034) % 1.0  # the golden ratio spreads any number of hues
    made = [colorsys.hls_to_rgb(hue, lightness, 0.75) for lightness in (0.4, 0.65)]
    hues = ["#" + "".join(f"{round(255 * part):02X}" for part in parts) for parts in made]
    colour, dark = COLOURS[place] if place < len(COLOURS) else hues
    turn, dashes, markers = place // len(DASH), list(DASH), list(MARKER)
    return Look(colour, dark, dashes[(place + turn) % len(dashes)], markers[(place + 3 * turn) % len(markers)])


def figures_of(experiment: Findings) -> Iterator[tuple[str, Any]]:
    """(name, figure) for everything there is to see so far."""
    if experiment.about.kind == "timelines":
        drawn = [("held", held(experiment))]
    elif experiment.tried:
        drawn = [("rates", sensitivity(experiment))]
    else:
        kinds, groups = {"accuracy": curves, "final": ladder, "overview": overview}, experiment.groups().items()
        drawn = [(f"{name}-{kind}", draw(experiment, tasks)) for kind, draw in kinds.items() for name, tasks in groups]
        if "Figure 2" in experiment.about.figures:
            drawn.append(("motivation", motivation(experiment)))
    for name, figure in drawn:
        if figure is not None:
            yield re.sub(r"[^a-z0-9]+", "-", f"{experiment.name}-{name}".lower()).strip("-"), figure


def save(results: Results, folder: Path) -> list[tuple[str, Path]]:
    """Every figure as PNG and PDF in the folder; (experiment, PNG) pairs."""
    saved = []
    for experiment in results.experiments:
        for name, figure in figures_of(experiment):
            for kind, metadata in FORMATS.items():
                content = io.BytesIO()
                figure.savefig(content, format=kind, dpi=150, metadata=metadata)
                files.write(folder / f"{name}.{kind}", content.getvalue())
            saved.append((experiment.name, folder / f"{name}.png"))
    return saved


def curves(experiment: Findings, tasks: Sequence[Task]) -> Any | None:
    """Test accuracy against steps or time, a row of panels for each semantics; None while nothing has been evaluated.

    Time is drawn in powers of ten where some runs last many times as long as others.
    """
    look, against = looks(experiment.rules), experiment.about.against
    shown = [(way, task) for way in experiment.semantics for task in tasks]
    columns = len(tasks) if len(tasks) <= WIDE else NARROW
    figure, axes = panels(-(-len(shown) // columns), columns)
    for place, (panel, (way, task)) in enumerate(zip(axes.flat, shown, strict=False)):
        for line in experiment.beside(task, way):
            draw_band(panel, evaluations(line, "accuracy", against), look[line.rule.label], line.rule.title)
        panel.set_title(task.title if len(experiment.semantics) == 1 else f"{task.title}\n{WORDS[way]}")
        ends = [line.get_xdata()[-1] for line in panel.lines] or [0]
        if powers := bool(against == "time" and max(ends) > LONGER * min(ends)):
            logarithmic(panel)
        if place >= len(shown) - columns:
            panel.set_xlabel(f"virtual seconds{' (logarithmic)' * powers}" if against == "time" else "step")
        if place % columns == 0:
            panel.set_ylabel("test accuracy")
    for panel in axes.flat[len(shown) :]:
        panel.set_visible(False)
    _share_heights(axes)
    return _finished(figure, axes, experiment)


def logarithmic(panel: Any) -> None:
    """The horizontal axis in powers of ten, with plain numbers at 1, 2, 5, 10 and so on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def draw_band(panel: Any, band: Band | None, look: Look, label: str) -> None:
    """The mean as a line with about eight markers, its interval as a band; nothing where there is none."""
    if band is not None:
        style = line_style(look) | {"markersize": 4.5, "markevery": max(1, len(band.x) // 8), "linewidth": 1.6}
        panel.plot(band.x, band.mean, label=label, **style)
        panel.fill_between(band.x, band.low, band.high, color=look.colour, alpha=0.16, linewidth=0)


def _share_heights(axes: Any) -> None:
    """One range for all panels, between 0 and 1: a wide interval of few seeds must not squeeze the curves."""
    means = [value for panel in axes.flat for line in panel.lines for value in line.get_ydata() if value == value]
    if means:
        spread = max(max(means) - min(means), 0.02)
        for panel in axes.flat:
            panel.set_ylim(max(0.0, min(means) - 0.06 * spread), min(1.0, max(means) + 0.06 * spread))


def ladder(experiment: Findings, tasks: Sequence[Task]) -> Any | None:
    """Final accuracy against x, the paper's numbers hollow: a panel for each semantics.

    None where the tasks have fewer than two values of x or nothing is finished.
    """
    places = sorted({task.x for task in tasks if task.x is not None})
    if len(places) < 2 or not any(line.finished for line in experiment.lines):
        return None
    ways, look = experiment.semantics, looks(experiment.rules)
    figure, axes = panels(1, len(ways), width=4.4, height=3.4, share_heights=True)
    for panel, way in zip(axes[0], ways, strict=True):
        for rule in experiment.rules:
            lines = [line for task in tasks for line in experiment.beside(task, way) if line.rule is rule]
            _ladder(panel, [line for line in lines if line.task.x is not None], look[rule.label])
        panel.set(xticks=places, xlabel=experiment.about.x_title or "x", title=WORDS[way])
    axes[0, 0].set_ylabel("final accuracy")
    _share_heights(axes)
    if any(task.paper for task in tasks):
        axes[0, 0].plot([], [], marker="o", linestyle="", mfc="none", color="#555555", label="printed in the paper")
    return _finished(figure, axes, experiment)


def _ladder(panel: Any, lines: Sequence[Line], look: Look) -> None:
    """One rule: means joined by a line, their intervals, and what is printed."""
    points, printed, style = [], [], line_style(look)
    for line in lines:
        x, values = line.task.x, [*filter(None, ACCURACY.by_seed(line).values())]
        if values:
            (mean,), low, high = bands([[value] for value in values])
            panel.plot([x, x], [*low, *high], color=look.colour, alpha=0.35, linewidth=4, solid_capstyle="butt")
            points.append((x, mean))
        if (value := line.paper(PRINTED[ACCURACY.name])) is not None:
            printed.append((x, value))
    if points:
        panel.plot(*zip(*points, strict=True), label=line.rule.title, **style | {"markersize": 5, "linewidth": 1.3})
    if printed:
        panel.plot(*zip(*printed, strict=True), **style | {"linestyle": "", "mfc": "none", "markersize": 8})


def overview(experiment: Findings, tasks: Sequence[Task]) -> Any | None:
    """Final accuracy of every rule on every task of a group: a row for each rule, a marker for each value of an axis.

    The first axis that varies is told by markers, the others by panels. None for few tasks or while nothing is done.
    """
    if len(tasks) < MANY:
        return None
    varying = [name for name in tasks[0].axes if len({task.axes.get(name) for task in tasks}) > 1]
    first, across, down = (*varying[:3], "", "", "")[:3]
    shown = {task.name: tuple(_value(task, tasks, name) for name in (first, across, down)) for task in tasks}
    marks, columns, rows = (list(dict.fromkeys(place[part] for place in shown.values())) for part in range(3))
    figure, axes = panels(len(rows), len(columns), 3.6, 0.22 * len(experiment.rules) + 0.9, share_heights=True)
    for task in tasks:
        mark, column, row = shown[task.name]
        panel, style = axes[rows.index(row), columns.index(column)], look(marks.index(mark))
        kind = line_style(style) | {"linestyle": "", "markersize": 4.5, "elinewidth": 0.9}
        for line in experiment.beside(task, experiment.semantics[0]):
            if (found := ACCURACY.estimate(line)) is not None:
                y = list(experiment.rules).index(line.rule)
                panel.errorbar([found.mean], [y], xerr=[found.half or 0.0], label=mark, **kind)
        panel.set_title(", ".join(text for text in (column, row) if text))
    ends = [panel.get_xlim() for panel in axes.flat]
    for panel in axes.flat:
        panel.set_xlim(max(0.0, min(low for low, _ in ends)), min(1.0, max(high for _, high in ends)))
        panel.set_yticks(range(len(experiment.rules)), [rule.title for rule in experiment.rules])
        panel.set_ylim(len(experiment.rules) - 0.5, -0.5)
    for panel in axes[-1]:
        panel.set_xlabel("final accuracy")
    return _finished(figure, axes)


def _value(task: Task, tasks: Sequence[Task], axis: str) -> str:
    """What people call the task's value on an axis."""
    if not axis:
        return "" if any(each.axes for each in tasks) else task.short
    return task.names.get(axis, task.axes.get(axis, ""))


def held(experiment: Findings) -> Any | None:
    """Mean staleness held: a panel for each task, or None while nothing is finished."""
    look = looks(experiment.rules)
    figure, axes = panels(1, len(experiment.tasks))
    for panel, task in zip(axes[0], experiment.tasks, strict=True):
        lines = [line for line in experiment.lines if line.task is task]
        for line in lines:
            draw_band(panel, during(line, "held"), look[line.rule.label], line.rule.title)
        bounds = [run.summary["bound"] for line in lines for run in line.finished]
        if bounds:
            panel.axhline(bounds[0], color="black", linewidth=1.2, label="least mean by Appendix D")
        panel.set(title=task.title, xlabel="step")
        panel.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("mean staleness held, from 1")
    return _finished(figure, axes)


def motivation(experiment: Findings) -> Any | None:
    """A row of two panels for each semantics and task, or None while nothing is finished."""
    rows = [(task, way) for way in experiment.semantics for task in experiment.tasks]
    look = looks(experiment.rules)
    figure, axes = panels(len(rows), 2)
    for (histogram, scatter), (task, way) in zip(axes, rows, strict=True):
        lines = [line for line in experiment.beside(task, way) if line.finished]
        for place, line in enumerate(lines):
            _scatter(scatter, line, look[line.rule.label])
            if (shares := counts(line, "predominant_count")) is not None:  # [k + 1]
                top, width = int(np.flatnonzero(shares > 0)[-1]) + 2, 0.8 / len(lines)
                style = {"color": look[line.rule.label].colour, "edgecolor": "white"}
                x = np.arange(len(shares))[:top] - 0.4 + width * (place + 0.5)
                histogram.bar(x, shares[:top], width, hatch=("", "///", "...", "xx")[place % 4], **style)
                histogram.set_xticks(np.arange(max(top, round(histogram.get_xlim()[1]))))
        first = f"{task.title}\n(a) gradients with a weight above 0.1"
        histogram.set(title=first, xlabel="number of predominant gradients", ylabel="share of steps")
        second = f"{task.title}\n(b) how stale are those that count"
        number = "average number of aggregated gradients, $N_{ave}(\\mu)$"
        scatter.set(title=second, xlabel=number, ylabel="their average staleness", xlim=(0, None), ylim=(0, None))
    return _finished(figure, axes)


def _scatter(panel: Any, line: Line, look: Look) -> None:
    """A point for each seed and mu, and the line through the means."""
    rows = [run.summary["aggregated"] for run in line.finished]
    number, stale = (np.array([[row[name] for row in run] for run in rows]) for name in ("number", "staleness"))
    panel.scatter(number, stale, s=14, color=look.colour, alpha=0.45, linewidths=0)  # [seeds, mus] each
    style = line_style(look) | {"linestyle": "-", "markersize": 5, "linewidth": 1.4}
    panel.plot(bands(number)[0], bands(stale)[0], label=line.rule.title, **style)
    last = -np.inf
    for mu, x, y in zip([row["mu"] for row in rows[0]], number.mean(0), stale.mean(0), strict=True):
        if x - last > 0.05 * number.max():  # two labels at one place could not be read
            style = {"textcoords": "offset points", "fontsize": 7, "color": look.colour}
            panel.annotate(f"$\\mu$ = {mu:g}", (x, y), (4, -9), **style)
            last = x


def sensitivity(experiment: Findings) -> Any | None:
    """Accuracy at each rate: a panel for each task, the first rule drawn on top; None while nothing is finished."""
    found = list(sweeps(experiment))
    if not found:
        return None
    tasks = [task for task in experiment.tasks if any(sweep.task is task for sweep in found)]
    look = looks(list({sweep.rule.label: sweep.rule for sweep in found}.values()))
    figure, axes = panels(1, len(tasks), width=5.2, height=4.2, share_heights=True)
    for panel, task in zip(axes[0], tasks, strict=True):
        panel.axvspan(FOLD**-0.5, FOLD**0.5, color="#000000", alpha=0.05, linewidth=0, label=f"{FOLD:g}-fold range")
        for sweep in (sweep for sweep in found if sweep.task is task):
            style = line_style(look[sweep.rule.label]) | (FIRST if sweep.rule == found[0].rule else OTHERS)
            heights, halves = zip(*((each.mean, each.half or 0.0) for each in sweep.accuracies), strict=True)
            panel.errorbar(sweep.factors, heights, yerr=halves, label=sweep.rule.title, **style)
        panel.set(xscale="log", title=task.title, xlabel="learning rate / the rule's own")
    axes[0, 0].set_ylabel("final accuracy")
    low, high = axes[0, 0].get_ylim()
    axes[0, 0].set_ylim(max(low, 0.0), min(high, 1.0))
    return _finished(figure, axes)


# ---- how all of them look


def panels(
    rows: int, columns: int, width: float = 3.9, height: float = 3.0, share_heights: bool = False
) -> tuple[Any, Any]:
    """A figure and its panels [rows, columns]."""
    words = "figures need matplotlib: pip install 'kasync[plot]'."
    drawing, agg = optional("matplotlib.figure", words), optional("matplotlib.backends.backend_agg", words)
    figure = drawing.Figure(figsize=(max(6.4, width * columns + 0.4), height * rows + 0.9), layout="constrained")
    agg.FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_heights)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3, linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=8)
    return figure, axes


def _finished(figure: Any, axes: Any, shaded: Findings | None = None) -> Any | None:
    """The figure with its legend and what shades mean where there are some, or None where nothing is drawn."""
    if not any(len(line.get_xdata()) for panel in axes.flat for line in panel.lines):
        return None
    if shaded is not None:
        words = BAND if max(len(line.runs) for line in shaded.lines) >= FEW else RANGE
        axes[0, 0].fill_between([], [], [], color="#555555", alpha=0.25, linewidth=0, label=words)
    for panel in axes.flat:
        for text in (panel.title, panel.xaxis.label, panel.yaxis.label):
            text.set_fontsize(9)
    legend(figure, axes)
    return figure


def legend(figure: Any, axes: Any) -> None:
    """One legend under all panels, every entry once, in as many columns as there is room for."""
    entries: dict[str, Any] = {}
    for panel in axes.flat:
        handles, labels = panel.get_legend_handles_labels()
        entries |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in entries}
    if entries:
        room = int(figure.get_figwidth() / (0.85 + 0.075 * max(map(len, entries))))
        style = {"loc": "outside lower center", "frameon": False, "fontsize": 9, "handlelength": 3.2}
        figure.legend(entries.values(), entries, ncols=max(1, min(len(entries), room)), **style)


def line_style(look: Look) -> dict[str, Any]:
    """Colour, dash and marker, in the words of matplotlib."""
    return {"color": look.colour, "linestyle": DASH[look.dash], "marker": MARKER[look.marker]}
