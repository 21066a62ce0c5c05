"""Arrays that say who delivers at each step, from which model version, and when."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError
from kasync.timelines.history import History, history, originals_before
from kasync.timelines.summary import Summary, summarize

Ints = NDArray[np.int32]
DTYPES: dict[str, type] = {
    "clients": np.int32,
    "versions": np.int32,
    "times": np.float64,
    "copies": np.bool_,
    "local_steps": np.int32,
}


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
                view: NDArray[Any] = np.ascontiguousarray(getattr(self, name), dtype=dtype).view()
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
