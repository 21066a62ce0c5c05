"""Downloaded samples in the official layouts, so that every dataset is read in one way only."""

import gzip
import io
import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.data.cache import appearing_whole
from kasync.data.celeba import shrunk
from kasync.data.dataset import every_fifth
from kasync.errors import UserError

BATCHES = 5
CLIENTS_PER_FILE = 100  # as LEAF writes them
Rows = Any  # a datasets.Dataset: rows of a table that can be iterated, and columns by name


def mnist(splits: Mapping[str, Rows], folder: Path) -> None:
    """Four idx files, gzip."""
    for split, prefix in (("train", "train"), ("test", "t10k")):
        rows = _split(splits, split)
        images = np.stack([np.asarray(row["image"].convert("L")) for row in rows])  # [N, 28, 28]
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", np.array(rows["label"], dtype=np.uint8))


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """One idx file of uint8."""
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes()
    with appearing_whole(path) as temporary, gzip.open(temporary, "wb", compresslevel=6) as stream:
        stream.write(header + np.ascontiguousarray(array).tobytes())


def cifar10(splits: Mapping[str, Rows], folder: Path) -> None:
    """The six binary batches: five of training pictures, one of test pictures."""
    train, test = _split(splits, "train"), _split(splits, "test")
    for number, rows in enumerate(np.array_split(np.arange(len(train)), BATCHES), start=1):
        _write_batch(folder / "cifar-10-batches-bin" / f"data_batch_{number}.bin", train.select(rows))
    _write_batch(folder / "cifar-10-batches-bin" / "test_batch.bin", test)


def _write_batch(path: Path, rows: Rows) -> None:
    """Records of a label and 3072 pixels, plane by plane."""
    with appearing_whole(path) as temporary, temporary.open("wb") as stream:
        for row in rows:
            pixels = np.asarray(row["img"].convert("RGB")).transpose(2, 0, 1)  # [3, 32, 32]
            stream.write(bytes((row["label"],)) + pixels.tobytes())


def celeba(splits: Mapping[str, Rows], folder: Path) -> None:
    """img_align_celeba.zip and the two lists: pictures at 84x84 without loss, and the one attribute that is used."""
    identities, attributes = [], []
    with appearing_whole(folder / "img_align_celeba.zip") as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for number, row in enumerate(_every_row(splits, ("train", "valid", "test")), start=1):
            name = f"{number:06d}.png"
            picture = io.BytesIO()
            shrunk(row["image"]).save(picture, "PNG")
            archive.writestr(f"img_align_celeba/{name}", picture.getvalue())
            identities.append(f"{name} {int(row['celeb_id'])}")
            attributes.append(f"{name} {1 if row['Smiling'] else -1}")
    _write_text(folder / "identity_CelebA.txt", identities)
    _write_text(folder / "list_attr_celeba.txt", [str(len(attributes)), "Smiling", *attributes])


def femnist(splits: Mapping[str, Rows], folder: Path) -> None:
    """LEAF's json: every fifth character of each writer for testing, a hundred writers to a file."""
    rows = _split(splits, "train")
    labels = np.array(rows["character"], dtype=np.int64)  # [N]
    names, writers, counts = np.unique(np.array(rows["writer_id"]), return_inverse=True, return_counts=True)
    test = every_fifth(writers)  # [N]
    members = np.split(np.argsort(writers, kind="stable"), np.cumsum(counts)[:-1])  # the rows of each writer
    for first in range(0, len(names), CLIENTS_PER_FILE):
        for part, mask in (("train", ~test), ("test", test)):
            data = {}
            for writer in range(first, min(first + CLIENTS_PER_FILE, len(names))):
                own = members[writer][mask[members[writer]]]
                shades = [_shades(row["image"]) for row in rows.select(own)]
                data[str(names[writer])] = {"x": shades, "y": labels[own].tolist()}
            _write_leaf(folder / part / f"all_data_{first // CLIENTS_PER_FILE}.json", data)


def shakespeare(splits: Mapping[str, Rows], folder: Path) -> None:
    """LEAF's json, all_data: the windows of each role in their order, a hundred roles to a file."""
    rows = _split(splits, "train")
    names, roles = np.unique(np.array(rows["character_id"]), return_inverse=True)
    order = np.argsort(roles, kind="stable")  # [N] role after role, each in its own order
    members = np.split(order, np.cumsum(np.bincount(roles))[:-1])
    for first in range(0, len(names), CLIENTS_PER_FILE):
        data = {}
        for role in range(first, min(first + CLIENTS_PER_FILE, len(names))):
            own = rows.select(members[role])
            data[str(names[role])] = {"x": list(own["x"]), "y": list(own["y"])}
        _write_leaf(folder / "all_data" / f"all_data_{first // CLIENTS_PER_FILE}.json", data)


def _write_leaf(path: Path, data: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """One file of clients, each with its x and y."""
    sizes = [len(client["y"]) for client in data.values()]
    content = {"users": list(data), "num_samples": sizes, "user_data": data}
    with appearing_whole(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        json.dump(content, stream, separators=(",", ":"))


def _shades(picture: Any) -> list[float]:
    """The 784 numbers from 0 to 1 of a picture, with as many digits as 256 shades need."""
    return [round(value / 255, 4) for value in np.asarray(picture.convert("L")).ravel().tolist()]


def copy(source: Path, path: Path) -> None:
    """A copy that appears whole or not at all."""
    with appearing_whole(path) as temporary:
        shutil.copyfile(source, temporary)


def _write_text(path: Path, lines: Iterable[str]) -> None:
    with appearing_whole(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="ascii")


def _split(splits: Mapping[str, Rows], name: str) -> Rows:
    """One split, or the sentence that says the hub's dataset has changed."""
    if name not in splits:
        raise UserError(
            f"the downloaded dataset has no split {name!r} (but {', '.join(splits)}): its hub has changed it."
        )
    return splits[name]


def _every_row(splits: Mapping[str, Rows], order: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The rows of these splits, one after the other."""
    for name in order:
        yield from _split(splits, name)
