"""Arrays that say who delivers at each step, from which model version, and when; their summary, checks and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kasync import files
from kasync.errors import UserError

Ints = NDArray[np.int32]
Counts = NDArray[np.int64]
DTYPES: dict[str, type] = {
    "clients": np.int32,
    "versions": np.int32,
    "times": np.float64,
    "copies": np.bool_,
    "local_steps": np.int32,
}
FORMAT = "kasync timeline"
VERSION = 1
OPTIONAL = ("copies", "local_steps")  # arrays that a timeline may lack


@dataclass(frozen=True, eq=False)
class Timeline:
    """Step s uses the work of clients[s], begun on the models versions[s], and ends at virtual second times[s].

    The update of step s turns version s into version s + 1. Staleness is s - version: fresh work has 0.
    The arrays are read-only, and what is derived from them is computed once, when first asked for.
    """

    clients: Ints  # [steps, k]: who delivers
    versions: Ints  # [steps, k]: the model version each of them worked on
    times: NDArray[np.float64]  # [steps]: when the update happens
    population: int
    kind: str = "recorded"
    settings: Mapping[str, Any] = field(default_factory=dict)
    copies: NDArray[np.bool_] | None = None  # [steps, k]: the client's last delivery once more; None: there are none
    local_steps: Ints | None = None  # [steps, k]: of each delivery's work; None: what the work says

    def __post_init__(self) -> None:
        for name, dtype in DTYPES.items():
            if getattr(self, name) is not None:
                given = np.asarray(getattr(self, name))
                if given.dtype.kind == "f" and dtype is np.int32 and (given % 1 != 0).any():
                    raise UserError(f"{name} of a timeline holds {given[given % 1 != 0][0]}: give whole numbers.")
                view: NDArray[Any] = np.ascontiguousarray(given, dtype=dtype).view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)
        same = self.clients.shape == self.versions.shape and self.times.shape == self.clients.shape[:1]
        if self.clients.ndim != 2 or not same:
            raise UserError(
                f"a timeline has clients [steps, k], versions [steps, k] and times [steps], "
                f"not {self.clients.shape}, {self.versions.shape} and {self.times.shape}."
            )
        for name in ("copies", "local_steps"):
            array = getattr(self, name)
            if array is not None and array.shape != self.clients.shape:
                raise UserError(f"{name} has shape {array.shape}: give it the shape of clients {self.clients.shape}.")

    @property
    def steps(self) -> int:
        return self.clients.shape[0]

    @property
    def k(self) -> int:
        return self.clients.shape[1]

    @cached_property
    def staleness(self) -> Ints:
        """[steps, k]: updates that happened while the client worked."""
        return np.arange(self.steps, dtype=np.int32)[:, None] - self.versions

    @cached_property
    def visits(self) -> Ints:
        """[steps, k]: how often this client delivered before; 0 at its first delivery. A copy has what it copies."""
        return self._history.visits if self.copies is None else originals_before(self.clients, self.copies)

    @property
    def previous_step(self) -> Ints:
        """[steps, k]: the step at which this client delivered last, -1 when never."""
        return self._history.previous_step

    @property
    def next_step(self) -> Ints:
        """[steps, k]: the step at which this client delivers next, -1 when never."""
        return self._history.next_step

    @property
    def begun(self) -> Ints:
        """[steps, k]: from which step on this delivery was owed: its version, or for a copy after the first time."""
        return self.versions if self.copies is None else np.maximum(self.versions, self.previous_step + np.int32(1))

    @cached_property
    def first_step(self) -> Ints:
        """[population]: the step of each client's first delivery, -1 when it never delivers."""
        first = np.full(self.population, -1, dtype=np.int32)
        step, slot = np.nonzero(self._history.visits == 0)
        first[self.clients[step, slot]] = step
        return first

    def head(self, steps: int) -> Self:
        """The first steps only."""
        if not 1 <= steps <= self.steps:
            raise UserError(f"steps is {steps} but the timeline has {self.steps}: choose between 1 and {self.steps}.")
        given = {name: getattr(self, name) for name in DTYPES}
        return replace(self, **{name: array[:steps] for name, array in given.items() if array is not None})

    def summary(self) -> Summary:
        """Staleness, pace, who took part, and what a simulation must hold in memory."""
        return summarize(self)

    def picture(self, path: str | PathLike[str], sample: int = 24) -> None:
        """Draw the work of a sample of clients over time, and the staleness, into an image file."""
        from kasync.timelines.picture import draw

        draw(self, path, sample)

    def fingerprint(self) -> str:
        """64 hexadecimal digits that two timelines share when their arrivals, versions, times and local steps do."""
        digest = hashlib.sha256(f"{self.population} {self.steps} {self.k}".encode())
        for array in (self.clients, self.versions, self.times, self.copies):
            if array is not None:
                digest.update(array.data)
        if self.local_steps is not None:
            digest.update(b"local steps")
            digest.update(self.local_steps.data)
        return digest.hexdigest()

    def knowing(self, past: History) -> Self:
        """The same timeline, with the history its maker had computed already."""
        self.__dict__["_history"] = past
        return self

    @cached_property
    def _history(self) -> History:
        return history(self.clients)

    def __repr__(self) -> str:
        return f"Timeline({self.kind}: {self.steps} steps, {self.k} of {self.population} clients at each)"

    def _repr_html_(self) -> str:
        from kasync import notebook
        from kasync.timelines.picture import panels

        words = f"{self!r}; staleness {self.staleness.mean():.1f} on average, {self.staleness.max()} at most"
        return notebook.card(words, lambda figure: panels(figure, self, 12), 11.0, 6.5)


