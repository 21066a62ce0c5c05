"""FEMNIST from LEAF's json: 62 classes of 28x28 characters, by the writer, dark on white as there."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from kasync.data.cache import cached
from kasync.data.dataset import Dataset, Samples, every_fifth
from kasync.data.files import broken, missing, refusing
from kasync.data.leaf import Leaf, clients, find_leaf, integers, numbered

CLASSES = 62


def load(places: Sequence[Path]) -> Dataset:
    """LEAF's own split where there is one; else every fifth sample of each writer is a test sample."""
    leaf = find_leaf(places, "femnist")
    if leaf is None:
        raise missing("femnist", places, "LEAF's folders train and test (or all_data) of json files")
    return cached("femnist", leaf.files, lambda: read(leaf))


def read(leaf: Leaf) -> Dataset:
    """The samples of these files; writers are numbered over training and test together."""
    parts = [_read(files) for files in ((leaf.everything,) if leaf.everything else (leaf.train, leaf.test))]
    groups = numbered([writer for _, writers in parts for writer in writers])  # [N]
    ends = np.cumsum([len(writers) for _, writers in parts])
    samples = [
        Samples(part.inputs, part.labels, own)
        for (part, _), own in zip(parts, np.split(groups, ends[:-1]), strict=True)
    ]
    if leaf.everything:
        test = every_fifth(groups)
        samples = [samples[0].subset(~test), samples[0].subset(test)]
    return Dataset("femnist", samples[0], samples[1], CLASSES, "FEMNIST (LEAF json)")


def _read(files: Iterable[Path]) -> tuple[Samples, list[str]]:
    """The samples of these files, and the writer of each by name."""
    inputs, labels, writers = [np.zeros((0, 1, 28, 28), np.uint8)], [np.zeros(0, np.int64)], []
    for path in files:
        for writer, pictures, values in clients(path):
            with refusing(
                path, "LEAF json of pictures of 784 numbers from 0 to 1", ValueError, TypeError, OverflowError
            ):
                pixels = np.array(pictures, dtype=np.float32).reshape(len(values), -1)  # [n, 784]
            if len(values) == 0:
                continue
            if pixels.shape[1] != 784 or not (pixels.min() >= 0 and pixels.max() <= 1):
                raise broken(path, "LEAF json of pictures of 784 numbers from 0 to 1", f"those of {writer!r} are not")
            inputs.append(np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, 28, 28))
            labels.append(integers(path, values, CLASSES))
            writers += [writer] * len(values)
    return Samples(np.concatenate(inputs), np.concatenate(labels)), writers
