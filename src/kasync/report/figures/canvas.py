"""On what is drawn? A grid of panels without a screen and without pyplot's global state, with one legend for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kasync.errors import UserError
from kasync.report.intervals import Estimate
from kasync.report.look import Look

DASH = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKER = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "x", "triangle-down": "v"}
MARKER |= {"cross": "P", "star": "*"}


def panels(
    rows: int, columns: int, width: float = 3.9, height: float = 3.0, share_heights: bool = False
) -> tuple[Any, Any]:
    """A figure and its panels [rows, columns]."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise UserError("figures need matplotlib: pip install 'kasync[plot]'.") from problem
    figure = Figure(figsize=(max(6.4, width * columns + 0.4), height * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_heights)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3, linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=8)
    return figure, axes


def legend(figure: Any, axes: Any) -> None:
    """One legend under all panels, every entry once, in as many columns as there is room for."""
    entries: dict[str, Any] = {}
    for panel in axes.flat:
        handles, labels = panel.get_legend_handles_labels()
        entries |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in entries}
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=max(1, min(len(entries), int(figure.get_figwidth() / (0.85 + 0.075 * max(map(len, entries)))))),
            frameon=False,
            fontsize=9,
            handlelength=3.2,
        )


def line_style(look: Look, points: int) -> dict[str, Any]:
    """Colour, dash, and about eight markers along the curve."""
    return {
        "color": look.colour,
        "linestyle": DASH[look.dash],
        "marker": MARKER[look.marker],
        "markersize": 4.5,
        "markevery": max(1, points // 8),
        "linewidth": 1.6,
    }


def draw_means(panel: Any, x: Sequence[float], means: Sequence[Estimate], label: str, style: dict[str, Any]) -> None:
    """Means with their intervals, joined by a line."""
    heights = [each.mean for each in means]
    panel.errorbar(x, heights, yerr=[each.half or 0.0 for each in means], label=label, **style)


def point_style(look: Look, ours: bool) -> dict[str, Any]:
    """How means with intervals are drawn: what should catch the eye solid, large and on top."""
    style: dict[str, Any] = {"color": look.colour, "marker": MARKER[look.marker]}
    if ours:
        return style | {
            "linestyle": "-",
            "linewidth": 2.4,
            "markersize": 7,
            "elinewidth": 1.4,
            "capsize": 3,
            "zorder": 5,
        }
    thin = {"linewidth": 1.0, "markersize": 4, "elinewidth": 0.6, "capsize": 1.5, "alpha": 0.85}
    return style | thin | {"linestyle": DASH[look.dash]}
