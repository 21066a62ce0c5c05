"""LEAF's json, read one client at a time, so that memory never holds all of it as Python objects."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.data.files import broken, find, refusing

EXPECTED = "LEAF json with users, num_samples and user_data"
SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True)
class Leaf:
    """The json files of a dataset that LEAF prepared: its own split, or `everything` where it was not split."""

    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    everything: tuple[Path, ...] = ()

    @property
    def files(self) -> list[Path]:
        return [*self.train, *self.test, *self.everything]


def find_leaf(places: Sequence[Path], name: str) -> Leaf | None:
    """LEAF's folders train and test, or all_data, in the dataset's folder, its `data` folder, or the place itself."""
    found = {}
    for part in ("train", "test", "all_data"):
        folder = find(places, (name, f"{name}/data", "data"), [part], kind="folder")
        found[part] = tuple(sorted(folder.glob("*.json"))) if folder else ()
    if found["train"] and found["test"]:
        return Leaf(train=found["train"], test=found["test"])
    return Leaf(everything=found["all_data"]) if found["all_data"] else None


def clients(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Each client of the file with its inputs and labels, once their numbers agree; whatever else is refused."""
    with refusing(path, EXPECTED, ValueError, RecursionError, OverflowError):
        scan = Scanner(path.read_text(encoding="utf-8"))
        counts: dict[str, int] = {}
        words: dict[str, Any] = {}
        for key in scan.keys():  # noqa: SIM118 (not a mapping)
            if key != "user_data":
                words[key] = scan.value()
                continue
            for client in scan.keys():  # noqa: SIM118 (not a mapping)
                inputs, labels = _columns(path, client, scan.value())
                counts[client] = len(labels)
                yield client, inputs, labels
        scan.end()
        said = words.get("users"), words.get("num_samples")
        if not all(isinstance(column, list) for column in said) or said != (list(counts), list(counts.values())):
            raise broken(path, EXPECTED, "its users and num_samples are not those of its user_data")


def integers(path: Path, values: list[Any], classes: int) -> NDArray[np.int64]:
    """Labels int64 [n] from 0 to classes - 1; LEAF writes CelebA's as 0.0 and 1.0."""
    if not all(type(value) in (int, float) and value in range(classes) for value in values):
        raise broken(path, f"LEAF json with labels from 0 to {classes - 1}", "it has others")
    return np.array(values, dtype=np.int64)


def numbered(names: Sequence[str]) -> NDArray[np.int64]:
    """A number for each client's name [n]: the name itself where all are numbers, else its place in the alphabet."""
    if all(name.isascii() and name.isdigit() and len(name) < 19 for name in names):
        return np.array([int(name) for name in names], dtype=np.int64)
    place = {name: number for number, name in enumerate(sorted(set(names)))}
    return np.array([place[name] for name in names], dtype=np.int64)


def _columns(path: Path, client: str, value: Any) -> tuple[list[Any], list[Any]]:
    """The x and y of one client."""
    inputs, labels = (value.get("x"), value.get("y")) if isinstance(value, dict) else (None, None)
    if not isinstance(inputs, list) or not isinstance(labels, list) or len(inputs) != len(labels):
        raise broken(path, EXPECTED, f"{client[:40]!r} has no lists x and y of one length")
    return inputs, labels


class Scanner:
    """Walks through json text: objects key by key, everything else value by value."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.decoder = json.JSONDecoder()

    def keys(self) -> Iterator[str]:
        """Each key of the object that starts here; the caller takes its value before asking for the next."""
        self._take("{")
        if self._peek() == "}":
            self._take("}")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"a key is missing at character {self.at}")
            self._take(":")
            yield key
            if self._take(",}") == "}":
                return

    def value(self) -> Any:
        """The value that starts here."""
        self._peek()
        found, self.at = self.decoder.raw_decode(self.text, self.at)
        return found

    def end(self) -> None:
        """Nothing may follow."""
        if self._peek():
            raise ValueError(f"something follows its end at character {self.at}")

    def _peek(self) -> str:
        space = SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def _take(self, allowed: str) -> str:
        found = self._peek()
        if not found or found not in allowed:
            wanted = " or ".join(allowed)
            raise ValueError(f"{wanted} is expected at character {self.at}, where there is {found!r}")
        self.at += 1
        return found
