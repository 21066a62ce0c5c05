"""Damaged data sets of the official formats, and their readers."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from mutations import Canary, spoilt_bytes, spoilt_fields
from official_files import binary, characters, cifar_batches, idx, leaf, pickled, picture, python2_pickle, tar

from kasync.data import cifar10, femnist
from kasync.data.celeba import Pictures, read_lists
from kasync.data.cifar10 import read_pickle
from kasync.data.leaf import Leaf
from kasync.data.mnist import read_idx


class Datasets:
    """Files of every official format."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        batches = cifar_batches(1)
        images = idx(np.arange(3 * 784, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28))
        members = {f"b/{name}.bin": binary(*batch) for name, batch in batches.items()}
        written = leaf({"a": characters(1, 0)[1:], "b": characters(1, 1)[1:]})
        shape = (None, 28, 28)
        lists = (b"1.jpg 7\n2.jpg 7\n3.jpg 7\n4.jpg 7\n5.jpg 7\n", b"1\nBald Smiling\n1.jpg 1 -1\n")
        (folder / "list_attr_celeba.txt").write_bytes(lists[1])
        self.kinds: list[tuple[str, bytes, Callable[[Path], object]]] = [
            ("images", images, lambda path: read_idx(path, "uint8", shape)),
            ("images.gz", gzip.compress(images), lambda path: read_idx(path, "uint8", shape)),
            ("cifar-10-binary.tar.gz", tar(members), cifar10.read_archive),
            ("cifar.tar", tar(members, packed=False), cifar10.read_archive),
            ("new", pickled(*batches["test_batch"]), lambda path: read_pickle(path.read_bytes(), "test_batch")),
            ("old", python2_pickle(*batches["test_batch"]), lambda path: read_pickle(path.read_bytes(), "test_batch")),
            ("all_data.json", written.encode(), lambda path: femnist.read(Leaf(everything=(path,)))),
            ("identity_CelebA.txt", lists[0], lambda path: read_lists(path, folder / "list_attr_celeba.txt")),
            ("img.zip", zipped(picture(3)), lambda path: Pictures(path).read(["1.jpg"], Path("list"))),
        ]

    def make(self, draw: Random) -> tuple[Path, Callable[[Path], object]]:
        name, content, read = draw.choice(self.kinds)
        path = self.folder / name
        if name == "all_data.json" and draw.random() < 0.5:
            content = json.dumps(spoilt_fields(draw, json.loads(content))).encode()
        elif name in ("old", "new") and draw.random() < 0.2:
            content = Canary.pickled(self.folder / "canary", draw.randrange(6))
        elif name.endswith(".gz") and draw.random() < 0.5:
            content = gzip.compress(spoilt_bytes(draw, gzip.decompress(content)))
        else:
            content = spoilt_bytes(draw, content)
        path.write_bytes(content)
        return path, read

    def read(self, made: tuple[Path, Callable[[Path], object]]) -> None:
        path, read = made
        read(path)


def zipped(content: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("img_align_celeba/1.jpg", content)
    return held.getvalue()
