"""Federated data: a training set with one flat index list over all clients, and a test set at the server."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from kasync.data.columns import as_inputs, as_labels, class_labels, client_lists, codes_of, encoded
from kasync.data.dataset import Samples, check_classes, each, first_of, select
from kasync.data.partition.draws import Purpose
from kasync.data.partition.draws import order as random_order
from kasync.data.partition.lists import Partition, Split, offsets_of
from kasync.errors import UserError, unknown

if TYPE_CHECKING:
    from kasync.data.dataset import Dataset

SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # what becomes of uint8 inputs
    "unit": lambda pixels: pixels.to(torch.float32) / 255,
    "raw": lambda pixels: pixels.to(torch.float32),
    "symmetric": lambda pixels: pixels.to(torch.float32) / 127.5 - 1,
    "none": lambda tokens: tokens.to(torch.int64),
}
Lists = tuple[NDArray[np.integer], NDArray[np.int64]]  # flat rows [total], and where each client's begin [clients + 1]

_HELD: WeakKeyDictionary[Samples, dict[str, tuple[Any, torch.Tensor | None]]] = WeakKeyDictionary()


def _on(array: NDArray, device: torch.device | str) -> torch.Tensor:
    writable = array if array.flags.writeable else array.copy()  # torch cannot share a read-only array
    return torch.from_numpy(np.ascontiguousarray(writable)).to(device)


def _samples_on(samples: Samples, device: str) -> tuple[Any, torch.Tensor | None]:
    """Inputs and labels on a device, for as long as the samples are held by somebody."""
    held = _HELD.setdefault(samples, {})
    if device not in held:
        labels = None if samples.labels is None else _on(samples.labels, device)
        held[device] = each(samples.inputs, lambda array: _on(array, device)), labels
    return held[device]


@dataclass(frozen=True, eq=False)
class FederatedTensors:
    """Everything a run reads, on one device; inputs stay as stored until `scaled`."""

    inputs: Any  # Tensor [N, ...] | dict[str, Tensor]
    labels: Any  # Tensor [N, ...] int64, float32 or bool | None
    indices: torch.Tensor  # [total] int64 into inputs
    offsets: torch.Tensor  # [clients + 1] int64 into indices
    test_inputs: Any  # [T, ...], as inputs
    test_labels: Any  # [T, ...], as labels
    client_test: tuple[torch.Tensor, torch.Tensor] | None = None  # indices into inputs, and offsets [clients + 1]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Client c holds the training samples indices[offsets[c]:offsets[c + 1]].

    `classes` is 0 where labels are no classes (regression, multi-label, none). `client_test` are the rows of `train`
    that each client keeps for testing, as indices and offsets of the same form; no client trains on any of them.
    """

    train: Samples
    test: Samples
    indices: NDArray[np.integer]  # [total] int32 or int64
    offsets: NDArray[np.int64]  # [clients + 1]
    classes: int
    scale: str = "unit"
    name: str = "data"
    source: str = ""
    class_names: tuple[str, ...] | None = None  # [classes]
    client_names: tuple[Hashable, ...] | None = None  # [clients]
    client_test: Lists | None = None

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
        check_classes(self.name, self.train, self.test, self.classes, self.class_names)
        _check_lists("", self.indices, self.offsets, len(self.train))
        if self.client_names is not None and len(self.client_names) != self.clients:
            raise UserError(f"{len(self.client_names)} names are given for {self.clients} clients: name each.")
        if self.client_test is not None:
            _check_lists("client_test's ", *self.client_test, len(self.train))
            if len(self.client_test[1]) != len(self.offsets):
                raise UserError(
                    f"client_test has {len(self.client_test[1]) - 1} clients, the data {self.clients}: give as many."
                )
            if self._kept_for_testing[self.indices].any():
                raise UserError("client_test holds rows that clients train on: take them out of indices.")

    def __repr__(self) -> str:
        sizes = self.sizes
        each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
        classes = f", {self.classes} classes" if self.classes else ""
        return (
            f"FederatedData({self.name!r}: {self.clients} clients with {each} of {len(self.train)} training samples, "
            f"{len(self.test)} test samples{classes})"
        )

    def _repr_html_(self) -> str:
        from kasync import notebook

        return notebook.card(repr(self), self._draw)

    def _draw(self, figure: Any) -> None:
        """Samples of each client, and of which classes they are for the first clients."""
        left, right = figure.subplots(1, 2, width_ratios=[1, 2])
        left.hist(self.sizes, bins=min(30, max(1, len(np.unique(self.sizes)))), color="#35608d")
        left.set(xlabel="training samples of a client", ylabel="clients")
        labels = self.train.labels
        if not self.classes or labels is None or labels.ndim != 1:
            right.set_visible(False)
            return
        first = min(self.clients, 60)
        counts = [np.bincount(labels[self.of(client)], minlength=self.classes) for client in range(first)]
        drawn = right.imshow(np.array(counts).T, aspect="auto", cmap="Blues", interpolation="nearest", origin="lower")
        right.set(xlabel=f"client (the first {first} of {self.clients})" if first < self.clients else "client")
        right.set(ylabel="class")
        figure.colorbar(drawn, ax=right, label="samples", pad=0.01)

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per client [clients]."""
        return np.diff(self.offsets)

    def of(self, client: int) -> NDArray[np.integer]:
        """The training samples of one client, as a view."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def tests_of(self, client: int) -> NDArray[np.integer]:
        """The rows of `train` that one client keeps for testing; none without `client_test`."""
        if self.client_test is None:
            return np.empty(0, np.int64)
        indices, offsets = self.client_test
        return indices[offsets[client] : offsets[client + 1]]

    @cached_property
    def test_clients(self) -> NDArray[np.int64] | None:
        """[T] the client whose person made each sample of the test set, -1 for nobody's; None where that is not known.

        Known where training and test samples have groups and every client is one person: a natural partition.
        """
        if self.train.groups is None or self.test.groups is None or not len(self.indices):
            return None
        owners = np.repeat(np.arange(self.clients), self.sizes)  # [total]
        people = self.train.groups[self.indices]
        pairs = np.unique(np.stack([people, owners]), axis=1)  # [2, pairs]
        if any(len(np.unique(side)) < len(side) for side in pairs):
            return None
        place = np.minimum(np.searchsorted(pairs[0], self.test.groups), len(pairs[0]) - 1)
        return np.where(pairs[0][place] == self.test.groups, pairs[1][place], -1)

    @cached_property
    def _kept_for_testing(self) -> NDArray[np.bool_]:
        """[N] whether some client keeps a training sample for testing."""
        kept = np.zeros(len(self.train), bool)
        if self.client_test is not None:
            kept[self.client_test[0]] = True
        return kept

    def tensors(self, device: torch.device | str = "cpu") -> FederatedTensors:
        """The arrays as tensors on a device; on the CPU they share memory with the arrays where that is possible.

        On a GPU the samples are there once, however many runs read them.
        """
        inputs, labels = _samples_on(self.train, str(device))
        test_inputs, test_labels = _samples_on(self.test, str(device))
        lists = [(self.indices, self.offsets), *([self.client_test] if self.client_test is not None else [])]
        (indices, offsets), *kept = [
            (_on(rows.astype(np.int64, copy=False), device), _on(starts.astype(np.int64, copy=False), device))
            for rows, starts in lists
        ]
        return FederatedTensors(
            inputs=inputs,
            labels=labels,
            indices=indices,
            offsets=offsets,
            test_inputs=test_inputs,
            test_labels=test_labels,
            client_test=kept[0] if kept else None,
        )

    def validation(self, fraction: float = 0.1, seed: int = 0) -> FederatedData:
        """The same clients, tested on training samples taken away from them: for tuning that never sees the test set.

        The held-out samples leave the training set altogether, and no client loses its last sample.
        """
        held = self._drawn(fraction, seed)  # [count]
        kept = np.ones(len(self.train), bool)  # [N]
        kept[held] = False
        renumbered = np.cumsum(kept) - 1  # [N] the place of a kept sample in the smaller training set
        stays = kept[self.indices]  # [total over clients]
        tests = self.client_test
        return replace(
            self,
            train=self.train.subset(np.flatnonzero(kept)),
            test=self.train.subset(held),
            indices=renumbered[self.indices[stays]].astype(self.indices.dtype),
            offsets=offsets_of(stays)[self.offsets],
            client_test=None if tests is None else (renumbered[tests[0]], tests[1]),
            name=f"{self.name} (validation)",
        )

    def _drawn(self, fraction: float, seed: int) -> NDArray[np.int64]:
        """Random training samples to hold out, in order; none is a client's first, nor kept for a client's own test."""
        if not 0 < fraction < 1:
            raise UserError(f"fraction is {fraction}, but must lie between 0 and 1: 0.1 holds out a tenth.")
        total = len(self.train)
        rank = np.empty(total, np.int64)  # [N] a random order of the training samples; the last ones are held out
        order = random_order(total, seed, Purpose.VALIDATION)
        rank[order] = np.arange(total)
        filled = np.flatnonzero(self.sizes)
        ranks = rank[self.indices]  # [total over clients]
        first = np.minimum.reduceat(ranks, self.offsets[filled]) if len(filled) else ranks  # [filled clients]
        rank[order[first]] = -1  # each client keeps its first sample
        rank[self._kept_for_testing] = -1
        count = max(1, round(fraction * total))
        held = np.sort(np.argsort(rank, kind="stable")[total - count :])  # [count]
        if (rank[held] < 0).any():
            raise UserError(f"fraction {fraction} would leave a client without a sample: choose a smaller one.")
        return held

    def held_out(self, fraction: float = 0.2, seed: int = 0) -> FederatedData:
        """The same data, each client keeping this share of its samples for testing, and at least one of two or more.

        A sample that several clients hold is kept by all of them or by none. A client's only sample stays for training.
        """
        if not 0 < fraction < 1:
            raise UserError(f"fraction is {fraction}, but must lie between 0 and 1: 0.2 keeps a fifth of each.")
        if self.client_test is not None:
            raise UserError("the clients already keep samples for testing: call held_out once.")
        rank = np.empty(len(self.train), np.int64)  # [N] one random order for all clients
        rank[random_order(len(rank), seed, Purpose.OWN_TEST)] = np.arange(len(rank))
        owners = np.repeat(np.arange(self.clients), self.sizes)  # [total]
        rows = self.indices[np.lexsort((rank[self.indices], owners))]  # [total] each client's in that order
        place = np.arange(len(rows)) - self.offsets[owners]  # [total] 0 for a client's first
        wanted = np.minimum(np.maximum(1, np.round(fraction * self.sizes)), self.sizes - 1)  # [clients]
        tested = np.zeros(len(rank), bool)  # [N]
        tested[rows[place < wanted[owners]]] = True
        filled = np.flatnonzero(self.sizes)
        left = np.add.reduceat(~tested[rows], self.offsets[filled]) if len(filled) else filled  # [filled clients]
        tested[rows[self.offsets[filled[left == 0] + 1] - 1]] = False  # the last of a client that would have none left
        mine = tested[self.indices]
        starts = offsets_of(mine)[self.offsets]
        return replace(
            self,
            indices=self.indices[~mine],
            offsets=self.offsets - starts,
            client_test=(self.indices[mine], starts),
        )

    def server_sample(self, count: int, classes: int | None = None, seed: int = 0) -> Samples:
        """Training samples for a server that holds a few of its own, as Zeno++, FLTrust and AFLGuard need.

        With `classes` they come from that many classes, drawn at random, in equal shares; no sample is drawn twice.
        """
        order = random_order(len(self.train), seed, Purpose.SERVER)
        order = order[~self._kept_for_testing[order]]
        if not (classes or 1) <= count <= len(order):
            raise UserError(f"count is {count}, but must lie in {classes or 1}..{len(order)}: change it.")
        if classes is None:
            return self.train.subset(order[:count])
        labels = class_labels(self.train.labels, f"a server sample of {classes} classes", "leave classes out")
        present = np.unique(labels)
        if not 1 <= classes <= len(present):
            raise UserError(f"classes is {classes}, but must lie in 1..{len(present)}, the classes with samples.")
        chosen = present[random_order(len(present), seed, Purpose.DEAL)[:classes]]  # [classes]
        shares = [(count + place) // classes for place in range(classes)][::-1]  # add up to count, first ones larger
        drawn = []
        for label, share in zip(chosen, shares, strict=True):
            held = order[labels[order] == label]
            if share > len(held):
                raise UserError(
                    f"count {count} needs {share} samples of label {label}, but there are {len(held)}: lower it."
                )
            drawn.append(held[:share])
        return self.train.subset(np.concatenate(drawn))


def federate(dataset: Dataset, partition: Partition, scale: str = "unit") -> FederatedData:
    """A data set and who holds what of it, together."""
    if not isinstance(partition, Partition):
        kind = type(partition).__name__
        remedy = "call it, way(dataset, clients)" if isinstance(partition, Split) else "make one with data.partition"
        raise UserError(f"partition is a {kind}, which says not yet who holds what: {remedy}.")
    return FederatedData(
        train=dataset.train,
        test=dataset.test,
        indices=partition.indices,
        offsets=partition.offsets,
        classes=dataset.classes,
        scale=scale,
        name=dataset.name,
        source=dataset.source,
        class_names=dataset.class_names,
    )


def from_arrays(
    inputs: ArrayLike | Mapping[str, ArrayLike],
    labels: ArrayLike | None = None,
    test_inputs: ArrayLike | Mapping[str, ArrayLike] | None = None,
    test_labels: ArrayLike | None = None,
    parts: Partition | Sequence[ArrayLike] | Mapping[Any, ArrayLike] | None = None,
    classes: int | None = None,
    scale: str = "unit",
    name: str = "arrays",
    *,
    owners: Sequence[Hashable] | NDArray | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
) -> FederatedData:
    """Your own arrays, and who holds which rows of them.

    `inputs` is one array [N, ...] or several by name, `labels` has a row for each sample or is left out. Whole numbers
    and words make classes, floats a regression, bools marks. Who holds what is told by `parts`, rows for each client
    (a list, a dict client -> rows, a partition), or by `owners`, one id for each sample. Without a test set of your
    own, `test_fraction` splits one off.
    """
    if (parts is None) == (owners is None):
        told = "not told: give parts or owners" if owners is None else "told twice: give parts or owners, not both"
        raise UserError(f"who holds which samples is {told}.")
    if test_inputs is None and test_labels is not None:
        raise UserError("test_labels are given without test_inputs: give both, or test_fraction=0.1.")
    if test_inputs is not None and test_fraction is not None:
        raise UserError(f"test_fraction is {test_fraction}, but there are test_inputs: give one of the two.")
    columns = as_inputs(inputs)
    rows = len(first_of(columns))
    targets = None if labels is None else as_labels(labels)
    test_columns = select(columns, slice(0)) if test_inputs is None else as_inputs(test_inputs, "test_inputs")
    tests = None if test_labels is None else as_labels(test_labels, "test_labels")
    if test_inputs is None and targets is not None:
        tests = targets[:0]
    targets, tests, classes, class_names = encoded(targets, tests, classes)
    groups, names = None, None
    if owners is not None:
        groups, names = codes_of(owners, rows)
        indices, offsets = np.argsort(groups, kind="stable"), offsets_of(np.bincount(groups, minlength=len(names)))
    elif parts is not None:
        indices, offsets, names = client_lists(parts, rows)
    train, test = Samples(columns, targets, groups, names if owners is not None else None), Samples(test_columns, tests)
    data = FederatedData(
        train, test, indices, offsets, classes, scale, name, class_names=class_names, client_names=names
    )
    if test_fraction is None:
        return data
    return replace(data.validation(test_fraction, seed), name=name)


def scaled(inputs: Any, scale: str) -> Any:
    """Inputs as a model takes them: uint8 as pixels by `scale`, other whole numbers as int64, the rest as it is.

    "unit" is x/255, "raw" x, "symmetric" x/127.5 - 1; with "none" uint8 are numbers like any other, tokens for example.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return each(inputs, lambda tensor: _scaled(tensor, scale))


def _scaled(tensor: torch.Tensor, scale: str) -> torch.Tensor:
    if tensor.dtype == torch.uint8:
        return SCALES[scale](tensor)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        return tensor
    return tensor.to(torch.int64)


def _check_lists(whose: str, indices: NDArray[np.integer], offsets: NDArray[np.int64], rows: int) -> None:
    """Flat rows, and offsets that cut them into clients."""
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(indices):
        raise UserError(
            f"{whose}offsets must run from 0 to {len(indices)}, one more than clients: pass [0, ..., total]."
        )
    if (np.diff(offsets) < 0).any():
        raise UserError(f"{whose}offsets decrease somewhere: pass the running sum of the clients' sizes.")
    if len(indices) and not (indices.min() >= 0 and indices.max() < rows):
        raise UserError(f"{whose}indices must lie in 0..{rows - 1}, the training samples there are.")
