"""Pictures of a timeline: who worked when, on how old a model, and what was held meanwhile."""

from os import PathLike

import numpy as np

from kasync.errors import UserError
from kasync.timelines.timeline import Timeline, rows_held, versions_held
from kasync.timelines.traces import DAY, Traces

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
    panels(figure, timeline, sample)
    figure.suptitle(
        f"{timeline.kind}: {timeline.k:,} of {timeline.population:,} clients at each of {timeline.steps:,} steps",
        fontsize=13,
    )
    figure.savefig(path, dpi=150)


def panels(figure, timeline: Timeline, sample: int) -> None:
    """The three panels on a figure."""
    grid = figure.add_gridspec(2, 2, height_ratios=[1.5, 1])
    _work(figure, figure.add_subplot(grid[0, :]), timeline, sample)
    _staleness(figure.add_subplot(grid[1, 0]), timeline)
    _held(figure.add_subplot(grid[1, 1]), timeline)


def draw_day(fleet: Traces, timeline: Timeline, path: str | PathLike[str], day: int = 0) -> None:
    """One day of a fleet: when each client was there, what arrived in each hour, and of whom.

    In the large panel a row is a client, those that are there longest on top; grey is there, a dot is a delivery,
    coloured by staleness. The timeline must have been made with this fleet, in seconds, and reach into that day.
    """
    if fleet.availability is None:
        raise UserError(f"{fleet.source} says nothing of availability: there is no day to draw.")
    start = day * DAY
    inside = (timeline.times >= start) & (timeline.times < start + DAY)
    if not inside.any():
        raise UserError(f"no update happens on day {day}: the timeline ends after {timeline.times[-1] / DAY:.1f} days.")
    minutes = np.arange(0.0, DAY, 300.0) + start  # [288]
    everyone = np.arange(timeline.population)
    there = np.stack([fleet.availability.opening(0, everyone, np.full(len(everyone), t))[0] <= t for t in minutes], 1)
    row = np.empty(len(everyone), dtype=np.int64)
    row[np.argsort(-there.sum(axis=1), kind="stable")] = everyone
    hour = (minutes - start) / 3600
    figure = _figure(12, 8)
    grid = figure.add_gridspec(2, 2, height_ratios=[2.4, 1], width_ratios=[1.35, 1])
    _day_of_clients(figure, figure.add_subplot(grid[0, :]), timeline, inside, start, there, row)
    axes = figure.add_subplot(grid[1, 0])
    axes.fill_between(hour, 100 * there.mean(axis=0), color="#b8c4d0", label="% of clients there")
    arrived = np.histogram((timeline.times[inside] - start) / 3600, bins=np.arange(25))[0] * timeline.k
    other = axes.twinx()
    other.step(np.arange(25), np.append(arrived, arrived[-1]), where="post", color="#d1495b", linewidth=2)
    other.set_ylabel("deliveries in the hour", color="#d1495b")
    other.set_ylim(0, None)
    axes.set(
        xlim=(0, 24), ylim=(0, None), xlabel="hour of the day", ylabel="% of clients there", xticks=range(0, 25, 4)
    )
    axes.set_title("Who is there, and what arrives", loc="left")
    axes = figure.add_subplot(grid[1, 1])
    used = np.sort(np.bincount(timeline.clients[inside].ravel(), minlength=len(everyone)))[::-1]
    axes.plot(
        100 * np.arange(1, len(used) + 1) / len(used), 100 * np.cumsum(used) / used.sum(), color="#35608d", linewidth=2
    )
    axes.plot([0, 100], [0, 100], color="#999999", linewidth=1, linestyle=":")
    axes.set(xlim=(0, 100), ylim=(0, 102), xlabel="% of clients, the busiest first", ylabel="% of deliveries")
    axes.set_title(f"{np.count_nonzero(used):,} of {len(used):,} clients delivered", loc="left")
    staleness = timeline.staleness[inside]
    figure.suptitle(
        f"A day of {len(everyone):,} clients: {int(used.sum()):,} deliveries, {int(inside.sum()):,} updates of "
        f"{timeline.k}, mean staleness {staleness.mean():.1f}",
        fontsize=13,
    )
    figure.savefig(path, dpi=110)


def _day_of_clients(figure, axes, timeline: Timeline, inside, start: float, there, row) -> None:
    from matplotlib.colors import ListedColormap

    image = np.zeros(there.shape, dtype=bool)
    image[row] = there
    extent = (0, 24, len(row), 0)
    colours = ListedColormap(["#ffffff", "#c3cdd8"])
    axes.imshow(image, aspect="auto", extent=extent, cmap=colours, interpolation="nearest", vmin=0, vmax=1)
    hours = np.repeat((timeline.times[inside] - start) / 3600, timeline.k)
    staleness = timeline.staleness[inside].ravel()
    top = max(1.0, float(np.quantile(staleness, 0.98)))
    dots = axes.scatter(
        hours,
        row[timeline.clients[inside].ravel()] + 0.5,
        c=staleness,
        s=9,
        cmap="viridis_r",
        vmin=0,
        vmax=top,
        linewidths=0,
    )
    present = np.count_nonzero(there.any(axis=1))
    axes.set(xlim=(0, 24), ylim=(present + 5, 0), xticks=range(0, 25, 2), xlabel="hour of the day", ylabel="client")
    axes.set_title(
        f"Grey: the client is there ({present:,} are at some time of the day). Dots: its deliveries, at their update",
        loc="left",
    )
    figure.colorbar(dots, ax=axes, label="staleness", pad=0.01)


def _figure(width: float, height: float):
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise UserError("a picture needs matplotlib: pip install 'kasync[plot]'.") from problem
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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
