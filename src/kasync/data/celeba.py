"""CelebA: smiling or not, by celebrity, at 84x84, as distributed or with the json that LEAF prepares.

As LEAF does, celebrities with fewer than five pictures are left out. LEAF's train and test folders are followed where
they are there; otherwise every fifth picture of a celebrity is for testing, so that each has training samples. Each
picture, from a folder or a zip file, is checked for its size before it is decoded.
"""

import io
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.data.cache import cached
from kasync.data.dataset import Dataset, Samples, every_fifth
from kasync.data.files import broken, find, missing, refusing
from kasync.data.leaf import clients, find_leaf, integers, numbered
from kasync.errors import UserError

SIDE = 84
MOST_BYTES = 2 << 20  # of one picture file, packed or not; the official ones have some 10,000
MOST_PIXELS = 4 << 20  # of one picture; the official ones have 178 x 218


@dataclass(frozen=True)
class Pictures:
    """The folder img_align_celeba, or the zip file of it."""

    path: Path

    def files(self, names: Sequence[str], origin: Path) -> list[Path]:
        """The files the pictures are in, once every name is known to be there."""
        if self.path.is_file():
            with refusing(self.path, "a zip file of pictures", *ZIP_ERRORS), zipfile.ZipFile(self.path) as archive:
                self._check(names, {Path(name).name for name in archive.namelist()}, origin)
            return [self.path]
        self._check(names, {entry.name for entry in self.path.iterdir()}, origin)
        return [self.path / name for name in names]

    def read(self, names: Sequence[str], origin: Path) -> NDArray[np.uint8]:
        """The pictures in this order, uint8 [N, 3, 84, 84]."""
        self.files(names, origin)  # before room is made for them
        inputs = np.empty((len(names), 3, SIDE, SIDE), dtype=np.uint8)
        with ExitStack() as opened:
            members: dict[str, zipfile.ZipInfo] = {}
            if self.path.is_file():
                with refusing(self.path, "a zip file of pictures", *ZIP_ERRORS):
                    archive = opened.enter_context(zipfile.ZipFile(self.path))
                    members = {Path(member.filename).name: member for member in archive.infolist()}
            for row, name in enumerate(names):
                with refusing(self.path / name, "a picture", *ZIP_ERRORS):
                    member = members.get(name)
                    size = max(member.file_size, member.compress_size) if member else (self.path / name).stat().st_size
                    if size > MOST_BYTES:
                        raise broken(self.path / name, "a picture of CelebA", f"it has {size} bytes")
                    content = archive.read(member) if member else (self.path / name).read_bytes()
                inputs[row] = decoded(content, self.path / name)
        return inputs

    def _check(self, names: Sequence[str], present: set[str], origin: Path) -> None:
        absent = [name for name in names if name not in present]
        if absent:
            raise UserError(
                f"{absent[0][:40]!r}, which {origin.name} lists, is not among the pictures of {self.path} "
                f"({len(absent)} of {len(names)} are not): put them there, or take them off the list."
            )


ZIP_ERRORS = (zipfile.BadZipFile, zipfile.LargeZipFile, ValueError, NotImplementedError, RuntimeError, OverflowError)


def find_pictures(places: Sequence[Path], folders: Sequence[str]) -> Pictures | None:
    """The folder, or else the zip file."""
    around = [*folders, *(f"{folder}/Img" for folder in ("celeba", "CelebA")), "Img"]
    folder = find(places, around, ["img_align_celeba"], kind="folder")
    path = folder or find(places, around, ["img_align_celeba.zip"])
    return Pictures(path) if path else None


def decoded(content: bytes, path: Path) -> NDArray[np.uint8]:
    """One picture as uint8 [3, 84, 84]."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError("celeba needs Pillow to read pictures: pip install 'kasync[images]'.") from None
    with refusing(path, "a JPEG or PNG picture", Exception):  # a decoder raises whatever the bytes lead it to
        picture = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        if picture.width * picture.height > MOST_PIXELS:
            raise broken(path, "a picture of CelebA", f"it has {picture.width} x {picture.height} pixels")
        return np.asarray(shrunk(picture)).transpose(2, 0, 1)


def shrunk(picture: Any) -> Any:
    """A Pillow picture in colours at 84x84; the official 178 x 218 is resized as a whole (bicubic), as in LEAF."""
    colours = picture.convert("RGB")
    return colours if colours.size == (SIDE, SIDE) else colours.resize((SIDE, SIDE), 3)  # 3 is Pillow's BICUBIC


FOLDERS = ("celeba", "CelebA", "celeba/data/raw", "celeba/raw", "data/raw", "celeba/Anno", "CelebA/Anno", "Anno")
FEWEST = 5  # pictures of a celebrity, as in LEAF
LABEL = "Smiling"


@dataclass(frozen=True)
class Listing:
    """What the lists say of each picture: its name, its celebrity, whether it smiles, whether it is for testing."""

    names: tuple[str, ...]
    celebrities: np.ndarray  # int64 [N]
    smiling: np.ndarray  # int64 [N]
    test: np.ndarray  # bool [N]
    origin: Path  # the file to name when a picture is not there


def load(places: Sequence[Path]) -> Dataset:
    """LEAF's json if it is there, else the two lists, with the pictures from a folder or the zip file."""
    pictures = find_pictures(places, FOLDERS)
    if pictures is None:
        raise missing("celeba", places, "img_align_celeba.zip (or the folder img_align_celeba)")
    leaf = find_leaf(places, "celeba")
    if leaf is not None:
        listing = read_leaf(leaf.train, leaf.test) if leaf.train else read_leaf(leaf.everything, None)
        lists, form = leaf.files, "LEAF json"
    else:
        lists = [_find_list(places, file) for file in ("identity_CelebA.txt", "list_attr_celeba.txt")]
        listing, form = read_lists(*lists), "official lists"
    files = [*lists, *pictures.files(listing.names, listing.origin)]
    source = f"CelebA, {LABEL} (84x84, {pictures.path.name}, {form})"
    return cached("celeba", files, lambda: decode(listing, pictures, source))


