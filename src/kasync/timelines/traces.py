"""Recorded and generated fleets: when phones are there, how fast they compute, how fast their links are; importers.

The format is plain text, three csv files in a folder, each of which may be missing:

    availability.csv   client,start,end[,repeat]                     seconds; after `repeat` seconds it all comes again
    compute.csv        client,seconds                                per sample; of several rows one after the other
    links.csv          client,down,up[,down_deviation,up_deviation]  kB/s

Clients are numbered in the order in which they appear, in each file of its own, whatever they are called. A fleet with
more clients than a file uses them again from the first.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.counter import Stream, bits, normals, uniforms
from kasync.errors import UserError
from kasync.timelines import checks
from kasync.timelines.availability import Intervals
from kasync.timelines.clock import clock
from kasync.timelines.durations import Durations, Times, Trace, Transfer, trace
from kasync.timelines.timeline import Timeline

Reals = NDArray[np.float64]
Ints = NDArray[np.integer]
DAY = 86_400.0
FILES = ("availability.csv", "compute.csv", "links.csv")
LEAST = 0.1  # of its mean: no link is slower than that at any moment


@dataclass(frozen=True)
class Links:
    """kB/s of each traced client, down and up: the mean, and the deviation from one transfer to the next."""

    down: Reals  # [links]
    up: Reals  # [links]
    down_deviation: Reals  # [links]
    up_deviation: Reals  # [links]


@dataclass(frozen=True, eq=False)
class Rate(Durations):
    """kB/s by client, drawn anew for every transfer: mean + deviation z, and never less than a tenth of the mean."""

    mean: Reals  # [links]
    deviation: Reals  # [links]

    def seconds(self, seed: int, client: Ints, piece: Ints, stream: int = Stream.DURATIONS) -> Reals:
        row = np.asarray(client) % len(self.mean)
        drawn = self.mean[row] + self.deviation[row] * normals(seed, stream, client, piece)
        return np.maximum(drawn, LEAST * self.mean[row])

    def typical(self, seed: int, client: Ints, stream: int = Stream.DURATIONS) -> Reals:
        return self.mean[np.asarray(client) % len(self.mean)]

    def __repr__(self) -> str:
        return f"Rate({len(self.mean)} links, median {np.median(self.mean):.4g} kB/s)"


@dataclass(frozen=True, eq=False)
class Traces:
    """A recorded or generated fleet; what was not recorded is None."""

    availability: Intervals | None = None
    compute: Trace | None = None  # seconds per sample
    links: Links | None = None
    source: str = "traces"

    @property
    def clients(self) -> int:
        """How many clients were recorded; of several files, the longest."""
        counts = [
            self.availability.listed if self.availability else 0,
            self.compute.clients if self.compute else 0,
            len(self.links.down) if self.links else 0,
        ]
        return max(counts)

    def work(self, samples: ArrayLike) -> Durations:
        """Seconds of a piece of work of so many samples; one number, or one for each client."""
        if self.compute is None:
            raise UserError(f"{self.source} says nothing of compute: give durations of your own.")
        return Times(self.compute, checks.positives("samples", samples))

    def transfer(self, kilobytes: float, upload_kilobytes: float | None = None) -> Durations:
        """Seconds for the model down and the update up."""
        if self.links is None:
            raise UserError(f"{self.source} says nothing of links: leave kilobytes out.")
        down = Rate(self.links.down, self.links.down_deviation)
        return Transfer(kilobytes, down, Rate(self.links.up, self.links.up_deviation), upload_kilobytes)

    def picture(self, timeline: Timeline, path: str | PathLike[str], day: int = 0) -> None:
        """Draw a day of this fleet and of a timeline made with it into an image file."""
        from kasync.timelines.picture import draw_day

        draw_day(self, timeline, path, day)

    def write(self, folder: str | PathLike[str]) -> None:
        """As csv files that `read` understands."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        if self.availability is not None:
            _write(target / FILES[0], ("client", "start", "end", "repeat"), _windows(self.availability))
        if self.compute is not None:
            owner = np.repeat(
                np.arange(self.compute.clients), np.diff(self.compute.first, append=len(self.compute.measured))
            )
            rows = zip(owner.tolist(), self.compute.measured.tolist(), strict=True)
            _write(target / FILES[1], ("client", "seconds"), rows)
        if self.links is not None:
            columns = (self.links.down, self.links.up, self.links.down_deviation, self.links.up_deviation)
            rows_of_links = zip(range(len(self.links.down)), *(column.tolist() for column in columns), strict=True)
            _write(target / FILES[2], ("client", "down", "up", "down_deviation", "up_deviation"), rows_of_links)


