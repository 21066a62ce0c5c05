"""A user's own arrays, lists, tensors and frames, checked and brought to the types that samples are kept in."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.data.dataset import IGNORED, Inputs, are_classes
from kasync.data.partition.lists import Partition, offsets_of
from kasync.errors import UserError

_FEW = 1000  # labels that are looked at before all of them are
_AT_ONCE = 1 << 22  # numbers looked at together, so that the look needs little memory


def as_inputs(given: ArrayLike | Mapping[str, ArrayLike], what: str = "inputs") -> Inputs:
    """One array [N, ...] or a dict of them: floats as float32, other numbers as they are."""
    if isinstance(given, Mapping):
        return {_named(name, what): _numbers(column, f"{what}[{name!r}]") for name, column in given.items()}
    array = _numbers(given, what)
    if array.ndim == 1 and array.dtype.kind == "f":
        raise UserError(f"{what} have the shape {array.shape}: pass a row for each sample, [N, 1] for one number each.")
    return array


def as_labels(given: ArrayLike, what: str = "labels") -> NDArray:
    """int64, float32 or bool [N, ...], or words [N], to be `encoded`."""
    labels = _array(given, what)
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(np.str_)
    if labels.ndim == 0:
        raise UserError(f"{what} is the single value {given!r}: pass one label for each sample.")
    if labels.dtype.kind == "U":
        if labels.ndim > 1:
            raise UserError(f"{what} are words of shape {labels.shape}: pass one word each, or numbers.")
        return labels
    if labels.dtype.kind in "iu":
        if labels.ndim > 1 and labels.shape[1:] == (1,):
            raise UserError(f"{what} have the shape {labels.shape}: pass one class each, labels[:, 0].")
        if labels.dtype == np.uint64 and labels.max(initial=0) > np.iinfo(np.int64).max:
            raise UserError(f"{what} reach up to {labels.max()}: renumber the classes from 0.")
        labels = labels.astype(np.int64, copy=False)
        lowest = labels[labels != IGNORED].min(initial=0)
        if lowest < 0:
            raise UserError(f"{what} go down to {lowest}, but classes count from 0: renumber them.")
        return labels
    if labels.dtype.kind == "f":
        _refuse_nan(labels, what)
        first = labels[:_FEW]
        if len(labels) > 1 and (first == np.round(first)).all() and (labels == np.round(labels)).all():
            marks = labels.ndim > 1 and ((labels == 0) | (labels == 1)).all()
            remedy = "0 or 1: pass .astype(bool) for marks" if marks else "whole numbers: pass .astype(int) for classes"
            warnings.warn(f"{what} are floats, a regression then, but all are {remedy}.", stacklevel=3)
        return _single(labels, what)
    if labels.dtype.kind == "b":
        return labels
    raise UserError(f"{what} are {_kind(labels)}: pass whole numbers or words (classes), floats (targets) or bools.")


def encoded(
    train: NDArray | None, test: NDArray | None, classes: int | None
) -> tuple[NDArray | None, NDArray | None, int, tuple[str, ...] | None]:
    """Words as classes 0, 1, 2 ... in alphabetical order, how many classes there are, and the words they stand for."""
    both = [labels for labels in (train, test) if labels is not None]
    if any(labels.dtype.kind == "U" for labels in both):
        if any(labels.dtype.kind != "U" for labels in both if len(labels)):
            raise UserError("labels are words in one of the training and test sets and numbers in the other: use one.")
        words = np.unique(np.concatenate([labels.astype(np.str_) for labels in both]))
        coded = [None if labels is None else np.searchsorted(words, labels) for labels in (train, test)]
        if classes is not None and classes != len(words):
            raise UserError(f"classes is {classes}, but the labels are {len(words)} different words: leave it out.")
        return coded[0], coded[1], len(words), tuple(words.tolist())
    if classes is None:
        whole = [labels for labels in both if labels.dtype.kind == "i"]
        classes = 1 + max((int(labels.max(initial=-1)) for labels in whole), default=-1)
    return train, test, classes, None


def client_lists(
    parts: Partition | Sequence[ArrayLike] | Mapping[Any, ArrayLike], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[Hashable, ...] | None]:
    """The flat rows and offsets of a list of rows for each client or of {client: rows}, and the clients' names."""
    if isinstance(parts, Partition):
        return parts.indices.astype(np.int64, copy=False), parts.offsets, None
    if isinstance(parts, np.ndarray) and parts.ndim == 1 and parts.dtype != object:
        raise UserError(
            f"parts is one column of {len(parts)} {parts.dtype}: pass it as owners= if it says whose each sample is, "
            "else a list of rows for each client."
        )
    names = tuple(parts) if isinstance(parts, Mapping) else None
    lists = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    if not lists:
        raise UserError("parts is empty: pass one list of sample indices per client.")
    called = names if names is not None else range(len(lists))
    checked = [_rows(part, client, rows) for client, part in zip(called, lists, strict=True)]
    return np.concatenate(checked), offsets_of(np.array([len(part) for part in checked])), names


