"""A partition: one flat array of sample indices, and where each client's part of it begins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kasync.data.dataset import are_classes
from kasync.errors import UserError

if TYPE_CHECKING:
    from kasync.data.dataset import Dataset
    from kasync.data.partition.measures import Measures

_CLIENTS_AT_ONCE = 1 << 16  # bounds the memory of walks over a million clients


@dataclass(frozen=True, eq=False)
class Partition:
    """Client c holds the training samples indices[offsets[c]:offsets[c + 1]]."""

    indices: NDArray[np.integer]  # [total]
    offsets: NDArray[np.int64]  # [clients + 1]
    kind: str = "own"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per client [clients]."""
        return np.diff(self.offsets)

    def of(self, client: int) -> NDArray[np.integer]:
        """The samples of one client, as a view."""
        if not 0 <= client < self.clients:
            raise UserError(f"client is {client}, but must lie in 0..{self.clients - 1}.")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def counts(self, labels: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
        """How many samples of each label each client holds [clients, classes]; `labels` are the training set's."""
        counts = np.empty((self.clients, classes), np.int64)
        for begin, end in self._stretches():
            owners = np.repeat(np.arange(end - begin), self.sizes[begin:end])  # [samples of the stretch]
            held = labels[self.indices[self.offsets[begin] : self.offsets[end]]]
            cells = np.bincount(owners * classes + held, minlength=(end - begin) * classes)
            counts[begin:end] = cells.reshape(end - begin, classes)
        return counts

    def measures(self, labels: NDArray[np.integer], classes: int) -> Measures:
        """How far from IID: mean label entropy, mean Jaccard distance, mean earth mover's distance."""
        from kasync.data.partition.measures import measure

        return measure(self.counts(labels, classes), np.bincount(labels, minlength=classes))

    def picture(self, path: str | PathLike[str], labels: NDArray[np.integer], show: int = 30) -> None:
        """Clients against labels, a dot's area the number of samples; many clients are shown by `show` of them."""
        from kasync.data.partition.measures import draw

        draw(path, {self.title: self}, labels, show)

    @property
    def title(self) -> str:
        """The kind and its settings, for people: labels(per_client=1, size=(10, 49))."""
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in self.settings.items())})"

    def __repr__(self) -> str:
        return f"Partition({self.title}: {self.clients} clients, {len(self.indices)} samples)"

    def _stretches(self) -> Iterator[tuple[int, int]]:
        for begin in range(0, self.clients, _CLIENTS_AT_ONCE):
            yield begin, min(begin + _CLIENTS_AT_ONCE, self.clients)


