"""How good, how steady, how fast and how stale was a run? The paper's metrics (sections 4.1 and 6.1).

Weights p_ji are those the rule gave at step j, normalised to sum to one; staleness counts from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LAST = 10  # A_num, evaluations that count as the end of a run
PREDOMINANT = 0.1  # w_g of Figure 2
RATIOS = (1.5, 2.0, 5.0, 10.0, 100.0, 1000.0)  # mu; the paper does not print its own
TARGETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97)

Reals = NDArray[np.float64]


def final_accuracy(accuracies: ArrayLike, last: int = LAST) -> float:
    """Mean of the last evaluations [evaluations]."""
    return float(np.mean(np.asarray(accuracies, np.float64)[-last:]))


def stability(accuracies: ArrayLike, last: int = LAST) -> float:
    """Standard deviation of the natural logarithm of the last accuracies; NaN when one of them is 0.

    The population's (divided by n): the ten values are described, nothing is estimated from them, and it is what numpy
    computes by default. The sample's would be larger by the factor sqrt(10/9), 5%.
    """
    ending = np.asarray(accuracies, np.float64)[-last:]
    return float(np.std(np.log(ending))) if (ending > 0).all() else float("nan")


def reached(accuracies: Sequence[float], target: float) -> int | None:
    """The place of the first evaluation at or above the target."""
    places = np.flatnonzero(np.asarray(accuracies, np.float64) >= target)
    return int(places[0]) if len(places) else None


def normalised(weights: ArrayLike) -> Reals:
    """[J, K] weights of each step divided by their sum; a step without weights keeps zeros."""
    kept = np.maximum(np.nan_to_num(np.asarray(weights, np.float64)), 0.0)
    total = kept.sum(1, keepdims=True)
    return kept / np.where(total > 0, total, 1.0)


def average_staleness(weights: ArrayLike, staleness: ArrayLike) -> float:
    """tau_ave = (1/J) sum_j sum_i p_ji tau_ji, for weights and staleness [J, K]."""
    return float((normalised(weights) * np.asarray(staleness, np.float64)).sum(1).mean())


def aggregated(weights: ArrayLike, staleness: ArrayLike, ratio: float) -> tuple[float, float]:
    """N_ave(mu) = (1/J) sum_j |{i: p_ji >= max_i p_ji / mu}|, and the mean staleness of those gradients (0 if none)."""
    shares = normalised(weights)
    largest = shares.max(1, keepdims=True)
    counted = (shares >= largest / ratio) & (largest > 0)  # [J, K]
    number = counted.sum(1)
    stale = (counted * np.asarray(staleness, np.float64)).sum(1)[number > 0] / number[number > 0]
    return float(number.mean()), float(stale.mean()) if len(stale) else 0.0


def predominant(weights: ArrayLike, threshold: float = PREDOMINANT) -> NDArray[np.int64]:
    """[J] gradients whose weight is above the threshold."""
    return (normalised(weights) > threshold).sum(1)


def summary(
    rows: Sequence[dict[str, Any]],
    weights: NDArray,
    staleness: NDArray,
    stages: NDArray,
    targets: Sequence[float] = TARGETS,
) -> dict[str, Any]:
    """All of it, from the rows of metrics.csv and what was recorded of every step, [J, K] and [J]."""
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    first = [(target, reached(accuracies, target)) for target in targets]
    number = predominant(weights)
    second = np.flatnonzero(stages == 2)
    aggregates = [(ratio, aggregated(weights, staleness, ratio)) for ratio in RATIOS]
    return {
        "final_accuracy": final_accuracy(accuracies) if accuracies else None,
        "stability": stability(accuracies) if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "last_accuracy": accuracies[-1] if accuracies else None,
        "last_test_loss": rows[-1]["test_loss"],
        "evaluations": len(rows),
        "reached": [
            {"accuracy": target, **{name: rows[place][name] for name in ("step", "time", "updates")}}
            for target, place in first
            if place is not None
        ],
        "average_staleness": average_staleness(weights, staleness),
        "aggregated": [{"mu": ratio, "number": n, "staleness": stale} for ratio, (n, stale) in aggregates],
        "predominant": {
            "threshold": PREDOMINANT,
            "mean": float(number.mean()),
            "at_most_five": float((number <= 5).mean()),
        },
        "stage_two_step": int(second[0]) + 1 if len(second) else None,
    }
