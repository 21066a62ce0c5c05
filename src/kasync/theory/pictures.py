"""Figures of a plan and of a theorem beside the run it is about."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from kasync.errors import UserError
from kasync.theory.planning import Pilot, PlanRow, Recommendation, best_of
from kasync.theory.theorems import Bound, Floats

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#767676"  # of Okabe and Ito, as in the reports
FORMATS = (".png", ".pdf", ".svg")
TERMS = {"variance": BLUE, "non_iid": ORANGE, "staleness": GREEN, "initial_gap": GREY}


def draw_plan(
    panels: Sequence[Any],
    rows: Sequence[PlanRow],
    pilots: Sequence[Pilot] = (),
    chosen: Recommendation | None = None,
    target: float | None = None,
) -> None:
    """Three panels (axes of matplotlib): what decides, staleness, and seconds per step."""
    best = best_of(pilots)
    if any(pilot.reached for pilot in pilots):
        _times(panels[0], best, target)
    elif pilots:
        _accuracies(panels[0], best)
    else:
        _bounds(panels[0], rows)
    _staleness(panels[1], rows)
    _pace(panels[2], rows)
    ks = [row.k for row in rows]
    for panel in panels:
        panel.set_xscale("log")
        panel.set_xticks(ks, [str(k) for k in ks], fontsize=8)
        panel.minorticks_off()
        panel.set_xlabel("k, deliveries per step", fontsize=9)
        if chosen is not None:
            mark = {"color": ORANGE, "alpha": 0.18, "linewidth": 11, "zorder": 0}
            panel.axvline(chosen.k, **mark, label=f"recommended: k = {chosen.k}")


def spoken(term: str) -> str:
    """The name of a term as people say it."""
    return "non-IID" if term == "non_iid" else term.replace("_", " ")


def check_place(path: Path) -> None:
    """Refuse a file that no picture can be written to, before any work is done for it."""
    if path.suffix not in FORMATS:
        raise UserError(f"picture = {path}: let the name end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"picture = {path}: there is no folder {path.parent}; make it, or choose another.")


def save(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib."""
    try:
        figure.savefig(path, dpi=150)
    except OSError as problem:
        raise UserError(f"{path} cannot be written ({problem.strerror}): choose another place.") from None


def _times(panel: Any, best: Mapping[int, Pilot], target: float | None) -> None:
    """Seeds as dots, their geometric mean as a line; who was stopped, where it was stopped."""
    there = [pilot for pilot in best.values() if pilot.reached]
    seeds = [(pilot.k, second) for pilot in best.values() for second in pilot.seconds if isfinite(second)]
    panel.plot(*zip(*seeds, strict=True), ".", color=BLUE, alpha=0.5, markersize=6, label="one seed")
    ks, typical = [pilot.k for pilot in there], [pilot.typical_seconds for pilot in there]
    panel.plot(ks, typical, "-o", color=BLUE, linewidth=1.6, label="geometric mean of the seeds")
    stopped = [pilot for pilot in best.values() if not pilot.reached and pilot.until < inf]
    top = 1.15 * max(panel.get_ylim()[1], *(pilot.until for pilot in stopped), 0.0)
    if stopped:
        ks, ends = [pilot.k for pilot in stopped], [pilot.until for pilot in stopped]
        panel.vlines(ks, ends, top, color=GREY, linestyle=":", linewidth=1.2)  # it takes longer than that
        panel.plot(ks, ends, "^", color=GREY, mfc="white", markersize=8, label="longer: stopped before the target")
    panel.set_ylim(0, top)
    panel.set_ylabel("virtual seconds", fontsize=9)
    panel.set_title(f"Time to accuracy{'' if target is None else f' {target:g}'}", fontsize=10)


def _accuracies(panel: Any, best: Mapping[int, Pilot]) -> None:
    """At the end of the longest pilots; those that were stopped before are hollow."""
    longest = max(pilot.until for pilot in best.values())
    for last, marker, label in ((True, "o", f"after {longest:.4g} s"), (False, "^", "where it was stopped before")):
        shown = [pilot for pilot in best.values() if (pilot.until == longest) == last]
        means = [sum(pilot.accuracies) / len(pilot.accuracies) for pilot in shown]
        if shown:
            panel.plot(
                [pilot.k for pilot in shown],
                means,
                marker,
                color=BLUE if last else GREY,
                mfc=None if last else "none",
                markersize=7,
                label=label,
            )
    panel.set_ylabel("accuracy", fontsize=9)
    panel.set_title("Accuracy of the pilots", fontsize=10)