def read(folder: str | PathLike[str]) -> Traces:
    """The traces in a folder of csv files."""
    where = Path(folder)
    present = [name for name in FILES if (where / name).exists()]
    if not present:
        raise UserError(f"{where} has none of {', '.join(FILES)}: write at least one of them, or give another folder.")
    availability = compute = links = None
    if FILES[0] in present:
        rows = list(_rows(where / FILES[0], ("client", "start", "end"), ("repeat",)))
        number = _numbered(row[0] for row in rows)
        windows = [(number[row[0]], row[1], row[2]) for row in rows]
        whole = math.ceil(max((row[2] for row in rows), default=1.0) / DAY) * DAY
        repeat = np.full(len(number), whole)
        for row in rows:
            if not math.isnan(row[3]):
                repeat[number[row[0]]] = row[3]
        availability = Intervals(windows, repeat=repeat, cycle=True)
    if FILES[1] in present:
        compute = trace(where / FILES[1])
    if FILES[2] in present:
        rows = list(_rows(where / FILES[2], ("client", "down", "up"), ("down_deviation", "up_deviation")))
        columns = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 4)
        columns[:, 2:] = np.nan_to_num(columns[:, 2:])
        links = _links(columns.T, str(where / FILES[2]))
    return Traces(availability, compute, links, str(folder))


def from_traces(
    source: Traces | str | PathLike[str],
    k: int,
    steps: int,
    clients: int | None = None,
    samples: ArrayLike = 1.0,
    kilobytes: float | None = None,
    seed: int = 0,
    durations: Durations | None = None,
    **options: Any,
) -> Timeline:
    """The clock with a recorded fleet: `Traces`, or a folder of them; the other options are those of `clock`.

    samples     of one piece of work, times the recorded seconds per sample; one number, or one for each client
    kilobytes   of the model, over the recorded links; without it the transfer takes no time
    durations   for fleets whose compute was not recorded
    """
    fleet = source if isinstance(source, Traces) else read(source)
    work = fleet.work(samples) if durations is None else durations
    if kilobytes is not None:
        options["transfer"] = fleet.transfer(kilobytes)
    options.setdefault("availability", fleet.availability)
    return clock(fleet.clients if clients is None else clients, k, steps, work, seed, **options)


# importers


def from_flash(
    states: str | PathLike[str] | None = None,
    latencies: str | PathLike[str] | None = None,
    speeds: str | PathLike[str] | None = None,
) -> Traces:
    """The json files of FLASH and FLHetBench, plain or gzipped.

    states      {phone: {trace_start, trace_end, ready_time: [[start, end], ...]}} in seconds of local time; a phone
                repeats after the whole days it was watched. Windows of no length are left out, and phones without any
    latencies   [{"ResNet Latency": milliseconds per sample}, ...]; zeros are left out
    speeds      {link: {down_u, down_sigma, up_u, up_sigma}} in kB/s
    """
    availability = compute = links = None
    if states is not None:
        found = [_flash_windows(phone, str(states)) for phone in _values(_json(states), states)]
        kept = [(windows, period) for windows, period in found if len(windows)]
        if not kept:
            raise UserError(f"{states} has no phone that is ever ready: give FLASH's cached_timers.json.")
        rows = [(number, *window) for number, (windows, _) in enumerate(kept) for window in windows]
        availability = Intervals(rows, repeat=[period for _, period in kept], cycle=True)
    if latencies is not None:
        each = [_number(entry, "ResNet Latency", latencies) for entry in _values(_json(latencies), latencies)]
        compute = trace({place: [ms / 1000] for place, ms in enumerate(ms for ms in each if ms > 0)})
    if speeds is not None:
        columns = [
            [_number(entry, name, speeds) for entry in _values(_json(speeds), speeds)]
            for name in ("down_u", "up_u", "down_sigma", "up_sigma")
        ]
        links = _links(np.array(columns), str(speeds))
    return Traces(availability, compute, links, "FLASH's traces")


