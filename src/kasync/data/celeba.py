"""How is CelebA read? Smiling or not, by celebrity, at 84x84: as distributed, or with the json that LEAF prepares.

As LEAF does, celebrities with fewer than five pictures are left out. LEAF's train and test folders are followed where
they are there; otherwise every fifth picture of a celebrity is for testing, so that each has training samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kasync.data.cache import cached
from kasync.data.dataset import Dataset, Samples
from kasync.data.files import broken, find, missing, refusing
from kasync.data.leaf import clients, find_leaf, integers, numbered
from kasync.data.pictures import Pictures, find_pictures
from kasync.data.split import every_fifth

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
