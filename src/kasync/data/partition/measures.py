"""How far from IID a partition is, in three numbers over the clients' label counts and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kasync.data.partition.draws import Purpose, bits
from kasync.errors import UserError

_ALL_PAIRS_UP_TO = 1000  # clients; beyond that pairs are sampled
_SAMPLED_PAIRS = 200_000


@dataclass(frozen=True)
class Measures:
    """Means over the clients that hold samples; see docs/partitions.md for how to read them."""

    entropy: float  # of a client's labels, in nats: 0 for one label, log(classes) for all alike
    jaccard: float  # distance 1 - |A and B| / |A or B| of two clients' label sets: 0 the same labels, 1 none in common
    movers_distance: float  # half the L1 distance from the whole set's label shares: 0 alike, 1 nothing in common


def measure(counts: NDArray[np.integer], overall: NDArray[np.integer]) -> Measures:
    """The measures of counts [clients, classes] against the label counts of the whole training set [classes]."""
    held = counts[counts.sum(1) > 0]  # [n, classes]
    shares = held / held.sum(1, keepdims=True)  # [n, classes]
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return Measures(
        entropy=float(-(shares * logs).sum(1).mean()) + 0.0,
        jaccard=_mean_jaccard(held > 0),
        # moving a sample from one label to any other costs 1, so the earth mover's distance is the total variation
        movers_distance=float(np.abs(shares - overall / overall.sum()).sum(1).mean() / 2),
    )


def _mean_jaccard(has: NDArray[np.bool_]) -> float:
    """The mean over pairs of different clients of has [n, classes], or over a fixed sample of them when many."""
    clients = len(has)
    if clients < 2:
        return 0.0
    if clients <= _ALL_PAIRS_UP_TO:
        first, second = np.triu_indices(clients, 1)
    else:
        lots = bits(0, Purpose.PAIRS, np.arange(_SAMPLED_PAIRS), [[0], [1]])  # [2, pairs]
        first = (lots[0] % np.uint64(clients)).astype(np.int64)
        gap = (lots[1] % np.uint64(clients - 1)).astype(np.int64)
        second = (first + 1 + gap) % clients  # never the client itself
    both = (has[first] & has[second]).sum(1)  # [pairs]
    either = (has[first] | has[second]).sum(1)
    return float(1 - (both / either).mean())


if TYPE_CHECKING:
    from kasync.data.partition.lists import Partition

_COLOUR = "#2b6cb0"
_BAR_COLOUR = "#a0aec0"


def draw(
    path: str | PathLike[str], partitions: Mapping[str, Partition], labels: NDArray[np.integer], show: int = 30
) -> None:
    """One panel per title and partition, side by side, each of at most `show` clients spread over all of them."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("a picture needs matplotlib: pip install 'kasync[plot]'.") from error
    if show < 1:
        raise UserError(f"show is {show}, but a picture needs at least 1 client.")
    classes = int(labels.max()) + 1
    shown = {title: _spread(part.clients, show) for title, part in partitions.items()}
    widths = [max(3.6, 0.17 * len(clients) + 1) for clients in shown.values()]
    height = 1.9 + max(1.4, 0.2 * min(classes, 62))
    figure = Figure(figsize=(sum(widths) + 0.6, height), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a screen and without pyplot's global state
    grid = figure.add_gridspec(2, len(widths), height_ratios=[1, height], width_ratios=widths)
    counts = {title: _counts_of(part, shown[title], labels, classes) for title, part in partitions.items()}
    most = max(1, max(int(table.max(initial=0)) for table in counts.values()))
    tallest = max(1, max(int(table.sum(1).max(initial=0)) for table in counts.values()))
    for column, (title, partition) in enumerate(partitions.items()):
        bars, dots = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
        _draw_sizes(bars, counts[title], tallest)
        clients = shown[title]
        few = (
            f"{len(clients)} of {partition.clients:,}" if len(clients) < partition.clients else f"{partition.clients:,}"
        )
        bars.set_title(f"{title}\n{few} clients", fontsize=9)
        _draw_dots(dots, counts[title], clients, most)
        if column == 0:
            bars.set_ylabel("samples", fontsize=8)
            dots.set_ylabel("label", fontsize=8)
    figure.savefig(path, dpi=150)


def _spread(clients: int, show: int) -> NDArray[np.int64]:
    """At most `show` clients, evenly spread over all of them."""
    return np.unique(np.linspace(0, clients - 1, min(clients, show)).round().astype(np.int64))


def _counts_of(partition: Partition, clients: NDArray, labels: NDArray, classes: int) -> NDArray[np.int64]:
    """Label counts of the shown clients alone [shown, classes]."""
    return np.stack([np.bincount(labels[partition.of(int(client))], minlength=classes) for client in clients])


def _draw_sizes(axes: Any, counts: NDArray, tallest: int) -> None:
    axes.bar(np.arange(len(counts)), counts.sum(1), width=0.7, color=_BAR_COLOUR)
    axes.set(xlim=(-0.7, len(counts) - 0.3), ylim=(0, tallest * 1.05), xticks=[])
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_dots(axes: Any, counts: NDArray, clients: NDArray, most: int) -> None:
    client, label = np.nonzero(counts)
    axes.scatter(client, label, s=np.maximum(3, 110 * counts[client, label] / most), color=_COLOUR, linewidths=0)
    axes.set_xlim(-0.7, len(counts) - 0.3)
    axes.set_ylim(-0.7, counts.shape[1] - 0.3)
    ticks = np.unique(np.linspace(0, len(clients) - 1, min(len(clients), 6)).round().astype(int))
    axes.set_xticks(ticks, [f"{clients[tick]:,}" for tick in ticks])
    step = 1 if counts.shape[1] <= 20 else 5
    axes.set_yticks(np.arange(0, counts.shape[1], step))
    axes.set_xlabel(f"client        (largest dot: {most:,} samples)", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
