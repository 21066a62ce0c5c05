"""What does a timeline look like? Who worked when, on how old a model, and what was held meanwhile."""

from os import PathLike

import numpy as np

from kasync.errors import UserError
from kasync.timelines.summary import rows_held, versions_held
from kasync.timelines.timeline import Timeline

SEGMENTS = 12  # deliveries of an average client to show: more could not be told apart


def draw(timeline: Timeline, path: str | PathLike[str], sample: int = 24) -> None:
    """Three panels: the work of `sample` clients from pull to delivery, staleness, and what must be held.

    Bars are coloured by staleness. The first panel shows the beginning of the timeline, as long as about a dozen
    deliveries of an average client.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise UserError("a picture needs matplotlib: pip install 'kasync[plot]'.") from problem
    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, height_ratios=[1.5, 1])
    _work(figure, figure.add_subplot(grid[0, :]), timeline, sample)
    _staleness(figure.add_subplot(grid[1, 0]), timeline)
    _held(figure.add_subplot(grid[1, 1]), timeline)
    figure.suptitle(
        f"{timeline.kind}: {timeline.k:,} of {timeline.population:,} clients at each of {timeline.steps:,} steps",
        fontsize=13,
    )
    figure.savefig(path, dpi=150)


def _work(figure, axes, timeline: Timeline, sample: int) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.ticker import MaxNLocator

    shown = min(timeline.steps, max(8, SEGMENTS * timeline.population // timeline.k))
    part = timeline.head(shown)
    chosen = np.unique(np.linspace(0, timeline.population - 1, min(sample, timeline.population)).astype(np.int64))
    row = np.full(timeline.population, -1)
    row[chosen] = np.arange(len(chosen))
    step, slot = np.nonzero(row[part.clients] >= 0)
    clock = np.concatenate([[0.0], part.times])  # [shown + 1]: when each version appeared
    begin, end = clock[part.versions[step, slot]], part.times[step]
    height = row[part.clients[step, slot]]
    bars = LineCollection(
        np.stack([np.stack([begin, height], -1), np.stack([end, height], -1)], axis=1).tolist(),
        array=part.staleness[step, slot],
        cmap="viridis_r",
        clim=(0, max(1, int(part.staleness[step, slot].max(initial=0)))),
        linewidths=max(2.0, 150 / len(chosen)),
        capstyle="butt",
    )
    axes.add_collection(bars)
    axes.plot(end, height, "|", color="black", markersize=max(4.0, 170 / len(chosen)), markeredgewidth=1.2)
    axes.set(xlim=(0, clock[-1]), ylim=(-0.8, len(chosen) - 0.2), xlabel="virtual time", ylabel="client")
    axes.set_yticks(range(len(chosen)), [str(client) for client in chosen], fontsize=7)
    axes.set_title(f"Work of {len(chosen)} clients, from the model it began with to its delivery (|)", loc="left")
    figure.colorbar(bars, ax=axes, label="staleness", pad=0.01, ticks=MaxNLocator(integer=True))


def _staleness(axes, timeline: Timeline) -> None:
    staleness = timeline.staleness.ravel()
    top = int(np.quantile(staleness, 0.998))  # a few very stale ones would squeeze the rest into a corner
    bins = np.arange(top + 2) - 0.5 if top < 60 else np.linspace(0, top, 61)
    axes.hist(
        np.minimum(staleness, top), bins=bins, color="#35608d", weights=np.full(staleness.size, 1 / staleness.size)
    )
    mean = float(staleness.mean())
    axes.axvline(mean, color="#d1495b", linewidth=2, label=f"mean {mean:,.1f}")
    axes.axvline(float(np.median(staleness)), color="#edae49", linewidth=2, label=f"median {np.median(staleness):,.0f}")
    axes.set(xlabel="staleness", ylabel="share of deliveries")
    axes.set_title("Staleness of what was delivered", loc="left")
    axes.plot([], [], " ", label=f"max {staleness.max():,}")
    axes.legend(frameon=False)


def _held(axes, timeline: Timeline) -> None:
    step = np.arange(timeline.steps)
    axes.plot(step, rows_held(timeline), color="#35608d", label="gradients (early)")
    axes.plot(step, versions_held(timeline), color="#d1495b", label="versions (late)")
    axes.set(xlabel="step", ylabel="number", xlim=(0, max(1, timeline.steps - 1)))
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.set_title("What a simulation must hold", loc="left")
    axes.legend(frameon=False, loc="upper right", ncols=2)