def _bounds(panel: Any, rows: Sequence[PlanRow]) -> None:
    """Theorem 1 by terms, or, where nothing is known of the problem, the gradients that arrive."""
    known = [row for row in rows if row.terms]
    if known:
        for name, colour in TERMS.items():
            values = [row.terms[name] for row in known]
            panel.plot([row.k for row in known], values, "-o", color=colour, markersize=4, label=spoken(name))
        panel.plot([row.k for row in known], [row.bound for row in known], "k--", linewidth=1.4, label="the bound")
        panel.set_yscale("log")
        panel.set_ylabel("bound on mean |grad F|²", fontsize=9)
        panel.set_title("Theorem 1 at its best rate", fontsize=10)
        return
    panel.plot([row.k for row in rows], [row.gradients_per_second for row in rows], "-o", color=BLUE)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("gradients per virtual second", fontsize=9)
    panel.set_title("What reaches the server", fontsize=10)


def _staleness(panel: Any, rows: Sequence[PlanRow]) -> None:
    ks = [row.k for row in rows]
    shares = sorted(rows[0].staleness_quantiles)
    low, high = shares[0], shares[-1]
    panel.fill_between(
        ks,
        [row.staleness_quantiles[low] for row in rows],
        [row.staleness_quantiles[high] for row in rows],
        color=BLUE,
        alpha=0.18,
        linewidth=0,
        label=f"{low:.0%} to {high:.0%} of the deliveries",
    )
    panel.plot(ks, [row.mean_staleness for row in rows], "-o", color=BLUE, markersize=4, label="mean staleness")
    panel.set_yscale("symlog", linthresh=1)
    panel.set_ylim(bottom=0)
    _plain_numbers(panel)
    panel.set_ylabel("steps", fontsize=9)
    panel.set_title("Staleness", fontsize=10)


def _pace(panel: Any, rows: Sequence[PlanRow]) -> None:
    ks = [row.k for row in rows]
    panel.plot(ks, [row.seconds_per_step for row in rows], "-o", color=BLUE, markersize=4, label="asynchronous")
    if all(row.sync_seconds_per_step is not None for row in rows):
        waits = [row.sync_seconds_per_step for row in rows]
        panel.plot(ks, waits, "--s", color=ORANGE, markersize=4, label="synchronous, waiting for all k")
    panel.set_yscale("log")
    _plain_numbers(panel)
    panel.set_ylabel("virtual seconds", fontsize=9)
    panel.set_title("Seconds per step", fontsize=10)


def _plain_numbers(panel: Any) -> None:
    """20 rather than 2 x 10^1."""
    panel.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
    panel.yaxis.set_minor_formatter(lambda value, place: "")


HORIZONS = 24  # lengths of the run at which the bound is computed


def draw_bound(panels: Sequence[Any], after: Callable[[int], Bound], norms: Floats) -> None:
    """Two panels for one stage; `after(j)` is the theorem for the first j steps, norms [J] are |grad F|^2."""
    steps = len(norms)
    horizons = np.unique(np.geomspace(1, steps, HORIZONS).round().astype(int))
    bounds = [after(int(horizon)) for horizon in horizons]
    last, says = bounds[-1], all(np.isfinite(bound.scale) for bound in bounds)
    left, right = panels
    left.plot(np.arange(1, steps + 1), norms, color=GREY, linewidth=0.8, alpha=0.8, label="|grad F|² at the step")
    if says:
        _promise(left, horizons, bounds, norms)
    else:  # the weights of the left side are negative on average: there is no mean to be bounded
        left.set_title(f"{last.theorem}: V is negative, nothing is promised", fontsize=10)
    for name, colour in TERMS.items():
        values = np.array([bound.terms[name] * (bound.scale if says else 1.0) for bound in bounds])
        shown = np.where(values > 0, values, np.nan)  # a logarithm has no place for 0
        right.plot(horizons, shown, "-o", color=colour, markersize=3.5, label=f"term: {spoken(name)}")
    share = last.terms[last.dominant] / last.total
    right.set_title(f"its terms: {share:.0%} is {spoken(last.dominant)}", fontsize=10)
    for panel in panels:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("steps", fontsize=9)
    left.set_ylabel("mean |grad F|²", fontsize=9)


def _promise(panel: Any, horizons: Any, bounds: Sequence[Bound], norms: Floats) -> None:
    """The mean so far, the bound on it, and the gap between them."""
    measured = [bound.left_side(norms[: len(bound.weights)]) * bound.scale for bound in bounds]
    promised = [bound.mean_squared_gradient for bound in bounds]
    panel.plot(horizons, measured, "-o", color="black", markersize=3.5, label="its mean so far")
    panel.plot(horizons, promised, "-s", color=ORANGE, markersize=3.5, label="the bound on that mean")
    panel.fill_between(horizons, measured, promised, color=ORANGE, alpha=0.1, linewidth=0)
    verdict = "" if bounds[-1].holds else " (conditions fail)"
    panel.set_title(f"{bounds[-1].theorem}: {bounds[-1].looseness(norms):.3g} times too high{verdict}", fontsize=10)
