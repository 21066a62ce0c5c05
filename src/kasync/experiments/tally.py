"""What the rule did in every step, kept small: series in blocks of steps, and counts over all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kasync.data import FederatedData
from kasync.data.dataset import are_classes
from kasync.experiments.metrics import normalised, predominant
from kasync.timelines import Timeline

BLOCKS = 1000  # points in a series, at most
WEIGHT_BINS = 50  # of [0, 1]
SIMILARITY_BINS = 40  # of [-1, 1]


def tally(columns: dict[str, NDArray], data: FederatedData) -> dict[str, NDArray]:
    """The arrays of steps.npz."""
    shares = normalised(columns["weights"])  # [J, K]
    return _series(columns, shares) | _counts(columns, shares) | _people(columns, shares, data)


def held(timeline: Timeline) -> dict[str, NDArray]:
    """The arrays of steps.npz where only a timeline was made: means counted from 1, as Appendix D counts."""
    from kasync.timelines import held_staleness

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


def _series(columns: dict[str, NDArray], shares: NDArray) -> dict[str, NDArray]:
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


def _counts(columns: dict[str, NDArray], shares: NDArray) -> dict[str, NDArray]:
    k = shares.shape[1]
    stale = columns["staleness"].ravel()
    similar = columns["similarities"][~np.isnan(columns["similarities"])]
    return {
        "staleness_count": np.bincount(stale),
        "staleness_weight": np.bincount(stale, shares.ravel()).astype(np.float32),
        "weight_count": np.histogram(shares, WEIGHT_BINS, (0.0, 1.0))[0],
        "similarity_count": np.histogram(similar, SIMILARITY_BINS, (-1.0, 1.0))[0],
        "selected_count": np.bincount((shares > 0).sum(1), minlength=k + 1),
        "predominant_count": np.bincount(predominant(columns["weights"]), minlength=k + 1),
    }


def _people(columns: dict[str, NDArray], shares: NDArray, data: FederatedData) -> dict[str, NDArray]:
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


def _means(values: NDArray, blocks: NDArray[np.int64]) -> NDArray[np.float32]:
    return (np.add.reduceat(np.asarray(values, np.float64), blocks[:-1]) / np.diff(blocks)).astype(np.float32)
