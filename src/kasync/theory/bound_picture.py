"""What does a theorem look like beside the run it speaks of? The bound and the truth, and the bound's terms."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kasync.theory.bound import Bound
from kasync.theory.constants import Floats
from kasync.theory.plan_picture import BLUE, GREY, ORANGE, TERMS

HORIZONS = 24  # lengths of the run at which the bound is computed


def draw_bound(panels: Sequence[Any], after: Callable[[int], Bound], norms: Floats) -> None:
    """Two panels for one stage; `after(j)` is the theorem for the first j steps, norms [J] are |grad F|^2."""
    steps = len(norms)
    horizons = np.unique(np.geomspace(1, steps, HORIZONS).round().astype(int))
    bounds = [after(int(horizon)) for horizon in horizons]
    measured = [bound.left_side(norms[: len(bound.weights)]) * bound.scale for bound in bounds]
    left, right = panels
    left.plot(np.arange(1, steps + 1), norms, color=GREY, linewidth=0.8, alpha=0.8, label="|grad F|² at the step")
    left.plot(horizons, measured, "-o", color=BLUE, markersize=3.5, label="its mean so far")
    promised = [bound.mean_squared_gradient for bound in bounds]
    left.plot(horizons, promised, "-s", color=ORANGE, markersize=3.5, label="the bound on that mean")
    left.fill_between(horizons, measured, promised, color=ORANGE, alpha=0.1, linewidth=0)
    last = bounds[-1]
    verdict = "" if last.holds else " (its conditions fail)"
    left.set_title(f"{last.theorem}: {last.looseness(norms):.3g} times too high{verdict}", fontsize=10)
    for name, colour in TERMS.items():
        values = [bound.terms[name] * bound.scale for bound in bounds]
        right.plot(horizons, values, "-o", color=colour, markersize=3.5, label=f"term: {name.replace('_', ' ')}")
    share = last.terms[last.dominant] / last.total
    right.set_title(f"its terms: {share:.0%} is {last.dominant.replace('_', ' ')}", fontsize=10)
    for panel in panels:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("steps", fontsize=9)
    left.set_ylabel("mean |grad F|²", fontsize=9)
