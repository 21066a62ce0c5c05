"""What is a dataset here? Training and test samples as plain arrays, with the person behind each sample where known."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.errors import UserError


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs uint8 [N, C, H, W] or float32 [N, F], labels int64 [N]; `groups` int64 [N] says whose each sample is."""

    inputs: NDArray
    labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        pictures = self.inputs.dtype == np.uint8 and self.inputs.ndim == 4
        vectors = self.inputs.dtype == np.float32 and self.inputs.ndim == 2
        if not (pictures or vectors):
            raise UserError(
                f"inputs are {self.inputs.dtype} {list(self.inputs.shape)}: give uint8 [N, C, H, W] or float32 [N, F]."
            )
        _check_column("labels", self.labels, len(self.inputs))
        if len(self.labels) and self.labels.min() < 0:
            raise UserError(f"labels reach down to {self.labels.min()}: count classes from 0.")
        if self.groups is not None:
            _check_column("groups", self.groups, len(self.inputs))

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: ArrayLike) -> "Samples":
        """The samples at these positions, in this order, as new arrays."""
        rows = np.asarray(indices)  # [n], or a mask [N]
        if rows.size == 0:
            rows = rows.astype(np.int64)
        groups = None if self.groups is None else self.groups[rows]
        return Samples(self.inputs[rows], self.labels[rows], groups)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set over the same classes; `source` says in words where the samples came from."""

    name: str
    train: Samples
    test: Samples
    classes: int
    source: str

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise UserError(f"{self.name} has {self.classes} classes: give at least 1.")
        for part, samples in (("train", self.train), ("test", self.test)):
            if len(samples) and samples.labels.max() >= self.classes:
                raise UserError(
                    f"{self.name} {part} has the label {samples.labels.max()}, but its {self.classes} classes are "
                    f"0 to {self.classes - 1}."
                )
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise UserError(
                f"{self.name} trains on inputs of shape {self.train.inputs.shape[1:]} but tests on "
                f"{self.test.inputs.shape[1:]}: both must agree."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) or (F,)."""
        return self.train.inputs.shape[1:]

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self.train)} train, {len(self.test)} test, {self.classes} classes, "
            f"inputs {self.shape}, from {self.source})"
        )


def _check_column(what: str, column: NDArray, rows: int) -> None:
    """One integer per sample, or a sentence that says otherwise."""
    if column.dtype != np.int64 or column.ndim != 1:
        raise UserError(f"{what} are {column.dtype} {list(column.shape)}: give int64 [N].")
    if len(column) != rows:
        raise UserError(f"there are {rows} inputs but {len(column)} {what}: give one for each input.")
