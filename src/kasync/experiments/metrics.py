"""What one run recorded: rows of metrics.csv, arrays of steps.npz, and the paper's metrics (sections 4.1 and 6.1).

Weights p_ji are those the rule gave at step j, normalised to sum to one; staleness counts from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync import statistics
from kasync.data import FederatedData
from kasync.data.dataset import are_classes
from kasync.simulator import Simulation
from kasync.simulator.records import METRIC
from kasync.timelines import Timeline, held_staleness

PREDOMINANT = 0.1  # w_g of Figure 2
RATIOS = (1.5, 2.0, 5.0, 10.0, 100.0, 1000.0)  # mu; the paper does not print its own
ENDS = ("final_accuracy", "stability", "best_accuracy", "last_accuracy")
BLOCKS = 1000  # points of a series in steps.npz, at most
WEIGHT_BINS = 50  # of [0, 1]
SIMILARITY_BINS = 40  # of [-1, 1]
TARGETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97)

Reals = NDArray[np.float64]


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
    number: NDArray[np.int64] = (normalised(weights) > threshold).sum(1)
    return number


def of_accuracies(accuracies: Sequence[float]) -> dict[str, float]:
    """What the test accuracies of a run say of its end."""
    found = (statistics.final(accuracies), statistics.stability(accuracies), max(accuracies), accuracies[-1])
    return dict(zip(ENDS, found, strict=True))


def summary(
    rows: Sequence[dict[str, Any]], weights: NDArray[Any], staleness: NDArray[Any], stages: NDArray[Any]
) -> dict[str, Any]:
    """All of it, from the rows of metrics.csv and what was recorded of every step, [J, K] and [J]."""
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    number = predominant(weights)
    taken = np.count_nonzero(normalised(weights), axis=1) > 0  # [J]
    second = np.flatnonzero(stages == 2)
    return {
        **(of_accuracies(accuracies) if accuracies else dict.fromkeys(ENDS)),
        "last_test_loss": rows[-1]["test_loss"],
        "evaluations": len(rows),
        "reached": [
            {"accuracy": target, **{name: rows[place][name] for name in ("step", "time", "updates")}}
            for target in TARGETS
            if (place := statistics.reached(accuracies, target)) is not None
        ],
        "average_staleness": average_staleness(weights, staleness),
        "aggregated": [
            {"mu": ratio, **dict(zip(("number", "staleness"), aggregated(weights, staleness, ratio), strict=True))}
            for ratio in RATIOS
        ],
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


# ---- metrics.csv


def told(simulation: Simulation) -> dict[str, NDArray[Any]]:
    """All steps so far as columns: [J] each, or [J, K] for weights, staleness, similarities and clients."""
    timeline, every = simulation.timeline, dict(simulation.history.columns)
    every |= {"clients": timeline.clients, "staleness": simulation.run.plan.reported, "time": timeline.times}
    return {name: values[: simulation.done] for name, values in every.items()}


def rows_of(columns: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """A row for each evaluation, about the steps since the one before; what comes after the last is not told yet."""
    ends = np.flatnonzero(columns["evaluated"] == 1)  # [rows]
    own = {name.removeprefix(METRIC): values for name, values in columns.items() if name.startswith(METRIC)}
    if not len(ends):
        return []
    starts = np.concatenate([[0], ends[:-1] + 1])
    stop = ends[-1] + 1

    def sums(values: NDArray[Any]) -> NDArray[Any]:
        return np.add.reduceat(np.asarray(values[:stop], np.float64), starts)

    counts = ends - starts + 1
    used = columns["skipped"] == 0
    losses, trained = sums(np.where(used, columns["loss"], 0.0)), sums(used)
    stale = sums(columns["staleness"].mean(1)) / counts
    selected = sums((columns["weights"] > 0).sum(1)) / counts
    dropped = sums(columns["dropped"])
    updates = np.cumsum(counts * columns["clients"].shape[1] - dropped)
    return [
        {
            "step": int(end) + 1,
            "time": float(columns["time"][end]),
            "updates": int(updates[i]),
            "accuracy": _number(columns["accuracy"][end]),
            "test_loss": float(columns["test_loss"][end]),
            "train_loss": float(losses[i] / trained[i]) if trained[i] else None,
            "lr": float(columns["lr"][end]),
            "stage": int(columns["stage"][end]),
            "staleness": float(stale[i]),
            "selected": float(selected[i]),
            "dropped": int(dropped[i]),
            **{name: _number(values[end]) for name, values in own.items()},
        }
        for i, end in enumerate(ends)
    ]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


# ---- steps.npz: series in blocks of steps, and counts over all of them


def tally(columns: dict[str, NDArray[Any]], data: FederatedData) -> dict[str, NDArray[Any]]:
    """The arrays of steps.npz."""
    shares = normalised(columns["weights"])  # [J, K]
    return _series(columns, shares) | _counts(columns, shares) | _people(columns, shares, data)


def held(timeline: Timeline) -> dict[str, NDArray[Any]]:
    """The arrays of steps.npz where only a timeline was made: means counted from 1, as Appendix D counts."""
    blocks = blocks_of(timeline.steps)
    held_now = held_staleness(timeline)[:-1] + 1.0  # [steps]
    delivered = timeline.staleness.mean(1) + 1.0  # [steps]
    return {
        "step": blocks[1:].astype(np.int32),
        "held": _means(held_now, blocks),
        "delivered": _means(delivered, blocks),
        "staleness_count": np.bincount(timeline.staleness.ravel()),
        "deliveries": np.bincount(timeline.clients.ravel(), minlength=timeline.population).astype(np.int32),
    }


def _series(columns: dict[str, NDArray[Any]], shares: NDArray[Any]) -> dict[str, NDArray[Any]]:
    blocks = blocks_of(len(shares))
    squares = np.square(shares).sum(1)
    similar = columns["similarities"].astype(np.float64)
    known = ~np.isnan(similar)
    mean_similar = np.where(known, similar, 0.0).sum(1) / np.where(known.any(1), known.sum(1), np.nan)
    averages = {
        "loss": columns["loss"],
        "lr": columns["lr"],
        "staleness": columns["staleness"].mean(1),
        "selected": (shares > 0).sum(1),
        "effective": np.where(squares > 0, 1.0 / np.where(squares > 0, squares, 1.0), 0.0),
        "largest_weight": shares.max(1),
        "similarity": mean_similar,
    }
    starts = blocks[:-1]
    return {
        "step": blocks[1:].astype(np.int32),
        **{name: _means(values, blocks) for name, values in averages.items()},
        "max_staleness": np.maximum.reduceat(columns["staleness"].max(1), starts).astype(np.int32),
        "stage": columns["stage"][blocks[1:] - 1].astype(np.int32),
        "dropped": np.add.reduceat(columns["dropped"], starts).astype(np.int32),
        "skipped": np.add.reduceat(columns["skipped"].astype(np.int64), starts).astype(np.int32),
    }


def _counts(columns: dict[str, NDArray[Any]], shares: NDArray[Any]) -> dict[str, NDArray[Any]]:
    k, stale, similar = shares.shape[1], columns["staleness"].ravel(), columns["similarities"]
    return {
        "staleness_count": np.bincount(stale),
        "staleness_weight": np.bincount(stale, shares.ravel()).astype(np.float32),
        "weight_count": np.histogram(shares, WEIGHT_BINS, (0.0, 1.0))[0],
        "similarity_count": np.histogram(similar[~np.isnan(similar)], SIMILARITY_BINS, (-1.0, 1.0))[0],
        "selected_count": np.bincount((shares > 0).sum(1), minlength=k + 1),
        "predominant_count": np.bincount(predominant(columns["weights"]), minlength=k + 1),
    }


def _people(columns: dict[str, NDArray[Any]], shares: NDArray[Any], data: FederatedData) -> dict[str, NDArray[Any]]:
    who = columns["clients"].ravel()
    deliveries = np.bincount(who, minlength=data.clients)
    weight = np.bincount(who, shares.ravel(), minlength=data.clients)
    people = {"deliveries": deliveries.astype(np.int32), "client_weight": weight.astype(np.float32)}
    if not are_classes(data.train.labels):
        return people
    owners = np.repeat(np.arange(data.clients), data.sizes)  # [total]
    cells = owners * data.classes + data.train.labels[data.indices]
    counts = np.bincount(cells, minlength=data.clients * data.classes).reshape(data.clients, data.classes)
    mix = counts / np.maximum(counts.sum(1, keepdims=True), 1)  # [clients, classes]
    by_label = {"label_samples": counts.sum(0), "label_deliveries": deliveries @ mix, "label_weight": weight @ mix}
    return people | {name: (row / max(row.sum(), 1e-12)).astype(np.float32) for name, row in by_label.items()}


def blocks_of(steps: int) -> NDArray[np.int64]:
    """[blocks + 1] bounds of at most BLOCKS runs of steps, equal to within one."""
    count = min(BLOCKS, steps)
    return np.arange(count + 1) * steps // count


def _means(values: NDArray[Any], blocks: NDArray[np.int64]) -> NDArray[np.float32]:
    return (np.add.reduceat(np.asarray(values, np.float64), blocks[:-1]) / np.diff(blocks)).astype(np.float32)
