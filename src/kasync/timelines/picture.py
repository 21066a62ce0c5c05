"""Pictures of a timeline: which client worked when, on how old a model, and what had to be held meanwhile."""

from os import PathLike

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError
from kasync.timelines.timeline import Timeline, rows_held, versions_held
from kasync.timelines.traces import DAY, Traces

Reals = NDArray[np.float64]
Places = NDArray[np.integer]
THERE, WORKING = "#c9d2dc", "#35608d"  # colours
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


def draw_day(fleet: Traces, timeline: Timeline, path: str | PathLike[str], day: int = 0, sample: int = 32) -> None:
    """One day of a fleet: how many clients are there and at work, a sample of them in detail, and who delivers.

    The timeline must have been made with this fleet, in seconds, and reach into that day.
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
    begin, end, client, staleness = _work_of(timeline, start)
    figure = _figure(12, 9)
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 2.5, 1], width_ratios=[1.5, 1])
    _day_in_numbers(figure.add_subplot(grid[0, :]), minutes - start, there, begin, end)
    _day_of_some(
        figure, figure.add_subplot(grid[1, :]), minutes - start, there, (begin, end, client, staleness), sample
    )
    axes = figure.add_subplot(grid[2, 0])
    delivered = timeline.clients[inside].ravel()
    hours = np.repeat((timeline.times[inside] - start) / 3600, timeline.k)
    axes.hist(hours, bins=np.arange(25), color=WORKING, rwidth=0.9)
    axes.set(xlim=(0, 24), xticks=range(0, 25, 2), xlabel="hour of the day")
    axes.set_title("Deliveries in each hour", loc="left")
    axes = figure.add_subplot(grid[2, 1])
    used = np.sort(np.bincount(delivered, minlength=len(everyone)))[::-1]
    share = 100 * np.cumsum(used) / used.sum()
    axes.fill_between(100 * np.arange(1, len(used) + 1) / len(used), share, color=WORKING, linewidth=0)
    most = 100 * (np.searchsorted(share, 80.0) + 1) / len(used)
    axes.plot([0, most, most], [80, 80, 0], color="black", linewidth=1, linestyle=":")
    axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="% of the clients, the busiest first", ylabel="% of the deliveries")
    axes.set_title(f"{most:.0f} % of them make 80 % of the deliveries", loc="left")
    figure.suptitle(
        f"A day of {len(everyone):,} clients: {len(delivered):,} deliveries, {int(inside.sum()):,} updates of "
        f"{timeline.k}, mean staleness {timeline.staleness[inside].mean():.1f}",
        fontsize=14,
    )
    figure.savefig(path, dpi=110)


def _work_of(timeline: Timeline, start: float) -> tuple[Reals, Reals, Places, Places]:
    """Of the deliveries of a day: hours from the model they began with to their update, client and staleness."""
    clock = np.concatenate([[0.0], timeline.times])  # when each version appeared
    updated = np.repeat(timeline.times, timeline.k)
    begun = clock[timeline.versions.ravel()]
    shown = (updated >= start) & (begun < start + DAY)
    begin, end = ((moment[shown] - start) / 3600 for moment in (begun, updated))
    return begin, end, timeline.clients.ravel()[shown], timeline.staleness.ravel()[shown]


def _day_in_numbers(axes, seconds: Reals, there, begin: Reals, end: Reals) -> None:
    """How many clients are there, and how many of those work."""
    hour = seconds / 3600
    present = there.sum(axis=0)
    working = np.searchsorted(np.sort(begin), hour, side="right") - np.searchsorted(np.sort(end), hour, side="right")
    axes.fill_between(hour, present, color=THERE, linewidth=0)
    axes.fill_between(hour, working, color=WORKING, linewidth=0)
    axes.set(xlim=(0, 24), ylim=(0, 1.15 * present.max()), xticks=range(0, 25, 2), ylabel="clients")
    axes.text(12, 0.5 * (present.mean() + working.mean()), "there", ha="center", va="center", fontsize=11)
    axes.text(12, 0.45 * working.mean(), "at work", ha="center", va="center", color="white", fontsize=11)
    axes.set_title(
        f"Of {len(there):,} clients {present.min():,} to {present.max():,} are there at a time; "
        f"{len(there) - np.count_nonzero(there.any(axis=1)):,} never are on this day",
        loc="left",
    )


def _day_of_some(figure, axes, seconds: Reals, there, work, sample: int) -> None:
    """Some clients that are there for an hour or more, in the order of the hour about which their day lies."""
    from matplotlib.collections import LineCollection

    able = np.flatnonzero(there.mean(axis=1) >= 1 / 24)
    able = able[np.linspace(0, len(able) - 1, min(sample, len(able))).astype(np.int64)] if len(able) else able
    turn = there[able] @ np.exp(2j * np.pi * (seconds - DAY / 6) / DAY)  # mornings first
    chosen = able[np.argsort(np.mod(np.angle(turn), 2 * np.pi))]
    row = np.full(len(there), -1)
    row[chosen] = np.arange(len(chosen))
    step = seconds[1] / 3600
    edges = np.diff(there[chosen].astype(np.int8), prepend=0, append=0, axis=1)
    who, first = np.nonzero(edges == 1)
    over = np.nonzero(edges == -1)[1]
    bars = [((first[i] * step, who[i]), (over[i] * step, who[i])) for i in range(len(who))]
    width = 300 / max(len(chosen), 8)
    axes.add_collection(LineCollection(bars, colors=THERE, linewidths=width, capstyle="butt"))
    begin, end, client, staleness = work
    mine = np.flatnonzero(row[client] >= 0)
    lines = [((begin[i], row[client[i]]), (end[i], row[client[i]])) for i in mine.tolist()]
    top = max(1.0, float(np.quantile(staleness, 0.95)))
    drawn = LineCollection(
        lines, array=staleness[mine], cmap="viridis_r", clim=(0, top), linewidths=0.6 * width, capstyle="butt"
    )
    axes.add_collection(drawn)
    axes.plot(end[mine], row[client[mine]], "|", color="black", markersize=width, markeredgewidth=0.7)
    axes.set(xlim=(0, 24), ylim=(len(chosen) - 0.3, -0.7), xticks=range(0, 25, 2), yticks=[])
    axes.set_ylabel("one row, one client")
    axes.set_title(
        f"{len(chosen)} clients that are there for an hour or more. Grey: there. Coloured: at work. |: the delivery",
        loc="left",
    )
    figure.colorbar(drawn, ax=axes, label="staleness", pad=0.01, extend="max")


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
