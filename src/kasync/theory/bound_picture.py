"""Pictures of a theorem beside the run it is about: the bound and the truth, and the bound's terms."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kasync.theory.bound import Bound
from kasync.theory.constants import Floats
from kasync.theory.plan_picture import GREY, ORANGE, TERMS, spoken

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
