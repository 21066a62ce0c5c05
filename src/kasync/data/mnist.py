"""MNIST and EMNIST from their official idx files, with the writer of each digit where a list of them is there.

A header is checked against its file before anything is allocated. Writers are QMNIST's extended labels for MNIST, and
EMNIST's official Matlab file or a plain list.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kasync.data.cache import cached
from kasync.data.dataset import Dataset, Samples
from kasync.data.files import broken, find, missing, most_bytes, open_plain, read_exactly, refusing
from kasync.errors import UserError

TYPES: dict[int, np.dtype] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}  # those MNIST, EMNIST and QMNIST use


def read_idx(path: Path, kind: str, shape: tuple[int | None, ...]) -> NDArray:
    """The array of an idx file, gzip or not; `shape` fixes the sizes that are not None, `kind` is uint8 or int32."""
    sizes = ", ".join("N" if size is None else str(size) for size in shape)
    expected = f"an idx file of {kind} [{sizes}]"
    with refusing(path, expected), open_plain(path) as stream:
        header = bytes(read_exactly(stream, 4 + 4 * len(shape)))
        if len(header) < 4 + 4 * len(shape):
            raise broken(path, expected, f"it ends within its header, after {len(header)} bytes")
        code, axes = header[2], header[3]
        if header[:2] != b"\0\0" or code not in TYPES or TYPES[code].newbyteorder("=").name != kind:
            raise broken(path, expected, f"its first bytes are {header[:4].hex()}")
        if axes != len(shape):
            raise broken(path, expected, f"it has {axes} dimensions")
        found = tuple(int(size) for size in np.frombuffer(header, ">u4", offset=4))
        if any(want is not None and want != size for want, size in zip(shape, found, strict=True)):
            raise broken(path, expected, f"its header says {list(found)}")
        size = prod(found) * TYPES[code].itemsize
        if size > most_bytes(path):
            raise broken(path, expected, f"its header says {list(found)}, more than the file can hold")
        content = read_exactly(stream, size)
        if len(content) < size:
            raise broken(path, expected, f"it holds {len(content)} of the {size} bytes its header says")
        if stream.read(1):
            raise broken(path, expected, f"it holds more than the {size} bytes its header says")
    return np.frombuffer(content, TYPES[code]).reshape(found)


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


@dataclass(frozen=True)
class Family:
    """How one dataset of the MNIST family names its files, and what is in them."""

    name: str
    source: str
    classes: int
    prefixes: tuple[str, str]  # of the training and the test files
    folders: tuple[str, ...]
    transposed: bool  # EMNIST stores each picture by columns
    find_writers: Callable[[Sequence[Path], str], Writers | None]


EMNIST_FOLDERS = ("emnist", "emnist/gzip", "gzip", "EMNIST/raw")
MNIST = Family("mnist", "MNIST", 10, ("train", "t10k"), ("mnist", "MNIST/raw"), False, qmnist_writers)
EMNIST_MNIST, EMNIST_BYCLASS = (
    Family(
        f"emnist-{split.lower()}",
        f"EMNIST {split}",
        classes,
        (f"emnist-{split.lower()}-train", f"emnist-{split.lower()}-test"),
        (f"emnist-{split.lower()}", *EMNIST_FOLDERS),
        True,
        emnist_writers,
    )
    for split, classes in (("MNIST", 10), ("ByClass", 62))
)


@dataclass(frozen=True)
class Part:
    """The files of the training or the test samples."""

    images: Path
    labels: Path
    writers: Writers | None

    @property
    def files(self) -> list[Path]:
        return [self.images, self.labels, *([self.writers.path] if self.writers else [])]


def load_mnist(places: Sequence[Path]) -> Dataset:
    return load(MNIST, places)


def load_emnist_mnist(places: Sequence[Path]) -> Dataset:
    return load(EMNIST_MNIST, places)


def load_emnist_byclass(places: Sequence[Path]) -> Dataset:
    return load(EMNIST_BYCLASS, places)


def load(family: Family, places: Sequence[Path]) -> Dataset:
    """The four idx files of the family, and its writers."""
    train, test = (_part(family, places, prefix) for prefix in family.prefixes)
    known = "" if train.writers is None else f", writers from {train.writers.path.name}"
    return cached(
        family.name,
        [*train.files, *test.files],
        lambda: Dataset(
            family.name,
            read(family, train),
            read(family, test),
            family.classes,
            f"{family.source} (idx files{known})",
        ),
    )


def read(family: Family, part: Part) -> Samples:
    """The samples of one pair of idx files, upright."""
    images = read_idx(part.images, "uint8", (None, 28, 28))  # [N, 28, 28]
    labels = read_idx(part.labels, "uint8", (None,)).astype(np.int64)  # [N]
    if len(images) == 0:
        raise broken(part.images, "a set of pictures", "it holds none")
    if len(images) != len(labels):
        raise broken(
            part.labels, f"the labels of the {len(images)} pictures of {part.images.name}", f"{len(labels)} labels"
        )
    if labels.max() >= family.classes:
        raise broken(part.labels, f"labels from 0 to {family.classes - 1}", f"it has the label {labels.max()}")
    if family.transposed:
        images = images.transpose(0, 2, 1)
    inputs: NDArray[np.uint8] = np.ascontiguousarray(images)[:, None]  # [N, 1, 28, 28]
    return Samples(inputs, labels, part.writers.read(labels) if part.writers else None)


def _part(family: Family, places: Sequence[Path], prefix: str) -> Part:
    """Where these files are, or the sentence that says they are not."""
    found = []
    for stem in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        names = [f"{prefix}-{stem}{end}" for end in (".gz", "")] + [f"{prefix}-{stem.replace('-', '.', 1)}"]
        path = find(places, family.folders, names)
        if path is None:
            raise missing(family.name, places, f"{names[0]} (or {names[1]})")
        found.append(path)
    return Part(found[0], found[1], family.find_writers([found[0].parent, *places], prefix))
