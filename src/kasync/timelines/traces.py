"""Recorded fleets: when phones were there, how fast they computed, how fast their links were; and their importers.

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

from kasync.counter import Stream, normals
from kasync.errors import UserError
from kasync.timelines import checks
from kasync.timelines.clock import clock
from kasync.timelines.durations import Durations, Times, Trace, Transfer, trace
from kasync.timelines.presence import Intervals
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
        return Times(self.compute, samples)

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