def from_fedscale(capacity: str | PathLike[str] | None = None, behaviour: str | PathLike[str] | None = None) -> Traces:
    """FedScale's client_device_capacity and client_behave_trace, pickled or json.

    capacity    {client: {computation: milliseconds per sample of inference, communication: kbit/s}}; training a sample
                takes three times as long as inference, as FedScale reckons
    behaviour   {client: {active: [...], inactive: [...], finish_time}}: there from active[i] to inactive[i], seconds,
                again after finish_time
    """
    availability = compute = links = None
    if capacity is not None:
        table = _values(_plain_pickle(capacity), capacity)
        each = [3 * _number(entry, "computation", capacity) / 1000 for entry in table]
        rates = np.array([_number(entry, "communication", capacity) / 8 for entry in table])  # kB/s
        compute = trace({place: [seconds] for place, seconds in enumerate(each)})
        links = _links(np.stack([rates, rates, 0 * rates, 0 * rates]), str(capacity))
    if behaviour is not None:
        rows: list[tuple[float, ...]] = []
        repeat: list[float] = []
        for entry in _values(_plain_pickle(behaviour), behaviour):
            period = _number(entry, "finish_time", behaviour)
            windows = [
                (max(float(start), 0.0), min(float(end), period))
                for start, end in zip(entry.get("active", []), entry.get("inactive", []), strict=False)
                if min(float(end), period) > max(float(start), 0.0)
            ]
            rows += [(len(repeat), *window) for window in _merged(windows)]
            repeat += [period] if windows else []
        if not rows:
            raise UserError(f"{behaviour} has no client that is ever active: give FedScale's client_behave_trace.")
        availability = Intervals(rows, repeat=repeat, cycle=True)
    return Traces(availability, compute, links, "FedScale's traces")


def _flash_windows(phone: Any, file: str) -> tuple[list[tuple[float, float]], float]:
    """A phone's windows from the midnight before it was first watched on, and its period; none for a failed record."""
    if not isinstance(phone, Mapping) or not phone.get("isSuccess", True):
        return [], DAY
    start, end = _number(phone, "trace_start", file), _number(phone, "trace_end", file)
    period = max(1.0, round((end - start) / DAY)) * DAY
    midnight = math.floor(start / DAY) * DAY
    windows: list[tuple[float, float]] = []
    for begin, stop in phone.get("ready_time") or []:
        begin, stop = float(begin) - midnight, min(float(stop), start + period) - midnight
        if begin >= period:  # on the last day, before the hour at which the record began
            begin, stop = begin - period, stop - period
        if stop > begin:
            windows += [(begin, stop)] if stop <= period else [(begin, period), (0.0, stop - period)]
    return _merged(windows), period


def _merged(windows: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """In order, those that overlap or touch made one."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted(windows):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((begin, end))
    return out


def _links(every: Reals, file: str) -> Links:
    """Of [4, links]: down, up and their deviations."""
    if not every.size or not (np.isfinite(every).all() and (every[:2] > 0).all() and (every[2:] >= 0).all()):
        raise UserError(
            f"{file}: a link is not above 0 kB/s with a deviation of at least 0: remove or repair that row."
        )
    return Links(*every)


def _windows(intervals: Intervals) -> Iterator[tuple[float, ...]]:
    """(client, start, end, repeat) of all windows, within the period and in order."""
    period = np.full(intervals.listed, np.nan) if intervals.period is None else intervals.period[:-1]
    shift = np.zeros(intervals.listed) if intervals.shift is None else intervals.shift[:-1]
    for client in range(intervals.listed):
        rows = slice(intervals.first[client], intervals.first[client + 1])
        every = float(period[client])
        pairs = np.stack([intervals.begin[rows], intervals.end[rows]], axis=1) + shift[client]
        if not math.isnan(every):
            pairs = pairs - np.floor(pairs[:, :1] / every) * every
        wrapped = [(0.0, float(end) - every) for _, end in pairs if end > every]
        inside = [(float(begin), min(float(end), every) if every == every else float(end)) for begin, end in pairs]
        for begin, end in _merged(inside + wrapped):
            yield (client, begin, end, every)


def _write(path: Path, header: tuple[str, ...], rows: Iterable[tuple[float, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(header)
        for client, *numbers in rows:
            out.writerow([client, *("" if math.isnan(number) else f"{number:.12g}" for number in numbers)])


def _rows(path: Path, needed: tuple[str, ...], optional: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """(client, numbers ...) of each row; nan for an optional column that is missing or empty."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not set(needed) <= set(reader.fieldnames or ()):
                raise UserError(f"{path} lacks the header {','.join(needed)}: write it as the first line.")
            for row in reader:
                yield (
                    row["client"],
                    *(checks.cell(row[name], name, path, reader.line_num) for name in needed[1:]),
                    *(checks.cell(row.get(name) or "nan", name, path, reader.line_num) for name in optional),
                )
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{path} cannot be read ({problem}): give a csv file {','.join(needed)}.") from problem


def _numbered(names: Iterable[str]) -> dict[str, int]:
    """0, 1, ... in the order of first appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _content(path: str | PathLike[str]) -> bytes:
    try:
        content = Path(path).read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError) as problem:
        raise UserError(f"{path} cannot be read ({problem}): give the file of the traces.") from problem


def _json(path: str | PathLike[str]) -> Any:
    try:
        return json.loads(_content(path))
    except ValueError as problem:
        raise UserError(f"{path} is not json ({problem}): give the file as it was published.") from problem


class _PlainUnpickler(pickle.Unpickler):
    """Numbers, texts, lists and dicts only: a pickle that names anything else, which could be a program, is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _plain_pickle(path: str | PathLike[str]) -> Any:
    content = _content(path)
    if content.lstrip()[:1] in (b"{", b"["):
        return _json(path)
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as problem:  # damaged bytes make an unpickler fail in many ways
        raise UserError(
            f"{path} is neither json nor a pickle of plain values ({problem}): write it as json."
        ) from problem


def _values(table: Any, file: object) -> list[Any]:
    """The entries of a dict or a list."""
    entries = list(table.values()) if isinstance(table, Mapping) else table
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise UserError(f"{file} is not a table of clients: give the file as it was published.")
    return entries


def _number(entry: Mapping[str, Any], name: str, file: object) -> float:
    try:
        return float(entry[name])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file}: {name} is {entry.get(name)!r}, give a number.") from None


