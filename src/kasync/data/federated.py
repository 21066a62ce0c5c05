"""Who holds which samples? A training set with one flat index list over all clients, and a test set at the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from kasync.data.dataset import Samples
from kasync.data.partition.draws import Purpose
from kasync.data.partition.draws import order as random_order
from kasync.data.partition.lists import offsets_of
from kasync.errors import UserError, unknown

if TYPE_CHECKING:
    from kasync.data.dataset import Dataset
    from kasync.data.partition import Partition

SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # what becomes of a pixel in 0..255
    "unit": lambda pixels: pixels / 255,
    "raw": lambda pixels: pixels,
    "symmetric": lambda pixels: pixels / 127.5 - 1,
}


@dataclass(frozen=True, eq=False)
class OwnSamples(Samples):
    """Samples from outside the catalogue: inputs of any shape [N, ...], labels int64 or, for regression, float32."""

    def __post_init__(self) -> None:
        if self.inputs.ndim < 2:
            raise UserError(f"inputs have the shape {self.inputs.shape}: pass one row or picture per sample, [N, ...].")
        if self.labels.shape != (len(self.inputs),):
            raise UserError(f"{len(self.inputs)} inputs have labels of shape {self.labels.shape}: pass one label each.")
        if self.labels.dtype.kind != "f" and self.labels.min(initial=0) < 0:
            raise UserError(f"labels go down to {self.labels.min()}, but classes count from 0: renumber them.")


_HELD: WeakKeyDictionary[Samples, dict[str, tuple[torch.Tensor, torch.Tensor]]] = WeakKeyDictionary()


def _on(array: NDArray, device: torch.device | str) -> torch.Tensor:
    writable = array if array.flags.writeable else array.copy()  # torch cannot share a read-only array
    return torch.from_numpy(np.ascontiguousarray(writable)).to(device)


def _samples_on(samples: Samples, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels on a device, for as long as the samples are held by somebody."""
    held = _HELD.setdefault(samples, {})
    if device not in held:
        held[device] = (_on(samples.inputs, device), _on(_as_labels(samples.labels), device))
    return held[device]


@dataclass(frozen=True, eq=False)
class FederatedTensors:
    """Everything a run reads, on one device; inputs stay as stored (uint8 or float32) until `scaled`."""

    inputs: torch.Tensor  # [N, ...] uint8 or float32
    labels: torch.Tensor  # [N] int64, or float32 for regression
    indices: torch.Tensor  # [total] int64 into inputs
    offsets: torch.Tensor  # [clients + 1] int64 into indices
    test_inputs: torch.Tensor  # [T, ...]
    test_labels: torch.Tensor  # [T]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Client c holds the training samples indices[offsets[c]:offsets[c + 1]]; `classes` is 0 for regression."""

    train: Samples
    test: Samples
    indices: NDArray[np.integer]  # [total] int32 or int64
    offsets: NDArray[np.int64]  # [clients + 1]
    classes: int
    scale: str = "unit"
    name: str = "data"
    source: str = ""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
        if len(self.offsets) < 2 or self.offsets[0] != 0 or self.offsets[-1] != len(self.indices):
            raise UserError(
                f"offsets must run from 0 to {len(self.indices)}, one more than clients: pass [0, ..., total]."
            )
        if (np.diff(self.offsets) < 0).any():
            raise UserError("offsets decrease somewhere: pass the running sum of the clients' sizes.")
        if len(self.indices) and not (self.indices.min() >= 0 and self.indices.max() < len(self.train.labels)):
            raise UserError(f"indices must lie in 0..{len(self.train.labels) - 1}, the training samples there are.")

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

    def tensors(self, device: torch.device | str = "cpu") -> FederatedTensors:
        """The arrays as tensors on a device; on the CPU they share memory with the arrays where that is possible.

        On a GPU the samples are there once, however many runs read them.
        """
        inputs, labels = _samples_on(self.train, str(device))
        test_inputs, test_labels = _samples_on(self.test, str(device))
        return FederatedTensors(
            inputs=inputs,
            labels=labels,
            indices=_on(self.indices.astype(np.int64, copy=False), device),
            offsets=_on(self.offsets.astype(np.int64, copy=False), device),
            test_inputs=test_inputs,
            test_labels=test_labels,
        )

    def validation(self, fraction: float = 0.1, seed: int = 0) -> FederatedData:
        """The same clients, tested on training samples taken away from them: for tuning that never sees the test set.

        The held-out samples leave the training set altogether, and no client loses its last sample.
        """
        if not 0 < fraction < 1:
            raise UserError(f"fraction is {fraction}, but must lie between 0 and 1: 0.1 holds out a tenth.")
        total = len(self.train.labels)
        rank = np.empty(total, np.int64)  # [N] a random order of the training samples; the last ones are held out
        order = random_order(total, seed, Purpose.VALIDATION)
        rank[order] = np.arange(total)
        filled = np.flatnonzero(self.sizes)
        ranks = rank[self.indices]  # [total over clients]
        first = np.minimum.reduceat(ranks, self.offsets[filled]) if len(filled) else ranks  # [filled clients]
        rank[order[first]] = -1  # each client keeps its first sample
        count = max(1, round(fraction * total))
        held = np.sort(np.argsort(rank, kind="stable")[total - count :])  # [count]
        if (rank[held] < 0).any():
            raise UserError(f"fraction {fraction} would leave a client without a sample: choose a smaller one.")

        kept = np.ones(total, bool)  # [N]
        kept[held] = False
        renumbered = np.cumsum(kept) - 1  # [N] the place of a kept sample in the smaller training set
        stays = kept[self.indices]  # [total over clients]
        return replace(
            self,
            train=_take(self.train, np.flatnonzero(kept)),
            test=_take(self.train, held),
            indices=renumbered[self.indices[stays]].astype(self.indices.dtype),
            offsets=offsets_of(stays)[self.offsets],
            name=f"{self.name} (validation)",
        )

    def server_sample(self, count: int, classes: int | None = None, seed: int = 0) -> Samples:
        """Training samples for a server that holds a few of its own, as Zeno++, FLTrust and AFLGuard need.

        With `classes` they come from that many classes, drawn at random, in equal shares; no sample is drawn twice.
        """
        labels = self.train.labels
        order = random_order(len(labels), seed, Purpose.SERVER)
        if not (classes or 1) <= count <= len(labels):
            raise UserError(f"count is {count}, but must lie in {classes or 1}..{len(labels)}: change it.")
        if classes is None:
            return _take(self.train, order[:count])
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
        return _take(self.train, np.concatenate(drawn))


