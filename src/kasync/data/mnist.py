"""How are MNIST and EMNIST read? From their official idx files, with the writer of each digit where a list is there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kasync.data.cache import cached
from kasync.data.dataset import Dataset, Samples
from kasync.data.files import broken, find, missing
from kasync.data.idx import read_idx
from kasync.data.writers import Writers, emnist_writers, qmnist_writers


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