# Generated phones, like those of FLASH.
#
# The tables below come from the traces that FLHetBench publishes (704 phones that were ever ready, 13,364 windows; 978
# training latencies of ResNet; 19 links). LENGTHS and GAPS are fitted, because scaling changes them; BLINK, BREAK, the
# shares of BREAKS and OUTINGS and the middle of LENGTHS were then set by hand; CENTRE is drawn together to 88 % about
# 27, so that nights are as much fuller than days as recorded; the rest is measured. `benchmarks/phones.py` does it
# again and draws the fit:
#
#     duty         share of the time in which a phone is locked, charging and on Wi-Fi
#     windows      how many such windows it has in a day; their normal scores and those of the duty correlate by 0.58
#     lengths      of one phone's windows: a share of BLINKS takes BLINK seconds, the others are multiples of each
#                  other, scaled so that duty and number of windows are met over the six days that repeat
#     gaps         between them, in the same way: BREAKS of them last BREAK seconds, and OUTINGS of them OUTING, from
#                  ten hours to a day, as long as the phone has room for them
#     order        of ORDERS random orders of a phone's windows and gaps, the one whose presence lies most about one
#                  hour of the day
#     centre       hour of the day about which a phone's presence lies (its circular mean): the night is in the middle
#     latency      seconds to train on one sample, taking the published numbers as milliseconds; always the same
#     links        kB/s; down and up of one phone correlate by 0.72, each transfer varies about the phone's mean
#
# A table has a value for each of the probabilities in PROBABILITIES; between them the logarithm is linear.