@dataclass(frozen=True)
class History:
    """For every delivery: how many its client made before, and the steps of the last and next one (-1: none)."""

    visits: Ints  # [steps, k]
    previous_step: Ints  # [steps, k]
    next_step: Ints  # [steps, k]


def history(clients: Ints) -> History:
    """The history of the deliveries clients [steps, k]; memory about 24 bytes per delivery while it runs."""
    k = clients.shape[1]
    # Sorting client * 2^32 + place brings the deliveries of a client together, in time order, without an index sort.
    keys = (clients.astype(np.int64) << 32).ravel()  # [steps * k]
    keys |= np.arange(keys.size, dtype=np.int64)
    keys.sort()
    place = (keys & 0xFFFFFFFF).astype(np.intp)  # [steps * k]
    owner = (keys >> 32).astype(np.int32)  # [steps * k]
    del keys
    step = (place // k).astype(np.int32)  # [steps * k]
    same = owner[1:] == owner[:-1]  # [steps * k - 1]: the next entry is the same client's next delivery

    index = np.arange(owner.size, dtype=np.int32)  # [steps * k]
    starts = np.concatenate([[True], ~same])
    visits = index - np.maximum.accumulate(np.where(starts, index, 0))
    before = np.concatenate([[-1], np.where(same, step[:-1], -1)])
    after = np.concatenate([np.where(same, step[1:], -1), [-1]])
    return History(*(_scatter(values, place, clients.shape) for values in (visits, before, after)))


def originals_before(clients: Ints, copies: NDArray[np.bool_]) -> Ints:
    """[steps, k]: how many deliveries a client made before that were no copies; of a copy, before what it copies."""
    place = np.argsort(clients, axis=None, kind="stable")  # [steps * k]: the deliveries of a client together, in order
    owner, new = clients.ravel()[place], ~copies.ravel()[place]
    so_far = np.cumsum(new)
    starts = np.flatnonzero(np.diff(owner, prepend=-1))  # [clients that deliver]
    others: NDArray[np.int64] = np.repeat(so_far[starts] - new[starts], np.diff(starts, append=len(owner)))  # before
    return _scatter(so_far - others - 1, place, clients.shape)


def _scatter(values: NDArray[np.integer], place: NDArray[np.intp], shape: tuple[int, ...]) -> Ints:
    """Values in sorted order, put back where they came from."""
    out = np.empty(place.size, dtype=np.int32)
    out[place] = values
    out.flags.writeable = False
    return out.reshape(shape)


@dataclass(frozen=True)
class Summary:
    """The numbers a person wants to know before training on a timeline."""

    kind: str
    clients: int
    k: int
    steps: int
    mean_staleness: float
    median_staleness: float
    max_staleness: int
    virtual_seconds: float
    steps_per_second: float  # of virtual time
    share_delivering: float  # of the clients, those that delivered at least once
    fewest_deliveries: int  # of any client, and so on
    median_deliveries: float
    most_deliveries: int
    rows_held: int  # peak, when gradients are computed as soon as a client has its model
    versions_held: int  # peak, when models are kept until the last client that works on them delivers

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.kind}: {self.steps:,} steps, {self.k:,} of {self.clients:,} clients at each",
                f"staleness   mean {self.mean_staleness:,.1f}, median {self.median_staleness:,.0f}, "
                f"max {self.max_staleness:,}",
                f"time        {self.virtual_seconds:,.6g} virtual seconds, {self.steps_per_second:,.4g} steps a second",
                f"clients     {self.share_delivering:.1%} delivered; deliveries per client: fewest "
                f"{self.fewest_deliveries:,}, median {self.median_deliveries:,.0f}, most {self.most_deliveries:,}",
                f"to be held  {self.rows_held:,} gradients early, or {self.versions_held:,} model versions late",
            ]
        )