def federate(dataset: Dataset, partition: Partition, scale: str = "unit") -> FederatedData:
    """A data set and who holds what of it, together."""
    return FederatedData(
        train=dataset.train,
        test=dataset.test,
        indices=partition.indices,
        offsets=partition.offsets,
        classes=dataset.classes,
        scale=scale,
        name=dataset.name,
        source=dataset.source,
    )


def from_arrays(
    inputs: ArrayLike,
    labels: ArrayLike,
    test_inputs: ArrayLike,
    test_labels: ArrayLike,
    parts: Sequence[ArrayLike],
    classes: int | None = None,
    scale: str = "unit",
    name: str = "arrays",
) -> FederatedData:
    """Your own arrays: uint8 pixels are scaled, floats are passed as they are; parts[c] lists client c's samples."""
    train = OwnSamples(_as_inputs(inputs), _as_labels(np.asarray(labels)))
    test = OwnSamples(_as_inputs(test_inputs), _as_labels(np.asarray(test_labels)))
    lists = [np.asarray(part, dtype=np.int64).reshape(-1) for part in parts]
    if not lists:
        raise UserError("parts is empty: pass one list of sample indices per client.")
    if classes is None:
        is_regression = train.labels.dtype.kind == "f"
        classes = 0 if is_regression else 1 + int(max(s.labels.max(initial=-1) for s in (train, test)))
    offsets = offsets_of(np.array([len(part) for part in lists]))
    return FederatedData(train, test, np.concatenate(lists), offsets, classes, scale, name)


def scaled(inputs: torch.Tensor, scale: str) -> torch.Tensor:
    """uint8 pixels as float32: "unit" x/255, "raw" x, "symmetric" x/127.5 - 1; floats pass unscaled."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if inputs.is_floating_point():
        return inputs
    return SCALES[scale](inputs.to(torch.float32))


def _as_inputs(inputs: ArrayLike) -> NDArray:
    array = np.asarray(inputs)
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    if array.dtype != np.uint8:
        raise UserError(f"inputs are {array.dtype}, neither uint8 pixels nor floats: convert them with .astype first.")
    return array


def _as_labels(labels: NDArray) -> NDArray:
    """int64 classes, or float32 targets."""
    return labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64, copy=False)


def _take(samples: Samples, rows: NDArray[np.integer]) -> Samples:
    groups = None if samples.groups is None else samples.groups[rows]
    return replace(samples, inputs=samples.inputs[rows], labels=samples.labels[rows], groups=groups)
