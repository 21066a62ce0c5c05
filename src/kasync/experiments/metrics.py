"""Accuracy, stability, speed and staleness of one run: the paper's metrics (sections 4.1 and 6.1).

Weights p_ji are those the rule gave at step j, normalised to sum to one; staleness counts from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync import statistics

PREDOMINANT = 0.1  # w_g of Figure 2
RATIOS = (1.5, 2.0, 5.0, 10.0, 100.0, 1000.0)  # mu; the paper does not print its own
ENDS = ("final_accuracy", "stability", "best_accuracy", "last_accuracy")
TARGETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97)

Reals = NDArray[np.float64]


def reached(accuracies: ArrayLike, target: float) -> int | None:
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


def of_accuracies(accuracies: Sequence[float]) -> dict[str, float]:
    """What the test accuracies of a run say of its end."""
    return {
        "final_accuracy": statistics.final(accuracies),
        "stability": statistics.stability(accuracies),
        "best_accuracy": max(accuracies),
        "last_accuracy": accuracies[-1],
    }


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
    taken = np.count_nonzero(normalised(weights), axis=1) > 0  # [J]
    second = np.flatnonzero(stages == 2)
    aggregates = [(ratio, aggregated(weights, staleness, ratio)) for ratio in RATIOS]
    return {
        **(of_accuracies(accuracies) if accuracies else dict.fromkeys(ENDS)),
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
        "accepted": {
            "steps": int(taken.sum()),
            "share": float(taken.mean()),
            "last_tenth": float(taken[-max(1, len(taken) // 10) :].mean()),
        },
        "stage_two_step": int(second[0]) + 1 if len(second) else None,
    }
