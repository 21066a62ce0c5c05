"""Measure `timelines.phones` on FLASH's traces again, and draw the fit: `python benchmarks/phones.py TRACES [PICTURE]`.

TRACES is a folder with cached_timers.json, training_latency.json and speed_distri.json (or their .gz), as FLHetBench
publishes them. Prints generated against recorded quantiles; --fit: the tables of kasync/timelines/traces.py.
"""

import argparse
from pathlib import Path

import numpy as np

from kasync.timelines import traces
from kasync.timelines.availability import Intervals
from kasync.timelines.traces import DAY, Traces

SHOWN = (0.1, 0.25, 0.5, 0.75, 0.9)
HOURS = np.arange(24)
DRAWN_TOGETHER = 0.88  # generated presence is less concentrated than recorded, so that its hours must be more
RECORDED = {"color": "#35608d", "linewidth": 4, "alpha": 0.45, "label": "recorded"}
GENERATED = {"color": "#d1495b", "linewidth": 1.5, "label": "generated"}


def recorded(folder: Path) -> Traces:
    """The traces of a folder."""
    names = ("cached_timers.json", "training_latency.json", "speed_distri.json")
    found = [next(path for path in (folder / name, folder / f"{name}.gz") if path.exists()) for name in names]
    return traces.from_flash(*found)


def measures(fleet: Traces) -> dict[str, np.ndarray]:
    """What a fleet is compared by; each an array of its own length."""
    there = fleet.availability
    lengths = there.end - there.begin
    owner = np.repeat(np.arange(there.listed), np.diff(there.first))
    period = there.period[:-1]
    last = there.first[1:] - 1
    following = np.append(there.begin[1:], 0.0)
    following[last] = there.begin[there.first[:-1]] + period
    gaps = following - there.end
    return {
        "duty": np.bincount(owner, lengths) / period,
        "windows per day": np.diff(there.first) / period * DAY,
        "window, seconds": lengths,
        "gap, seconds": gaps[gaps > 0],
        "seconds per sample": fleet.compute.measured,
        "down, kB/s": fleet.links.down,
        "up, kB/s": fleet.links.up,
    }