def codes_of(owners: Sequence[Hashable] | ArrayLike, rows: int) -> tuple[NDArray[np.int64], tuple[Hashable, ...]]:
    """The number of each sample's owner [N], and the owners: in order where they have one, else as they come."""
    ids = owners.tolist() if isinstance(owners, np.ndarray) or hasattr(owners, "tolist") else owners
    if isinstance(ids, str | Mapping) or not hasattr(ids, "__len__"):
        raise UserError(f"owners is a {type(owners).__name__}: pass one id for each sample.")
    ids = list(ids)  # type: ignore[arg-type]
    if len(ids) != rows:
        raise UserError(f"there are {rows} samples but {len(ids)} owners: pass one id for each sample.")
    for place, owner in enumerate(ids):
        if not isinstance(owner, Hashable):
            raise UserError(f"the owner of sample {place} is a {type(owner).__name__}: pass names or numbers.")
        if owner is None or owner != owner or str(owner) in ("NaT", "<NA>"):
            raise UserError(f"the owner of sample {place} is missing ({owner}): leave such samples out, or name one.")
    distinct = list(dict.fromkeys(ids))
    with suppress(TypeError):  # ids of several types have no order
        distinct = sorted(distinct)  # type: ignore[type-var]
    if len(distinct) == rows > 1:
        warnings.warn(f"each of the {rows} samples has an owner of its own: is it the right column?", stacklevel=3)
    number = {owner: code for code, owner in enumerate(distinct)}
    return np.array([number[owner] for owner in ids], np.int64), tuple(distinct)


def class_labels(labels: NDArray | None, way: str, remedy: str) -> NDArray:
    """Labels int64 [N], for whatever shares samples out by class."""
    if labels is None or not are_classes(labels):
        kind = "there are none" if labels is None else f"they are {labels.dtype} {list(labels.shape)}"
        raise UserError(f"{way} needs labels that are one class for each sample, and {kind}: {remedy}.")
    return labels


def _rows(part: ArrayLike, client: Hashable, rows: int) -> NDArray[np.int64]:
    """One client's rows, whole numbers from 0 to rows - 1."""
    where = f"parts[{client!r}]"
    if hasattr(part, "indices") and hasattr(part, "dataset"):
        raise UserError(f"{where} is a {type(part).__name__}: pass its rows, .indices.")
    try:
        found = np.asarray(part)
    except ValueError as problem:
        raise UserError(
            f"{where} is no list of rows ({str(problem).splitlines()[0]}): pass whole numbers [n]."
        ) from None
    if found.ndim == 0:
        raise UserError(
            f"{where} is {part!r} and no list of rows: pass rows for each client, or owners= with one id per sample."
        )
    if found.size == 0:
        return np.empty(0, np.int64)
    if found.dtype.kind == "b":
        raise UserError(f"{where} is a mask: pass the rows themselves, np.flatnonzero(mask).")
    if found.dtype.kind not in "iu" or found.ndim != 1:
        raise UserError(f"{where} is {found.dtype} {list(found.shape)}: pass a list of rows, whole numbers [n].")
    if found.min() < 0 or found.max() >= rows:
        wrong = found.min() if found.min() < 0 else found.max()
        raise UserError(f"{where} names row {wrong}, but indices must lie in 0..{rows - 1}, the samples there are.")
    return found.astype(np.int64)


def _numbers(given: ArrayLike, what: str) -> NDArray:
    """An array of numbers without a NaN, floats as float32."""
    array = _array(given, what)
    if array.dtype.kind not in "biufc":
        remedy = "turn it into token ids" if _kind(array) == "text" else "convert them"
        raise UserError(f"{what} are {_kind(array)}, not numbers: {remedy} first.")
    if array.ndim == 0:
        raise UserError(f"{what} is the single number {given!r}: pass a row for each sample, [N, ...].")
    _refuse_nan(array, what)
    if array.dtype.kind == "f":
        return _single(array, what)
    return array.astype(np.int64) if array.dtype == np.uint64 else array


def _single(array: NDArray, what: str) -> NDArray:
    """Floats as float32, which holds none beyond 3e38."""
    if array.dtype == np.float32:
        return array
    with np.errstate(over="ignore"):
        made = array.astype(np.float32)
    _refuse_nan(made, what, f"numbers too large for float32 ({np.abs(array).max(initial=0):.3g})")
    return made


def _array(given: Any, what: str) -> NDArray:
    """NumPy's array of what can be an array; torch tensors from any device."""
    if hasattr(given, "detach"):
        tensor = given.detach().cpu()
        given = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    try:
        array = np.asarray(given)
    except ValueError as problem:
        reason = str(problem).splitlines()[0][:120]
        raise UserError(f"{what} make no array ({reason}): pad them to one length.") from None
    except RuntimeError as problem:  # a list of torch's tensors with gradients
        raise UserError(f"{what} make no array ({str(problem).splitlines()[0][:120]}).") from None
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], bool | int | float | np.number | np.bool_):
        with suppress(ValueError):
            array = np.array(array.tolist())  # a pandas column of objects that are numbers all the same
    return array


def _refuse_nan(array: NDArray, what: str, called: str | None = None) -> None:
    """No NaN and no infinity may enter a training set."""
    if array.dtype.kind not in "fc":
        return
    width = prod(array.shape[1:])
    flat = array.reshape(len(array), width)
    step = max(1, _AT_ONCE // max(1, width))
    for start in range(0, len(flat), step):
        bad = ~np.isfinite(flat[start : start + step]).all(1)
        if bad.any():
            row = start + int(bad.argmax())
            values = flat[row][~np.isfinite(flat[row])]
            raise UserError(f"{what} hold {called or values[0]} in row {row}: leave such rows out, or fill them in.")


def _kind(array: NDArray) -> str:
    """The type of an array's values in words."""
    if array.dtype.kind == "O":
        kinds = sorted({type(value).__name__ for value in array.flat[:1000]})
        return f"objects ({', '.join(kinds[:4])})"
    return "text" if array.dtype.kind in "US" else str(array.dtype)


def _named(name: Any, what: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise UserError(f"{what} has an input called {name!r}: name each as forward's parameter is called.")
    return name
