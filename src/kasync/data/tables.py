"""Federated data from what others keep samples in: pandas frames, Hugging Face data sets, map-style torch data sets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.data.federated import FederatedData, from_arrays
from kasync.errors import UserError, unknown

LABELS = ("label", "labels")  # looked for where no label is named


@dataclass(frozen=True)
class _Columns:
    """What was read of one data set."""

    inputs: Any  # an array, or several by name
    labels: Any
    owners: Sequence[Hashable] | None
    class_names: tuple[str, ...] | None = None
    names: list[str] | None = None  # of the columns that the inputs are made of, in order


def from_dataset(
    dataset: Any,
    inputs: str | Sequence[str] | None = None,
    label: str | None = None,
    owner: str | None = None,
    *,
    owners: Sequence[Hashable] | NDArray | None = None,
    parts: Any = None,
    test: Any = None,
    test_fraction: float | None = None,
    classes: int | None = None,
    scale: str = "unit",
    name: str = "dataset",
    seed: int = 0,
) -> FederatedData:
    """A pandas frame, a Hugging Face data set or a torch data set, read once into memory, and who holds what of it.

    `owner`, `label` and `inputs` name columns (of torch samples that are dicts, keys); without `inputs` all others are
    taken. A frame's become one row of numbers for each sample, the columns of the other two one named input each.
    Torch samples that are tuples are (input, label), or (one input for each name in `inputs`, label). Who holds what
    may be told by `owners` or `parts` instead, as in `from_arrays`; `test` is a data set of the same kind.
    """
    if isinstance(dataset, Mapping):
        if not {"train"} <= set(dataset):
            raise UserError(f"the data set has no split 'train' but {', '.join(map(str, dataset))}: pass one of them.")
        dataset, test = dataset["train"], test if test is not None else dataset.get("test")
    if owner is None and owners is None and parts is None:
        raise UserError("who holds which samples is not told: name the column of ids, owner='user', or pass owners.")
    if owner is not None and owners is not None:
        raise UserError(f"owner={owner!r} and owners are both given: choose one.")
    names = [inputs] if isinstance(inputs, str) else None if inputs is None else list(inputs)
    train = _read(dataset, names, label, owner)
    tested = None if test is None else _read(test, names or train.names, label, owner, may_lack_owner=True)
    data = from_arrays(
        train.inputs,
        train.labels,
        None if tested is None else tested.inputs,
        None if tested is None else tested.labels,
        parts,
        classes if classes is not None else len(train.class_names or ()) or None,
        scale,
        name,
        owners=train.owners if owner is not None else owners,
        test_fraction=test_fraction,
        seed=seed,
    )
    return replace(data, class_names=train.class_names) if train.class_names else data


def _read(
    dataset: Any, inputs: list[str] | None, label: str | None, owner: str | None, may_lack_owner: bool = False
) -> _Columns:
    """The columns of a data set of any of the three kinds."""
    if hasattr(dataset, "iloc") and hasattr(dataset, "columns"):
        read: Callable[..., _Columns] = _read_frame
        columns = [str(column) for column in dataset.columns]
    elif hasattr(dataset, "column_names") and hasattr(dataset, "features"):
        if not hasattr(dataset, "__len__"):
            raise UserError(
                f"the data set is an {type(dataset).__name__}, a stream without a length: read it into memory first, "
                "datasets.Dataset.from_list(list(dataset))."
            )
        read, columns = _read_hugging_face, list(dataset.column_names)
    elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return _read_torch(dataset, inputs, label, owner, may_lack_owner)
    else:
        raise UserError(
            f"dataset is a {type(dataset).__name__}: pass a pandas frame, a Hugging Face data set, or a torch data set "
            "with a length (the samples of an iterable one as a list)."
        )
    label, owner, inputs = _roles(columns, inputs, label, owner, may_lack_owner)
    return read(dataset, inputs, label, owner)


def _roles(
    columns: list[str], inputs: list[str] | None, label: str | None, owner: str | None, may_lack_owner: bool
) -> tuple[str | None, str | None, list[str]]:
    """Which columns are the label, the owner and the inputs."""
    if may_lack_owner and owner not in columns:
        owner = None
    for column in (label, owner, *(inputs or ())):
        if column is not None and column not in columns:
            raise unknown("column", column, columns)
    if label is None:
        label = next((column for column in LABELS if column in columns and column not in (inputs or ())), None)
    if inputs is None:
        inputs = [column for column in columns if column not in (label, owner)]
    if not inputs:
        raise UserError(f"no column is left for the inputs of {', '.join(columns)}: name them, inputs=[...].")
    return label, owner, inputs


def _read_frame(frame: Any, inputs: list[str], label: str | None, owner: str | None) -> _Columns:
    """A pandas frame: columns of numbers side by side [N, F]."""
    frame = frame.rename(columns=str)
    features = []
    for column in inputs:
        values = np.asarray(frame[column])
        if values.dtype.kind not in "biuf":
            raise UserError(
                f"column {column!r} holds {frame[column].dtype}, no numbers: leave it out of inputs=[...] or encode it."
            )
        missing = np.flatnonzero(~np.isfinite(values.astype(np.float64)))
        if len(missing):
            raise UserError(f"column {column!r} holds {values[missing[0]]} in row {missing[0]}: fill it in or drop it.")
        features.append(values.astype(np.float32))
    labels = None if label is None else frame[label].to_numpy()
    owners = None if owner is None else frame[owner].tolist()
    return _Columns(np.stack(features, axis=1), labels, owners, names=inputs)


def _read_hugging_face(dataset: Any, inputs: list[str], label: str | None, owner: str | None) -> _Columns:
    """A Hugging Face data set: one array for each column, pictures with their channels first."""
    arrays = dataset.with_format("numpy")
    found = {column: _as_picture(dataset.features[column], np.asarray(arrays[column][:])) for column in inputs}
    labels = None if label is None else np.asarray(arrays[label][:])
    names = getattr(dataset.features[label], "names", None) if label is not None else None
    owned = None if owner is None else list(dataset.with_format(None)[owner][:])
    return _Columns(_one_or_all(found), labels, owned, tuple(names) if names else None, inputs)


def _as_picture(feature: Any, array: NDArray) -> NDArray:
    """Pictures as [N, C, H, W]; other columns as they are."""
    if type(feature).__name__ != "Image" or array.dtype == object:
        return array
    return array[:, None] if array.ndim == 3 else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _read_torch(
    dataset: Any, inputs: list[str] | None, label: str | None, owner: str | None, may_lack_owner: bool
) -> _Columns:
    """A map-style torch data set: every sample once, in order."""
    samples = [dataset[place] for place in range(len(dataset))]
    if not samples:
        raise UserError("the data set is empty: pass one with samples.")
    if isinstance(samples[0], Mapping):
        columns = [str(column) for column in samples[0]]
        label, owner, inputs = _roles(columns, inputs, label, owner, may_lack_owner)
        found = {column: _stacked(column, [sample[column] for sample in samples]) for column in inputs}
        labels = None if label is None else _stacked(label, [sample[label] for sample in samples])
        owned = None if owner is None else [_plain(sample[owner]) for sample in samples]
        return _Columns(_one_or_all(found), labels, owned, names=inputs)
    if owner is not None and not may_lack_owner:
        raise UserError(f"owner is {owner!r}, but the samples are no dicts: pass owners= with one id for each sample.")
    rows = [sample if isinstance(sample, tuple | list) else (sample,) for sample in samples]
    width = len(rows[0])
    named = inputs if inputs is not None else ["inputs"]
    if any(len(row) != width for row in rows) or width not in (len(named), len(named) + 1):
        raise UserError(
            f"a sample has {width} parts, but the inputs are {', '.join(named)} and at most a label follows: "
            "name them in order, inputs=[...]."
        )
    found = {name: _stacked(name, [row[place] for row in rows]) for place, name in enumerate(named)}
    labels = _stacked("label", [row[-1] for row in rows]) if width > len(named) else None
    return _Columns(_one_or_all(found), labels, None)


def _stacked(what: str, values: list[Any]) -> NDArray:
    """One array of a column of tensors, arrays or numbers."""
    if type(values[0]).__module__.startswith("PIL"):
        raise UserError(
            f"{what} is a picture of PIL: give the data set a transform that makes arrays or tensors of it."
        )
    try:
        return np.stack([np.asarray(_plain(value, array=True)) for value in values])
    except (ValueError, TypeError) as problem:
        raise UserError(f"{what} cannot be stacked ({str(problem).splitlines()[0]}): pad it to one length.") from None


def _plain(value: Any, array: bool = False) -> Any:
    """A tensor as an array, or as what it holds."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return value if array or not hasattr(value, "item") else value.item()


def _one_or_all(found: dict[str, NDArray]) -> Any:
    """A single input is passed to the model as it is, several by name."""
    return next(iter(found.values())) if len(found) == 1 else found