def by_hour(there: Intervals) -> np.ndarray:
    """[24]: share of the phones that are there in each hour of the day."""
    share = np.zeros(24)
    moments = np.arange(0, 6 * DAY, 600.0)
    for moment in moments:
        begin, _ = there.opening(0, np.arange(there.listed), np.full(there.listed, moment))
        share[int(moment % DAY // 3600)] += np.mean(begin <= moment) * 24 / len(moments)
    return share


def centres(there: Intervals) -> np.ndarray:
    """Quantiles of the circular mean of a phone's hours of presence, 14 to 38, the phones weighed by their presence."""
    turn = 2 * np.pi / DAY
    presence = (np.exp(1j * turn * there.end) - np.exp(1j * turn * there.begin)) / 1j
    whole = np.add.reduceat(presence, there.first[:-1]) / there.period[:-1]
    hours = np.mod(np.angle(whole) / turn / 3600 - 14, 24) + 14
    order = np.argsort(hours)
    weight = np.cumsum(np.abs(whole[order]))
    return np.interp(traces.PROBABILITIES, weight / weight[-1], hours[order])


def fitted(fleet: Traces, rounds: int = 40) -> dict[str, list[float]]:
    """The tables; lengths and gaps are fitted, because scaling to a phone's duty changes their distribution."""
    target = measures(fleet)

    def quantiles(values: np.ndarray) -> np.ndarray:
        return np.quantile(values, traces.PROBABILITIES)

    kinds = (  # what is shorter than the first number comes out of the scaling
        ("window, seconds", "BLINKS", "BLINK", "LENGTHS", 3.0, 15.0),
        ("gap, seconds", "BREAKS", "BREAK", "GAPS", 0.0, 60.0),
    )
    tables = {
        "DUTY": quantiles(target["duty"]),
        "WINDOWS": quantiles(target["windows per day"]),
        "CENTRE": 27 + DRAWN_TOGETHER * (centres(fleet.availability) - 27),
        "LATENCY": quantiles(target["seconds per sample"]),
        "DOWN": quantiles(target["down, kB/s"]),
        "UP": quantiles(target["up, kB/s"]),
    }
    for measure, share, short, others, least, limit in kinds:
        values = target[measure]
        setattr(traces, share, round(float((values <= limit).mean()), 3))
        tables[short] = quantiles(values[(values > least) & (values <= limit)])
        tables[others] = quantiles(values[values > limit])
    for _ in range(rounds):
        for name, table in tables.items():
            setattr(traces, name, tuple(float(f"{value:.3g}") for value in table))
        made = measures(traces.phones(20_000, seed=1))
        for measure, share, _, others, _, _ in kinds:
            below = getattr(traces, share)
            at = below + (1 - below) * np.array(traces.PROBABILITIES)
            wanted = np.log(np.quantile(target[measure], at)) - np.log(np.quantile(made[measure], at))
            moved = np.log(tables[others]) + 0.4 * wanted
            moved[0], moved[-1] = moved[1] - 0.5, moved[-2] + 0.5  # the ends are a matter of single windows
            moved = (np.maximum.accumulate(moved) + np.minimum.accumulate(moved[::-1])[::-1]) / 2  # in order again
            tables[others] = np.exp(moved - np.median(moved))  # only ratios matter
    print(f"BLINKS = {traces.BLINKS}, BREAKS = {traces.BREAKS}")
    return {name: list(getattr(traces, name)) for name in tables}


def compare(fleet: Traces, made: Traces) -> float:
    """Print the quantiles side by side, recorded and generated; the largest difference."""
    worst = 0.0
    there, generated = measures(fleet), measures(made)
    print(f"{'quantile':20}" + "".join(f"{share:>20.0%}" for share in SHOWN))
    for name in there:
        cells = []
        for share in SHOWN:
            a, b = np.quantile(there[name], share), np.quantile(generated[name], share)
            worst = max(worst, abs(b / a - 1))
            cells.append(f"{a:9.4g} {b:9.4g}")
        print(f"{name:20}" + "".join(f"{cell:>20}" for cell in cells))
    print(f"largest difference {worst:.1%}")
    return worst


def draw(fleet: Traces, made: Traces, path: Path) -> None:
    """Recorded and generated distributions, one panel for each measure, and the share of phones by hour."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(13, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    there, generated = measures(fleet), measures(made)
    panels = figure.subplots(2, 4).ravel()
    for axes, name in zip(panels, there, strict=False):
        for values, style in ((there[name], RECORDED), (generated[name], GENERATED)):
            axes.plot(np.sort(values), (np.arange(len(values)) + 0.5) / len(values), **style)
        low, high = np.quantile(there[name], [0.005, 0.995])
        axes.set(xscale="log", xlim=(low, high), ylim=(0, 1), title=f"{name} ({len(there[name]):,} recorded)")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("share below")
    panels[4].set_ylabel("share below")
    panels[0].legend(frameon=False, loc="upper left")
    axes = panels[-1]
    axes.step(HOURS, by_hour(fleet.availability), where="mid", **RECORDED)
    axes.step(HOURS, by_hour(made.availability), where="mid", **GENERATED)
    axes.set(title="share there, by hour", ylim=(0, None), xlim=(0, 23), xlabel="hour of the day")
    axes.grid(alpha=0.25)
    figure.suptitle("timelines.phones against FLASH's traces")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("picture", type=Path, nargs="?")
    parser.add_argument("--fit", action="store_true", help="fit the tables again and print them")
    given = parser.parse_args()
    fleet = recorded(given.traces)
    if given.fit:
        for name, table in fitted(fleet).items():
            print(f"{name} = ({', '.join(f'{value:.3g}' for value in table)})")
    made = traces.phones(20_000, seed=0)
    worst = compare(fleet, made)
    for name, one in (("recorded", fleet), ("generated", made)):
        share = by_hour(one.availability)
        print(f"there by hour, {name:9}", " ".join(f"{each:.3f}" for each in share), f"swing {np.ptp(share):.3f}")
    if given.picture:
        draw(fleet, made, given.picture)
    return 0 if worst < 0.1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