DAYS = 6  # after which a phone repeats
ORDERS = 8  # of a phone's windows and gaps, of which the one with the clearest days is taken
SHORTEST, LEAST_MEAN = 1.0, 10.0  # seconds of a window, and of the windows of one phone on average
PROBABILITIES = (0.0, 0.02, 0.05, 0.1, 0.175, 0.25, 0.375, 0.5, 0.625, 0.75, 0.825, 0.9, 0.95, 0.98, 1.0)
# fmt: off
DUTY = (
    6.94e-06, 4.66e-05, 0.000264, 0.00168, 0.0069, 0.0129, 0.0325, 0.0557,
    0.0917, 0.131, 0.182, 0.256, 0.325, 0.446, 0.784,
)
WINDOWS = (0.1, 0.167, 0.255, 0.5, 0.8, 1, 1.83, 2.77, 4, 5.69, 7, 9.19, 12, 17, 42)
BLINK = (3, 3, 3.5, 5, 7, 9, 9.5, 10, 10, 10, 11, 12, 13, 14.4, 15)
BLINKS = 0.277
LENGTHS = (0.127, 0.19, 0.19, 0.19, 0.192, 0.196, 0.431, 1, 2.15, 2.8, 3.4, 7.5, 26.8, 26.8, 43.5)
BREAK = (1, 1, 1, 1, 1, 1.7, 3.3, 6.3, 11.5, 21, 30, 41, 50, 56, 60)
BREAKS = 0.24
OUTING = (36000, 37000, 38000, 40000, 43000, 46000, 51000, 57000, 63000, 70000, 74000, 79000, 83000, 86000, 90000)
OUTINGS = 0.05
GAPS = (0.114, 0.185, 0.187, 0.187, 0.187, 0.191, 0.431, 1, 2.57, 27.6, 27.6, 32.6, 32.6, 32.6, 53.2)
CENTRE = (15.6, 16.4, 17.0, 18.4, 20.4, 24.4, 25.8, 27.0, 28.1, 29.7, 31.0, 33.3, 34.6, 36.0, 36.6)
LATENCY = (0.04, 0.0539, 0.0599, 0.069, 0.083, 0.096, 0.135, 0.172, 0.228, 0.309, 0.374, 0.476, 0.559, 1.28, 15.1)
DOWN = (
    2370, 2660, 3100, 3270, 3500, 3720, 4170, 4320,
    5520, 7240, 7460, 9090, 10700, 14700, 17300,
)
UP = (
    431, 515, 641, 2000, 2560, 2700, 3000, 3290,
    3810, 5040, 5570, 5850, 6310, 6510, 6640,
)
# fmt: on
DUTY_AND_WINDOWS = 0.58
DOWN_AND_UP = 0.72
DOWN_DEVIATION, UP_DEVIATION = 0.37, 0.40  # as shares of the mean

_DUTY, _WINDOWS, _LENGTH, _GAP, _HOUR, _PLACE, _LATENCY, _DOWN, _UP, _ORDER = range(10)  # draws of one phone


def phones(clients: int, seed: int = 0) -> Traces:
    """So many phones; phone c is the same in every fleet of the same seed that has it."""
    clients, seed = checks.whole("clients", clients, 1), checks.seed_of(seed)
    who = np.arange(clients)
    mean_down, mean_up = _pair(seed, who, _DOWN, _UP, DOWN, UP, DOWN_AND_UP)
    return Traces(
        _availability(seed, who),
        Trace(_value(LATENCY, uniforms(seed, Stream.PHONES, who, 0, _LATENCY)), who, "phones"),
        Links(mean_down, mean_up, DOWN_DEVIATION * mean_down, UP_DEVIATION * mean_up),
        f"phones({clients}, seed={seed})",
    )


def _availability(seed: int, who: NDArray[np.int64]) -> Intervals:
    """Windows and gaps in turns, scaled to the phone's duty, in an order and at hours that give it days and nights."""
    duty, per_day = _pair(seed, who, _DUTY, _WINDOWS, DUTY, WINDOWS, DUTY_AND_WINDOWS)
    most = duty * DAYS * DAY / LEAST_MEAN  # [clients]
    count = np.maximum(1, np.rint(np.minimum(per_day * DAYS, most))).astype(np.int64)  # [clients]
    first = np.concatenate([[0], np.cumsum(count)])  # [clients + 1]
    owner = np.repeat(who, count)  # [rows]
    place = np.arange(first[-1]) - first[owner]  # [rows]: 0, 1, ... of each phone
    span = DAYS * DAY
    lengths = _scaled(seed, owner, place, first, duty * span, (_LENGTH, BLINKS, BLINK, 0.0, LENGTHS, LENGTHS))
    rest = span - np.add.reduceat(lengths, first[:-1])
    gaps = _scaled(seed, owner, place, first, rest, (_GAP, BREAKS, BREAK, OUTINGS, OUTING, GAPS))
    # Whole milliseconds add up exactly, so that a phone does not depend on those before it.
    taken, between = np.rint(1000 * lengths).astype(np.int64), np.floor(1000 * gaps).astype(np.int64)  # [rows]
    turn = 2 * np.pi / DAY
    begin = end = np.empty(0)
    presence = np.zeros(len(who), dtype=np.complex128)  # [clients]
    for order in range(ORDERS):
        drawn = [_shuffled(seed, owner, place, one, 2 * order + which) for which, one in enumerate((taken, between))]
        start, stop = _placed(drawn[0], drawn[1], first, place, span)
        found = np.add.reduceat((np.exp(1j * turn * stop) - np.exp(1j * turn * start)) / 1j, first[:-1])
        better = np.abs(found) > np.abs(presence)  # of the same windows and gaps, what is most of the same hours
        presence = np.where(better, found, presence)
        rows = better[owner]
        begin, end = (np.where(rows, start, begin), np.where(rows, stop, end)) if order else (start, stop)
    centre = _value(CENTRE, uniforms(seed, Stream.PHONES, who, 0, _HOUR)) * 3600
    day = np.floor(DAYS * uniforms(seed, Stream.PHONES, who, 0, _PLACE)) * DAY
    return Intervals.of_rows(begin, end, first, span, shift=day + np.mod(centre - np.angle(presence) / turn, DAY))