@dataclass(frozen=True)
class Split(ABC):
    """A way to share samples out: its fields are the settings, the call gives the partition."""

    kind: ClassVar[str]
    by_class: ClassVar[bool] = True  # whether it looks at the labels, which are then one class for each sample
    allow_empty: bool = field(default=False, kw_only=True)

    def __call__(self, dataset: Dataset, clients: int | None = None, seed: int = 0) -> Partition:
        """The training samples of a data set, shared out over so many clients."""
        samples = dataset.train
        if self.by_class and not are_classes(samples.labels):
            raise UserError(
                f"{self.kind} shares classes out, and the samples of {dataset.name} have no class each: use iid, "
                "quantity or natural."
            )
        labels = samples.labels if are_classes(samples.labels) else np.zeros(len(samples), np.int64)
        return self.over(labels, clients, seed, samples.groups)

    def over(
        self, labels: NDArray[np.integer], clients: int | None, seed: int = 0, groups: NDArray[np.integer] | None = None
    ) -> Partition:
        """The same for bare labels [N] (and groups [N], who made each sample)."""
        if len(labels) == 0:
            raise UserError("there are no samples to share out: load a data set that has some.")
        if clients is not None:
            if not isinstance(clients, Integral) or isinstance(clients, bool):
                raise UserError(f"clients is {clients!r}: give a whole number, 100, say.")
            if clients < 1:
                raise UserError(f"clients is {clients}, but must be at least 1.")
        if not isinstance(seed, Integral):
            raise UserError(f"seed is {seed!r}: give a whole number.")
        indices, offsets = self.lists(self._classes(labels), clients, int(seed), groups)
        empty = np.flatnonzero(np.diff(offsets) == 0)
        if len(empty) and not self.allow_empty:
            others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
            raise UserError(
                f"{self.kind} leaves client {empty[0]}{others} of {len(offsets) - 1} without a sample ({len(labels)} "
                f"samples): lower clients, {self.remedy}or pass allow_empty=True."
            )
        settings = {name: value for name, value in asdict(self).items() if name != "allow_empty" or value}
        return Partition(indices, offsets, self.kind, settings)

    def _classes(self, given: Any) -> NDArray[np.integer]:
        """The labels as whole numbers [N]; words are numbered in alphabetical order."""
        labels = np.asarray(given)
        if not self.by_class:
            return labels
        if labels.dtype.kind in "UO" and labels.ndim == 1 and all(isinstance(label, str) for label in labels.tolist()):
            return np.unique(labels.astype(np.str_), return_inverse=True)[1]
        whole = labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and bool((labels % 1 == 0).all()))
        if not whole or labels.ndim != 1:
            raise UserError(
                f"{self.kind} shares classes out, and the labels are {labels.dtype} {list(labels.shape)}: give one "
                "class for each sample, a word or a whole number, or use iid, quantity or natural."
            )
        return np.unique(labels, return_inverse=True)[1] if labels.min(initial=0) < 0 else labels

    @abstractmethod
    def lists(
        self, labels: NDArray, clients: int | None, seed: int, groups: NDArray | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The flat indices [total] and the offsets [clients + 1]."""

    @property
    def remedy(self) -> str:
        """What else a person can change when a client is left without a sample."""
        return ""

    @classmethod
    def required(cls) -> list[str]:
        """The settings without a default."""
        return [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]

    def needs_clients(self, clients: int | None) -> int:
        """The number of clients, which only `natural` can do without."""
        if clients is None:
            raise UserError(f"clients is not given: {self.kind} must be told how many, clients=100, say.")
        return clients


def by_owner(
    samples: NDArray[np.integer], owners: NDArray[np.integer], clients: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Indices and offsets when sample samples[i] belongs to client owners[i]."""
    offsets = offsets_of(np.bincount(owners, minlength=clients))
    return samples[np.argsort(owners, kind="stable")].astype(np.int32), offsets


def offsets_of(sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each part begins, and the end: the running sum from 0, [clients + 1]."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def apportion(totals: NDArray[np.int64], weights: NDArray[np.float64], least: int = 0) -> NDArray[np.int64]:
    """total * weight / sum of weights [rows, parts], rounded to add up to totals [rows], each at least `least`.

    Rounded down, and what is missing goes to the largest fractions, one each (Hamilton's method). With least = 1 a part
    whose share would be below one gets exactly one and the others share the rest in proportion; a row with fewer
    samples than parts cannot do that and is shared as with least = 0.
    """
    exact = totals[:, None] * (weights / weights.sum(1, keepdims=True))  # [rows, parts]
    if least == 1:
        enough = totals >= weights.shape[1]
        exact[enough] = _raised_to_one(totals[enough], weights[enough])
    rounded = np.floor(exact + 1e-9)  # a share that is whole but for the last bit of a float is whole
    missing = totals - rounded.sum(1).astype(np.int64)  # [rows], 0 <= missing < parts
    by_fraction = np.argsort(rounded - exact, axis=1, kind="stable")  # [rows, parts], the largest fraction first
    extra = np.zeros(weights.shape, np.int64)
    np.put_along_axis(extra, by_fraction, (np.arange(weights.shape[1]) < missing[:, None]).astype(np.int64), axis=1)
    return rounded.astype(np.int64) + extra


def _raised_to_one(totals: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """max(1, slope * weight) [rows, parts] with the one slope per row that makes the parts add up to the total."""
    rising = np.sort(weights, axis=1)  # [rows, parts]
    rest = np.cumsum(rising[:, ::-1], axis=1)[:, ::-1]  # [rows, parts] the weights from this one upwards
    slopes = (totals[:, None] - np.arange(weights.shape[1])) / rest  # the slope if all below this one are raised to one
    fits = slopes * rising >= 1
    fits[:, -1] = True  # total >= parts, so raising all but the largest always works
    slope = np.take_along_axis(slopes, fits.argmax(1)[:, None], axis=1)  # [rows, 1]
    return np.maximum(1.0, slope * weights)
