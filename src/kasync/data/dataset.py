"""Samples and data sets as plain arrays, with the person behind each sample where that is known.

Inputs are one array [N, ...] of any dtype, or several named ones; a model is called as model(x) or as model(**inputs).
Labels are int64 classes, float32 targets or bool marks of any shape [N, ...], or there are none.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.errors import UserError

if TYPE_CHECKING:
    from kasync.data.text import Vocabulary

Inputs: TypeAlias = Any  # NDArray [N, ...] | dict[str, NDArray]
Labels: TypeAlias = Any  # NDArray [N, ...] int64, float32 or bool | None
TEST_EVERY = 5  # of a group: which samples are for testing where a source does not say
IGNORED = -100  # the class that a loss leaves out, as in torch.nn.functional.cross_entropy
LABEL_TYPES = (np.dtype(np.int64), np.dtype(np.float32), np.dtype(np.bool_))


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples; `groups` int64 [N] says whose each is, and `group_names[g]` what its maker is called."""

    inputs: Inputs  # [N, ...], or a dict of such arrays by name
    labels: Labels  # [N, ...] int64, float32 or bool, or None
    groups: NDArray[np.int64] | None = None
    group_names: tuple[Hashable, ...] | None = None

    def __post_init__(self) -> None:
        columns = self.inputs if isinstance(self.inputs, dict) else {"inputs": self.inputs}
        if not columns:
            raise UserError("inputs is an empty dict: give one array [N, ...] or several by name.")
        for name, column in columns.items():
            _check_input(name, column, len(self))
        if isinstance(self.inputs, dict) and "labels" in self.inputs:
            raise UserError("an input is called 'labels', the name of what is to be predicted: call it otherwise.")
        if self.labels is not None:
            _check_labels(self.labels, len(self))
        if self.groups is not None:
            if self.groups.dtype != np.int64 or self.groups.ndim != 1:
                raise UserError(f"groups are {self.groups.dtype} {list(self.groups.shape)}: give int64 [N].")
            _check_length("groups", self.groups, len(self))
            named = len(self.groups) if self.group_names is None else len(self.group_names)
            if self.group_names is not None and self.groups.max(initial=-1) >= named:
                raise UserError(f"groups go up to {self.groups.max()}, but {named} have a name: name them all.")

    def __len__(self) -> int:
        return len(first_of(self.inputs))

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {column.dtype} {list(column.shape)}" for name, column in self.columns.items())
        return f"Samples({columns})"

    @property
    def columns(self) -> dict[str, NDArray]:
        """Every array by its name: the inputs ("inputs" where there is one only) and "labels" if there are any."""
        inputs = self.inputs if isinstance(self.inputs, dict) else {"inputs": self.inputs}
        return dict(inputs) if self.labels is None else {**inputs, "labels": self.labels}

    @property
    def shape(self) -> Any:
        """The shape of one input, or a dict of shapes."""
        return each(self.inputs, lambda array: array.shape[1:])

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def subset(self, indices: ArrayLike) -> Samples:
        """The samples at these positions, in this order, as new arrays."""
        rows = np.asarray(indices)  # [n], or a mask [N]
        if rows.size == 0:
            rows = rows.astype(np.int64)
        return replace(
            self,
            inputs=select(self.inputs, rows),
            labels=None if self.labels is None else self.labels[rows],
            groups=None if self.groups is None else self.groups[rows],
        )

    def followed_by(self, other: Samples) -> Samples:
        """These samples and then the other ones, which have the same columns."""
        pairs = {name: (column, other.columns[name]) for name, column in self.columns.items()}
        joined = {name: np.concatenate(pair) for name, pair in pairs.items()}
        labels = joined.pop("labels", None)
        groups = None
        if self.groups is not None and other.groups is not None:
            groups = np.concatenate([self.groups, other.groups])
        inputs = joined if isinstance(self.inputs, dict) else joined["inputs"]
        return replace(self, inputs=inputs, labels=labels, groups=groups)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set; `classes` is 0 where labels are none; `source` says where the samples come from."""

    name: str
    train: Samples
    test: Samples
    classes: int
    source: str
    class_names: tuple[str, ...] | None = None  # [classes]
    vocabulary: Vocabulary | None = None  # of texts, what their numbers stand for

    def __post_init__(self) -> None:
        check_classes(self.name, self.train, self.test, self.classes, self.class_names)

    @property
    def shape(self) -> Any:
        """The shape of one input, (C, H, W) or (F,), or a dict of shapes by name."""
        return self.train.shape

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self.train)} train, {len(self.test)} test, {self.classes} classes, "
            f"inputs {self.shape}, from {self.source})"
        )


def each(inputs: Any, function: Any) -> Any:
    """The function of one array, or of each of several by name."""
    if isinstance(inputs, dict):
        return {name: function(array) for name, array in inputs.items()}
    return function(inputs)


def select(inputs: Any, rows: Any) -> Any:
    """These rows of one array or tensor, or of each of several by name."""
    return each(inputs, lambda array: array[rows])


def first_of(inputs: Any) -> Any:
    """The array itself, or the first of several by name: it says how many samples there are, and where they lie."""
    return next(iter(inputs.values())) if isinstance(inputs, dict) else inputs


def every_fifth(groups: NDArray) -> NDArray[np.bool_]:
    """A mask [N]: the fifth, tenth ... sample of each group; a group of n keeps n - n // 5 samples for training."""
    order = np.argsort(groups, kind="stable")  # [N], group after group, each in its own order
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(groups) else np.zeros(0, np.int64)
    sizes = np.diff(np.r_[starts, len(groups)])
    place = np.arange(len(groups)) - np.repeat(starts, sizes)  # [N], 0 for the first of its group
    mask = np.zeros(len(groups), dtype=bool)
    mask[order] = place % TEST_EVERY == TEST_EVERY - 1
    return mask


