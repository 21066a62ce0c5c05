"""Small files in the official formats of data sets, written byte by byte without the package."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def idx(array: np.ndarray) -> bytes:
    """An idx file of uint8, or of big-endian int32."""
    code, content = (0x08, array) if array.dtype == np.uint8 else (0x0C, array.astype(">i4"))
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + content.tobytes()


def write_mnist(folder: Path, count: int = 12, names=("train", "t10k"), packed: bool = True, classes: int = 10) -> dict:
    """Four idx files; returns the images and labels by the name of their part."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, made = np.random.default_rng(5), {}
    for name in names:
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, classes, count).astype(np.uint8)
        for stem, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            path = folder / (f"{name}-{stem}" + (".gz" if packed else ""))
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
        made[name] = images, labels
    return made


def cifar_batches(count: int = 4) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Pixels uint8 [count, 3072] and labels of the six batches."""
    rng = np.random.default_rng(6)
    return {
        name: (rng.integers(0, 256, (count, 3072), dtype=np.uint8), [int(x) for x in rng.integers(0, 10, count)])
        for name in BATCHES
    }


def binary(pixels: np.ndarray, labels: list[int]) -> bytes:
    return b"".join(bytes((label,)) + row.tobytes() for row, label in zip(pixels, labels, strict=True))


def pickled(pixels: np.ndarray, labels: list[int], protocol: int = 4) -> bytes:
    names = [b"a_%d.png" % number for number in range(len(labels))]
    return pickle.dumps({b"batch_label": b"b", b"labels": labels, b"data": pixels, b"filenames": names}, protocol)


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """As Python 2 wrote the official batches: byte strings, numpy.core, and a dtype with its state."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value if len(value) > 255 else b"U" + bytes((len(value),)) + value

    dtype = b"cnumpy\ndtype\n" + b"(" + text(b"u1") + b"K\x00K\x01tR" + b"(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    array += b"(K\x01(" + b"M" + struct.pack("<H", len(labels)) + b"M\x00\x0ct" + dtype + b"\x89"
    array += text(pixels.tobytes()) + b"tb"
    listed = b"](" + b"".join(b"K" + bytes((label,)) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


def tar(members: dict[str, bytes], packed: bool = True) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz" if packed else "w") as archive:
        for name, member in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(member)
            archive.addfile(header, io.BytesIO(member))
    return content.getvalue()


def write_cifar(folder: Path, batches: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (pixels, labels) in batches.items():
        (folder / f"{name}.bin").write_bytes(binary(pixels, labels))


def picture(shade: int, size: tuple[int, int] = (84, 84), form: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, (shade, 255 - shade, 7)).save(content, form)
    return content.getvalue()


def write_celeba(folder: Path, sizes: dict[int, int], packed: bool = True, side=(84, 84)) -> list[tuple[str, int, int]]:
    """Pictures for `sizes` {celebrity: how many}; returns (name, celebrity, smiling) in the order of the list."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = [
        (f"{celebrity:03d}{number:03d}.jpg", celebrity, (celebrity + number) % 2)
        for number in range(max(sizes.values()))
        for celebrity, count in sizes.items()
        if number < count
    ]
    contents = {name: picture(row % 256, side) for row, (name, _, _) in enumerate(listed)}
    if packed:
        with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
            for name, content in contents.items():
                archive.writestr(f"img_align_celeba/{name}", content)
    else:
        (folder / "img_align_celeba").mkdir()
        for name, content in contents.items():
            (folder / "img_align_celeba" / name).write_bytes(content)
    (folder / "identity_CelebA.txt").write_text("".join(f"{name} {who}\n" for name, who, _ in listed))
    lines = "".join(f"{name} -1  {1 if smiles else -1} -1\n" for name, _, smiles in listed)
    (folder / "list_attr_celeba.txt").write_text(f"{len(listed)}\nBald Smiling Young\n{lines}")
    return listed


def leaf(data: dict[str, tuple[list, list]]) -> str:
    """LEAF's json of {client: (x, y)}."""
    return json.dumps(
        {
            "users": list(data),
            "num_samples": [len(y) for _, y in data.values()],
            "user_data": {client: {"x": x, "y": y} for client, (x, y) in data.items()},
        }
    )


def characters(count: int, seed: int) -> tuple[np.ndarray, list[list[float]], list[int]]:
    """Pictures uint8 [count, 28, 28], the same as LEAF's numbers, and labels."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return pixels, (pixels.reshape(count, 784) / 255).tolist(), [int(x) for x in rng.integers(0, 62, count)]


def write_by_role(folder: Path, roles: dict[str, list[str]] | None = None) -> dict[str, list[str]]:
    """Two roles with some lines and one with hardly any, in the form of Shakespeare's plays by role."""
    roles = roles or {
        "HAMLET": ["To be, or not to be, that is the question:", "Whether ’tis nobler in the mind to suffer"] * 6,
        "GHOST": ["Mark me."],
        "OPHELIA": ["Good my lord,", "How does your honour for this many a day?"] * 3,
    }
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"users": list(roles), "lines": roles})
    (folder / "by_role.json.gz").write_bytes(gzip.compress(content.encode()))
    return roles


def write_newsgroups(folder: Path, authors: tuple[int, ...] = (9,) * 10 + (4,) * 2 + (3,) * 5) -> None:
    """Messages about cats and rockets, in the form of 20 Newsgroups by author."""
    labels = [place % 2 for place in range(len(authors))]
    texts = ["The cats purr and purr" if label == 0 else "Rockets fly to the moon" for label in labels]
    content = {"groups": ["rec.cats", "sci.space"], "author": authors, "label": labels, "text": texts}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "newsgroups_by_author.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