def summarize(timeline: Timeline) -> Summary:
    """All of it, from the arrays alone."""
    staleness = timeline.staleness
    deliveries = np.bincount(timeline.clients.ravel(), minlength=timeline.population)  # [population]
    seconds = float(timeline.times[-1])
    return Summary(
        kind=timeline.kind,
        clients=timeline.population,
        k=timeline.k,
        steps=timeline.steps,
        mean_staleness=float(staleness.mean(dtype=np.float64)),
        median_staleness=float(np.median(staleness)),
        max_staleness=int(staleness.max()),
        virtual_seconds=seconds,
        steps_per_second=timeline.steps / seconds if seconds > 0 else float("inf"),
        share_delivering=float(np.count_nonzero(deliveries) / timeline.population),
        fewest_deliveries=int(deliveries.min()),
        median_deliveries=float(np.median(deliveries)),
        most_deliveries=int(deliveries.max()),
        rows_held=int(rows_held(timeline).max()),
        versions_held=int(versions_held(timeline).max()),
    )


def rows_held(timeline: Timeline) -> Counts:
    """[steps]: gradients that exist when step s is taken, if each is computed as soon as its model exists.

    A row lives from the step its version appears to the step that uses it, both included; work that the timeline
    never delivers has no row.
    """
    computed = np.bincount(timeline.begun.ravel(), minlength=timeline.steps)  # [steps]
    used = np.arange(timeline.steps) * timeline.k  # [steps]: deliveries before this step
    return np.cumsum(computed) - used


def versions_held(timeline: Timeline) -> Counts:
    """[steps]: model versions that exist when step s is taken and that this or a later delivery was computed on."""
    last_use = np.full(timeline.steps, -1)  # [steps]: by version
    np.maximum.at(last_use, timeline.versions.ravel(), np.repeat(np.arange(timeline.steps), timeline.k))
    needed = np.flatnonzero(last_use >= 0)
    begun = np.bincount(needed, minlength=timeline.steps)
    done = np.bincount(last_use[needed] + 1, minlength=timeline.steps + 1)[: timeline.steps]
    return np.cumsum(begun - done)