def _shuffled(
    seed: int, owner: NDArray[np.int64], place: NDArray[np.int64], values: NDArray[np.int64], number: int
) -> NDArray[np.int64]:
    """[rows]: the same values of each phone in another random order."""
    keys = bits(seed, Stream.PHONES, owner, place, _ORDER + number) >> np.uint64(32)
    return values[np.argsort(owner << 32 | keys.astype(np.int64), kind="stable")]


def _placed(
    taken: NDArray[np.int64],
    between: NDArray[np.int64],
    first: NDArray[np.int64],
    place: NDArray[np.int64],
    span: float,
) -> tuple[Reals, Reals]:
    """([rows], [rows]): begin and end of windows and gaps, in milliseconds, put one after the other."""
    begun = np.cumsum(taken + between) - taken - between
    begin = (begun - np.repeat(begun[first[:-1]], np.diff(first))) / 1000
    end = np.minimum(begin + taken / 1000, span)
    end[:-1] = np.where(place[1:] > 0, np.minimum(end[:-1], begin[1:]), end[:-1])
    return begin, end


def _scaled(
    seed: int,
    owner: NDArray[np.int64],
    place: NDArray[np.int64],
    first: NDArray[np.int64],
    total: Reals,
    kind: tuple[int, float, tuple[float, ...], float, tuple[float, ...], tuple[float, ...]],
) -> Reals:
    """[rows]: seconds that add up to each phone's total: a share short, a share long, the others scaled to fill it."""
    draw, share, short, upper, long, others = kind
    u = uniforms(seed, Stream.PHONES, owner, place, draw)
    is_short, is_long = u < share, u > 1 - upper
    brief = np.where(is_short, _value(short, u / share), 0.0)
    relative = np.where(is_short, 0.0, _value(others, (u - share) / (1 - share)))
    plain = np.where(is_short, brief, relative)
    out = plain * (total / np.add.reduceat(plain, first[:-1]))[owner]  # all are scaled
    middle = np.where(is_short | is_long, 0.0, _value(others, (u - share) / (1 - share - upper)))
    lasting = brief + np.where(is_long, _value(long, (u - 1 + upper) / max(upper, 1e-9)), 0.0)
    for fixed, free in (
        (brief, relative),
        (lasting, middle),
    ):  # better where there is room: keep the short, and the long
        left = total - np.add.reduceat(fixed, first[:-1])
        weight = np.add.reduceat(free, first[:-1])
        fits = (left > 0.2 * total) & (weight > 0)
        scaled = fixed + free * np.where(fits, left / np.where(weight > 0, weight, 1.0), 0.0)[owner]
        out = np.where(fits[owner], scaled, out)
    out = np.maximum(out, SHORTEST)
    return out * np.minimum(1.0, total / np.add.reduceat(out, first[:-1]))[owner]


def _pair(
    seed: int,
    who: NDArray[np.int64],
    one: int,
    other: int,
    table: tuple[float, ...],
    second: tuple[float, ...],
    correlation: float,
) -> tuple[Reals, Reals]:
    """Two values of each phone that go together: their normal scores correlate."""
    z = normals(seed, Stream.PHONES, who, 1, one)
    y = correlation * z + np.sqrt(1 - correlation**2) * normals(seed, Stream.PHONES, who, 1, other)
    return _value(table, _below(z)), _value(second, _below(y))


def _below(z: Reals) -> Reals:
    """The probability of a standard normal below z, to 1e-7 (Abramowitz and Stegun, 7.1.26)."""
    x = np.abs(z) / np.sqrt(2.0)
    t = 1 / (1 + 0.3275911 * x)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.clip(0.5 + np.sign(z) * 0.5 * (1 - tail * np.exp(-x * x)), 0.0, 1.0)


def _value(table: tuple[float, ...], probability: Reals) -> Reals:
    """The quantile of a table."""
    return np.exp(np.interp(probability, PROBABILITIES, np.log(table)))