def decode(listing: Listing, pictures: Pictures, source: str) -> Dataset:
    """Every listed picture, as uint8 [N, 3, 84, 84]."""
    inputs = pictures.read(listing.names, listing.origin)
    everything = Samples(inputs, listing.smiling, listing.celebrities)
    return Dataset("celeba", everything.subset(~listing.test), everything.subset(listing.test), 2, source)


def read_lists(identities: Path, attributes: Path) -> Listing:
    """The celebrity and the Smiling attribute of each picture, from the lists as they are distributed."""
    celebrity: dict[str, int] = {}
    with refusing(identities, "a list of pictures and celebrities", ValueError, OverflowError):
        for line in identities.read_text(encoding="ascii").splitlines():
            if line.strip():
                name, number = line.split()
                celebrity[name] = int(number)
        numbers = np.array(list(celebrity.values()), dtype=np.int64)  # [N]
    _, place, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    enough = sizes[place] >= FEWEST if len(numbers) else np.zeros(0, bool)  # [N]
    if not enough.any():
        raise broken(identities, f"a list with {FEWEST} pictures or more of a celebrity", f"{len(celebrity)} pictures")
    smiles = _smiles(attributes)
    names = tuple(name for name, kept in zip(celebrity, enough, strict=True) if kept)
    absent = [name for name in names if name not in smiles]
    if absent:
        raise broken(attributes, f"about the pictures of {identities.name}", f"{absent[0]} is not in it")
    celebrities = numbers[enough]
    smiling = np.array([smiles[name] for name in names], dtype=np.int64)
    return Listing(names, celebrities, smiling, every_fifth(celebrities), identities)


def read_leaf(train: Sequence[Path], test: Sequence[Path] | None) -> Listing:
    """The pictures that LEAF's json names; without test files, every fifth of a celebrity is for testing."""
    names: list[str] = []
    celebrities: list[str] = []
    smiling, parts = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    for files, testing in ((train, False), (test or (), True)):
        for path in files:
            for client, pictures, values in clients(path):
                if not all(isinstance(name, str) for name in pictures):
                    raise broken(path, "LEAF json of CelebA with the names of pictures", f"those of {client!r} are not")
                names += pictures
                celebrities += [client] * len(pictures)
                smiling.append(integers(path, values, 2))
                parts.append(np.full(len(pictures), testing))
    if not names:
        raise broken(train[0], "LEAF json of CelebA", "it names no picture")
    numbers = numbered(celebrities)
    mask = np.concatenate(parts) if test is not None else every_fifth(numbers)
    return Listing(tuple(names), numbers, np.concatenate(smiling), mask, train[0])


def _find_list(places: Sequence[Path], file: str) -> Path:
    """One of the two lists, or the sentence that says it is not there."""
    path = find(places, FOLDERS, [file])
    if path is None:
        raise missing("celeba", places, f"{file} beside the pictures")
    return path


def _smiles(attributes: Path) -> dict[str, int]:
    """1 for a picture that smiles and 0 for one that does not, by its name."""
    expected = f"a list of attributes with {LABEL} among them"
    found = {}
    with refusing(attributes, expected, ValueError):
        count, titles, *lines = attributes.read_text(encoding="ascii").splitlines()
        columns = titles.split()
        column = 1 + columns.index(LABEL)
        for line in lines:
            words = line.split()
            if not words:
                continue
            if len(words) != 1 + len(columns) or words[column] not in ("-1", "1"):
                raise broken(attributes, expected, f"the line of {words[0][:40]!r} has other columns")
            found[words[0]] = int(words[column] == "1")
        if len(found) != int(count):
            raise broken(attributes, expected, f"it holds {len(found)} of the {int(count)} lines it says")
    return found