def held_staleness(timeline: Timeline) -> NDArray[np.float64]:
    """[steps + 1]: mean over all clients of step - version, for the model each holds when the step begins.

    A client holds version 0 at first and version s + 1 after a delivery at step s; one that takes another model before
    it delivers (late, after a loss, when a round ends) holds that one from the step at which it was the newest.
    """
    after_last = timeline.previous_step + 1  # [steps, k]: what it got for its last delivery, 0 at first
    steps = np.arange(timeline.steps)[:, None]  # [steps, 1]
    gained = np.bincount((steps + 1).repeat(timeline.k), timeline.staleness.ravel() + 1, timeline.steps + 1)
    taken = np.bincount(timeline.begun.ravel(), (timeline.versions - after_last).ravel(), timeline.steps + 1)
    return np.arange(timeline.steps + 1) - np.cumsum(gained + taken) / timeline.population


def staleness_bound(clients: int, k: int) -> float:
    """Appendix D's least mean, counted from 1, after n = [clients / k] steps: (k / 2 clients) (1 + n) n."""
    whole = clients // k
    return k / (2 * clients) * (1 + whole) * whole


def inconsistency(timeline: Timeline) -> str:
    """The first rule that a timeline breaks, in words; an empty string for a sound one."""
    if timeline.clients.size == 0:
        return "it has no deliveries"
    if timeline.clients.min() < 0 or timeline.clients.max() >= timeline.population:
        return f"a client number is outside 0 to {timeline.population - 1}"
    if (timeline.previous_step == np.arange(timeline.steps)[:, None]).any():
        return "a client delivers twice at one step"
    if timeline.versions.min() < 0 or timeline.staleness.min() < 0:
        return "a version is negative or newer than its step"
    older = timeline.versions <= timeline.previous_step
    if timeline.copies is not None:
        if ((timeline.previous_step < 0) & timeline.copies).any():
            return "a copy comes before what it copies"
        older = older & ~timeline.copies
    if older.any():
        return "a client delivers on a model older than its last delivery"
    if timeline.local_steps is not None and timeline.local_steps.min() < 1:
        return "a delivery has less than one local step"
    if not np.isfinite(timeline.times).all() or (np.diff(timeline.times, prepend=0.0) < 0).any():
        return "the times do not increase"
    return ""


def save(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write a timeline; at no moment is there half a file under this name."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        "population": timeline.population,
        "kind": timeline.kind,
        "settings": dict(timeline.settings),
    }
    present: dict[str, Any] = {name: getattr(timeline, name) for name in OPTIONAL}
    arrays = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "clients": timeline.clients,
        "versions": timeline.versions,
        "times": timeline.times,
        **{name: array for name, array in present.items() if array is not None},
    }
    files.write_arrays(Path(path), arrays, "make room, or choose a folder that exists")


def load(path: str | PathLike[str]) -> Timeline:
    """Read a timeline back; a file that is cut off, foreign or inconsistent is refused."""
    try:
        with np.load(Path(path), allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            wanted = ("clients", "versions", "times", *(name for name in OPTIONAL if name in stored))
            arrays = {name: stored[name] for name in wanted}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give a file that timelines.save wrote.") from None
    except Exception as problem:  # damaged bytes make the readers of zip, npy and json fail in many ways
        raise UserError(f"{path} is not a whole timeline file ({problem}): save the timeline again.") from problem
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
        raise UserError(f"{path} is not a timeline of format {VERSION}: save it again with this version of kasync.")
    try:
        timeline = Timeline(
            **arrays, population=int(about["population"]), kind=str(about["kind"]), settings=dict(about["settings"])
        )
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise UserError(f"{path} is inconsistent ({problem}): save the timeline again.") from problem
    too_many = timeline.population >= 2**31 - 1
    fault = f"{timeline.population} clients are too many" if too_many else inconsistency(timeline)
    if fault:
        raise UserError(f"{path} is inconsistent ({fault}): save the timeline again.")
    return timeline
