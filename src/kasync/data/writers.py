"""Who wrote each digit? QMNIST's extended labels for MNIST, and EMNIST's list of writers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kasync.data.files import broken, find, refusing
from kasync.data.idx import read_idx
from kasync.errors import UserError

QMNIST_PARTS = {"train": "train", "t10k": "test"}


@dataclass(frozen=True)
class Writers:
    """A file that names the writer of each sample; `read` checks it against the labels [N] it belongs to."""

    path: Path
    read: Callable[[NDArray[np.int64]], NDArray[np.int64]]


def qmnist_writers(places: Sequence[Path], prefix: str) -> Writers | None:
    """QMNIST's extended labels int32 [n, 8]: class, series, writer ...; the test file goes on beyond MNIST's 10,000."""
    stem = f"qmnist-{QMNIST_PARTS[prefix]}-labels-idx2-int"
    path = find(places, ("mnist", "qmnist"), (f"{stem}.gz", stem))
    return Writers(path, lambda labels: read_qmnist(path, labels)) if path else None


def read_qmnist(path: Path, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The third column, once the first agrees with the labels."""
    table = read_idx(path, "int32", (None, 8))[: len(labels)]  # [N, 8]
    return _agreeing(path, table[:, 0], table[:, 2], labels)


def emnist_writers(places: Sequence[Path], prefix: str) -> Writers | None:
    """EMNIST's writers: a text file with one number per sample, or the official Matlab file, which holds them too."""
    split, part = prefix.rsplit("-", 1)
    folders = ("emnist", "emnist/matlab", "matlab", split)
    text = find(places, folders, (f"{prefix}-writers.txt",))
    if text is not None:
        return Writers(text, lambda labels: read_list(text, len(labels)))
    matlab = find(places, folders, (f"{split}.mat",))
    return Writers(matlab, lambda labels: read_matlab(matlab, part, labels)) if matlab else None


def read_list(path: Path, count: int) -> NDArray[np.int64]:
    """One whole number per line, in the order of the pictures."""
    with refusing(path, "a list of writers, one number per line", ValueError, OverflowError):
        lines = path.read_bytes().split()
        if len(lines) != count:
            raise broken(path, f"a list of {count} writers, one per picture", f"it has {len(lines)}")
        return np.array([int(line) for line in lines], dtype=np.int64)


def read_matlab(path: Path, part: str, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """dataset.train.writers or dataset.test.writers, once dataset.train.labels agrees with the idx file."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UserError(f"the writers in {path} need scipy: pip install scipy, or move the file away.") from None
    expected = "EMNIST's Matlab file with dataset.train and dataset.test"
    with refusing(path, expected, Exception):  # loadmat raises whatever its parser meets
        samples = loadmat(path, variable_names=["dataset"])["dataset"][0, 0][part][0, 0]
        theirs, writers = (np.asarray(samples[field]).astype(np.int64).ravel() for field in ("labels", "writers"))
    return _agreeing(path, theirs, writers, labels)


def _agreeing(path: Path, theirs: NDArray, writers: NDArray, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The writers, if the classes beside them are those of the pictures they are to describe."""
    if len(theirs) != len(labels) or len(writers) != len(labels):
        raise broken(path, f"the writers of {len(labels)} pictures", f"it has {len(writers)}")
    wrong = np.flatnonzero(theirs != labels)
    if len(wrong):
        raise broken(path, "about the same pictures in the same order", f"its class differs at picture {wrong[0]}")
    return writers.astype(np.int64)