def are_classes(labels: NDArray | None) -> bool:
    """Whether each sample has one class: int64 [N]."""
    return labels is not None and labels.ndim == 1 and labels.dtype.kind == "i"


def check_classes(
    name: str, train: Samples, test: Samples, classes: int, class_names: tuple[str, ...] | None = None
) -> None:
    """Refuse training and test samples that do not belong together, and classes that are none."""
    if classes < 0:
        raise UserError(f"{name} has {classes} classes: give at least 1, or 0 where labels are no classes.")
    if class_names is not None and len(class_names) != classes:
        raise UserError(f"{name} has {classes} classes but {len(class_names)} names for them: give one for each.")
    if train.shape != test.shape:
        raise UserError(f"{name} trains on inputs of shape {train.shape} but tests on {test.shape}: both must agree.")
    if (train.labels is None) != (test.labels is None):
        raise UserError(f"{name} has labels for one of its training and test sets only: give both or none.")
    for part, samples in (("train", train), ("test", test)):
        labels = samples.labels
        if labels is None or labels.dtype.kind != "i":
            continue
        if not classes:
            raise UserError(f"{name} has 0 classes but {part} labels of whole numbers: say how many classes there are.")
        if labels.max(initial=-1) >= classes:
            raise UserError(
                f"{name} {part} has the label {labels.max()}, but its {classes} classes are 0 to {classes - 1}."
            )
    kinds = [(labels.dtype, labels.shape[1:]) for labels in (train.labels, test.labels) if labels is not None]
    if len(set(kinds)) > 1:
        words = " but tests on ".join(f"{dtype} {['N', *shape]}" for dtype, shape in kinds)
        raise UserError(f"{name} trains on labels {words}: both must agree.")


def _check_input(name: str, column: Any, rows: int) -> None:
    """An array of numbers with a row for each sample."""
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biufc" or column.ndim < 1:
        kind = f"{column.dtype} {list(column.shape)}" if isinstance(column, np.ndarray) else type(column).__name__
        raise UserError(f"{name} are {kind}: give an array [N, ...] of numbers.")
    _check_length(name, column, rows)


def _check_labels(labels: NDArray, rows: int) -> None:
    """int64 classes from 0, float32 targets or bool marks, for each sample."""
    if labels.dtype not in LABEL_TYPES or labels.ndim < 1:
        raise UserError(f"labels are {labels.dtype} {list(labels.shape)}: give int64, float32 or bool [N, ...].")
    _check_length("labels", labels, rows)
    if labels.dtype.kind == "i":
        wrong = labels[(labels < 0) & (labels != IGNORED)]
        if wrong.size:
            raise UserError(f"labels reach down to {wrong.min()}: count classes from 0 ({IGNORED} is left out).")


def _check_length(what: str, column: NDArray, rows: int) -> None:
    if len(column) != rows:
        raise UserError(f"there are {rows} inputs but {len(column)} {what}: give one for each input.")
