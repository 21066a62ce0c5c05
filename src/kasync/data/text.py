"""Text as tokens: vocabularies, windows for predicting the next token, and the data sets by role and by author."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.data.cache import cached
from kasync.data.columns import as_inputs
from kasync.data.dataset import Dataset, Samples, every_fifth, first_of
from kasync.data.federated import FederatedData
from kasync.data.files import broken, find, missing, open_plain, refusing
from kasync.data.leaf import Leaf, clients, find_leaf
from kasync.data.partition.lists import offsets_of
from kasync.errors import UserError, unknown

PREDICT = ("each", "last")
PADDING, UNKNOWN = "", "<unknown>"  # the first two words of a vocabulary of words
WORD = re.compile(r"\w+(?:['’]\w+)*")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and their numbers: characters, or words of which 0 is the padding and 1 every other word."""

    tokens: tuple[str, ...]
    words: bool = False

    @classmethod
    def characters(cls, texts: Iterable[str]) -> Vocabulary:
        """Every character of the texts, in the order of their code points."""
        return cls(tuple(sorted(set().union(*texts))))

    @classmethod
    def of_words(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """The most frequent words in lower case, `size` tokens with the two that are no words."""
        if size < 3:
            raise UserError(f"size is {size}, but padding and the unknown word are two: give at least 3.")
        counts = Counter(word for text in texts for word in _words(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls((PADDING, UNKNOWN, *ranked[: size - 2]), words=True)

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, length: int | None = None) -> NDArray[np.int64]:
        """The numbers of a text's tokens; with `length` exactly so many, the rest cut off or padded with 0."""
        ids = self._encoded(text)
        if length is None:
            return ids
        padded = np.zeros(length, np.int64)
        padded[: min(length, len(ids))] = ids[:length]
        return padded

    def decode(self, ids: ArrayLike) -> str:
        """The text of these numbers."""
        found = [self.tokens[number] for number in np.asarray(ids).ravel().tolist()]
        return " ".join(token for token in found if token) if self.words else "".join(found)

    def _encoded(self, text: str) -> NDArray[np.int64]:
        if self.words:
            return np.array([self._numbers.get(word, 1) for word in _words(text)], np.int64)
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        places = np.minimum(np.searchsorted(self._points, points), len(self._points) - 1)
        strange = points[self._points[places] != points]
        if strange.size:
            raise UserError(f"the character {chr(strange[0])!r} is not among the {len(self)} of the vocabulary.")
        return places.astype(np.int64)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _points(self) -> NDArray[np.uint32]:
        return np.array([ord(token) for token in self.tokens], np.uint32)  # rising


def windows(
    ids: NDArray[np.integer], length: int, stride: int | None = None, predict: str = "each"
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Windows [n, length] of a text's tokens, and the token after each [n, length], or after the window alone [n]."""
    if len(ids) <= length:
        empty = np.empty((0, length), np.int64)
        return empty.astype(ids.dtype), empty if predict == "each" else empty[:, 0]
    cut = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[:: stride or length]  # [n, length + 1]
    labels = cut[:, 1:] if predict == "each" else cut[:, -1]
    return np.ascontiguousarray(cut[:, :-1]), labels.astype(np.int64)


def from_texts(
    texts: Mapping[Hashable, str],
    length: int = 64,
    stride: int | None = None,
    predict: str = "each",
    test_fraction: float = 0.2,
    tokenizer: Any = None,
    name: str = "texts",
) -> FederatedData:
    """One text for each client, to predict the next token; the last part of each text is for testing.

    A sample is a window of `length` tokens, one every `stride` (by default `length`: windows do not overlap).
    Tokens are the texts' characters; with tokenizer="bytes" bytes, or what the `encode` of an object gives.
    """
    _check_windows(length, stride, predict)
    if not isinstance(texts, Mapping) or not texts or not all(isinstance(text, str) for text in texts.values()):
        raise UserError("texts must be a dict with one text for each client: {'romeo': 'But soft ...', ...}.")
    if not 0 <= test_fraction < 1:
        raise UserError(f"test_fraction is {test_fraction}, but must lie in [0, 1): 0.2 tests on the last fifth.")
    encode, tokens, size = _tokenizer(tokenizer, texts.values())
    encoded = {client: encode(text) for client, text in texts.items()}
    least = int(np.ceil((length + 1) / (1 - test_fraction)))
    for client, ids in encoded.items():
        if int((1 - test_fraction) * len(ids)) <= length:
            raise UserError(
                f"the text of client {client!r} has {len(ids)} tokens, but windows of {length} need about {least}: "
                "lower length or leave it out."
            )
    train, test = _cut(encoded, length, stride, predict, test_fraction)
    classes = size or 1 + max(int(ids.max()) for ids in encoded.values())
    assert train.groups is not None
    offsets = offsets_of(np.bincount(train.groups, minlength=len(texts)))
    indices = np.arange(len(train))  # windows lie client after client
    return FederatedData(
        train, test, indices, offsets, classes, name=name, class_names=tokens, client_names=tuple(texts)
    )


def load_shakespeare(
    places: Sequence[Path], length: int = 80, stride: int | None = None, predict: str = "each", fewest: int = 1
) -> Dataset:
    """Shakespeare's plays by speaking role: windows of characters, the last fifth of each role for testing.

    by_role.json.gz holds whole lines; LEAF's json holds windows of 80 already, which are taken as they are. Roles with
    fewer than `fewest` windows for training are left out.
    """
    _check_windows(length, stride, predict)
    if fewest < 1:
        raise UserError(f"fewest is {fewest}, but a role needs at least 1 window.")
    path = find(places, ("shakespeare",), ("by_role.json.gz", "by_role.json"))
    if path is not None:
        key = f"shakespeare-{length}-{stride or length}-{predict}-{fewest}"
        return cached(key, [path], lambda: _by_role(path, length, stride, predict, fewest))
    leaf = find_leaf(places, "shakespeare")
    if leaf is None:
        raise missing("shakespeare", places, "LEAF's folders train and test (or all_data) of json files")
    if length != 80 or stride is not None:
        raise UserError("LEAF's windows have 80 characters, one after each character: leave length and stride out.")
    return cached(f"shakespeare-leaf-{predict}-{fewest}", leaf.files, lambda: _from_leaf(leaf, predict, fewest))


def load_newsgroups(
    places: Sequence[Path],
    fewest: int = 10,
    length: int = 128,
    words: int = 10_000,
    tokenizer: Callable[[list[str]], Any] | None = None,
) -> Dataset:
    """20 Newsgroups by author: which group a message was posted to; every fifth message of an author is for testing.

    Authors with fewer than `fewest` messages are left out. A message is its first `length` words as numbers of the
    `words` most frequent ones, or whatever `tokenizer` makes of the list of all messages: an array or a dict of them.
    """
    for setting, value, least in (("fewest", fewest, 1), ("length", length, 1), ("words", words, 3)):
        if value != int(value) or value < least:
            raise UserError(f"{setting} is {value!r}: give a whole number of at least {least}.")
    path = find(places, ("newsgroups",), ("newsgroups_by_author.json.gz", "newsgroups_by_author.json"))
    if path is None:
        where = " or ".join(str(place / "newsgroups") for place in places) or "a folder named in $KASYNC_DATA (or root)"
        raise UserError(
            f"newsgroups needs newsgroups_by_author.json.gz: put it in {where}; docs/data.md says what is in it."
        )
    names, authors, labels, texts = _read_newsgroups(path)
    _, place, sizes = np.unique(authors, return_inverse=True, return_counts=True)
    kept = np.flatnonzero(sizes[place] >= fewest)
    if not len(kept):
        raise UserError(f"no author has {fewest} messages, the most are {sizes.max()}: lower fewest.")
    messages = [texts[row] for row in kept]
    vocabulary = None
    if tokenizer is None:
        vocabulary = Vocabulary.of_words(messages, words)
        inputs: Any = np.stack([vocabulary.encode(message, length) for message in messages]).astype(np.int32)
    else:
        inputs = as_inputs(tokenizer(messages), "the tokenizer's arrays")
        if len(first_of(inputs)) != len(kept):
            raise UserError(f"the tokenizer makes {len(first_of(inputs))} rows of {len(kept)} messages: pad them.")
    everything = Samples(inputs, labels[kept], authors[kept])
    test = every_fifth(authors[kept])
    source = f"20 Newsgroups by author ({len(np.unique(authors[kept]))} authors with {fewest} messages or more)"
    train, tested = everything.subset(~test), everything.subset(test)
    return Dataset("newsgroups", train, tested, len(names), source, class_names=names, vocabulary=vocabulary)


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _check_windows(length: int, stride: int | None, predict: str) -> None:
    for setting, value in (("length", length), ("stride", length if stride is None else stride)):
        if value != int(value) or value < 1:
            raise UserError(f"{setting} is {value!r}: give a whole number of at least 1.")
    if predict not in PREDICT:
        raise unknown("predict", predict, PREDICT)


def _tokenizer(
    tokenizer: Any, texts: Iterable[str]
) -> tuple[Callable[[str], NDArray[np.integer]], tuple[str, ...] | None, int | None]:
    """How a text is encoded, what the tokens are called if they have names, and how many there are if that is known."""
    if tokenizer is None:
        vocabulary = Vocabulary.characters(texts)
        return _compact(vocabulary.encode, len(vocabulary)), vocabulary.tokens, len(vocabulary)
    if tokenizer == "bytes":
        return lambda text: np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int16), None, 256
    if not callable(getattr(tokenizer, "encode", None)):
        raise UserError(
            f"tokenizer is {tokenizer!r}: leave it out for characters, or give 'bytes' or an object with encode."
        )
    size = getattr(tokenizer, "vocab_size", None) or (len(tokenizer) if hasattr(tokenizer, "__len__") else None)
    names = tokenizer.tokens if isinstance(tokenizer, Vocabulary) else None

    def encode(text: str) -> NDArray[np.int32]:
        ids = tokenizer.encode(text)
        return np.asarray(getattr(ids, "ids", ids)).astype(np.int32)  # of `tokenizers` an Encoding

    return encode, names, size


def _compact(encode: Callable[[str], NDArray[np.int64]], size: int) -> Callable[[str], NDArray[np.integer]]:
    """The same numbers in few bytes, though not as uint8, which are pixels."""
    return lambda text: encode(text).astype(_kind(size))


def _kind(size: int) -> type[np.signedinteger]:
    return np.int16 if size <= np.iinfo(np.int16).max else np.int32


def _cut(
    encoded: Mapping[Hashable, NDArray[np.integer]], length: int, stride: int | None, predict: str, fraction: float
) -> tuple[Samples, Samples]:
    """Windows of the first part of each text, and of its last; no token is in both."""
    parts: tuple[list[Any], list[Any]] = ([], [])
    for ids in encoded.values():
        end = int((1 - fraction) * len(ids))
        for kept, piece in zip(parts, (ids[:end], ids[end:]), strict=True):
            kept.append(windows(piece, length, stride, predict))
    names = tuple(encoded)
    train, test = (
        Samples(
            np.concatenate([inputs for inputs, _ in pieces]),
            np.concatenate([labels for _, labels in pieces]),
            np.repeat(np.arange(len(names)), [len(inputs) for inputs, _ in pieces]),
            names,
        )
        for pieces in parts
    )
    return train, test


def _by_role(path: Path, length: int, stride: int | None, predict: str, fewest: int) -> Dataset:
    """The roles of a file {"users": [names], "lines": {name: [lines]}}, in its order."""
    expected = "json with the users and the lines of each"
    content = _json(path, expected)
    users, lines = (content.get("users"), content.get("lines")) if isinstance(content, dict) else (None, None)
    if not isinstance(users, list) or not isinstance(lines, dict) or not set(map(str, users)) <= set(lines):
        raise broken(path, expected, "it has no lists of both")
    for user in users:
        if not isinstance(lines[user], list) or not all(isinstance(line, str) for line in lines[user]):
            raise broken(path, expected, f"the lines of {user[:40]!r} are no list of text")
    roles = {user: "\n".join(lines[user]) for user in users}
    if not any(roles.values()):
        raise broken(path, expected, "it holds no line")
    vocabulary = Vocabulary.characters(roles.values())
    encode = _compact(vocabulary.encode, len(vocabulary))
    least = length + 1 + (fewest - 1) * (stride or length)  # tokens that give so many windows
    encoded = {role: encode(text) for role, text in roles.items() if int(0.8 * len(text)) >= least}
    if not encoded:
        raise UserError(f"no role has {fewest} windows of {length} characters for training: lower fewest or length.")
    train, test = _cut(encoded, length, stride, predict, 0.2)
    source = f"Shakespeare by role ({path.name}, {len(encoded)} of {len(roles)} roles)"
    return Dataset("shakespeare", train, test, len(vocabulary), source, vocabulary.tokens, vocabulary)


def _from_leaf(leaf: Leaf, predict: str, fewest: int) -> Dataset:
    """LEAF's windows of 80 characters; of all_data each role's last fifth, less those that overlap the others."""
    train_texts = {role: rows for path in (*leaf.train, *leaf.everything) for role, rows in _leaf_windows(path)}
    test_texts = {role: rows for path in leaf.test for role, rows in _leaf_windows(path)}
    if leaf.everything:
        test_texts = {role: rows[len(rows) - len(rows) // 5 :] for role, rows in train_texts.items()}
        train_texts = {role: rows[: len(rows) - len(rows) // 5 - 80] for role, rows in train_texts.items()}
    roles = [role for role, rows in train_texts.items() if len(rows) >= fewest]
    if not roles:
        raise UserError(f"no role has {fewest} windows for training: lower fewest.")
    vocabulary = Vocabulary.characters("".join(rows) for texts in (train_texts, test_texts) for rows in texts.values())
    train, test = (
        _leaf_samples({role: texts.get(role, []) for role in roles}, vocabulary, predict)
        for texts in (train_texts, test_texts)
    )
    source = f"Shakespeare by role (LEAF json, {len(roles)} of {len(train_texts)} roles)"
    return Dataset("shakespeare", train, test, len(vocabulary), source, vocabulary.tokens, vocabulary)


def _leaf_windows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The windows of each role of a file, each with the character after it: 81 characters."""
    for role, inputs, labels in clients(path):
        rows = [x + y if isinstance(x, str) and isinstance(y, str) else "" for x, y in zip(inputs, labels, strict=True)]
        if any(len(row) != 81 for row in rows):
            raise broken(path, "LEAF json of windows of 80 characters", f"those of {role[:40]!r} are not")
        yield role, rows


def _leaf_samples(texts: Mapping[str, list[str]], vocabulary: Vocabulary, predict: str) -> Samples:
    """Samples of windows of 81 characters."""
    rows = vocabulary.encode("".join(row for rows in texts.values() for row in rows)).reshape(-1, 81)  # [N, 81]
    labels = rows[:, 1:] if predict == "each" else rows[:, -1]
    groups = np.repeat(np.arange(len(texts)), [len(rows) for rows in texts.values()])
    return Samples(rows[:, :-1].astype(_kind(len(vocabulary))), np.ascontiguousarray(labels), groups, tuple(texts))


def _read_newsgroups(path: Path) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64], list[str]]:
    """The groups' names, and of each message its author, its group and its text."""
    expected = "json with groups, author, label and text"
    content = _json(path, expected)
    found = content if isinstance(content, dict) else {}
    columns = [found[key] for key in ("groups", "author", "label", "text") if isinstance(found.get(key), list)]
    if len(columns) < 4:
        raise broken(path, expected, "it has no such lists")
    names, authors, labels, texts = columns
    if not len(authors) == len(labels) == len(texts) or not texts:
        raise broken(path, expected, f"its lists have {len(authors)}, {len(labels)} and {len(texts)} entries")
    if not all(isinstance(text, str) for text in [*names, *texts]):
        raise broken(path, expected, "its texts or groups are no text")
    if not all(type(number) is int and abs(number) < 2**62 for number in [*authors, *labels]):
        raise broken(path, expected, "its authors or labels are no whole numbers")
    if min(labels) < 0 or max(labels) >= len(names):
        raise broken(path, expected, f"its labels are not those of {len(names)} groups")
    return tuple(names), np.array(authors, np.int64), np.array(labels, np.int64), texts


def _json(path: Path, expected: str) -> Any:
    with refusing(path, expected, ValueError, RecursionError), open_plain(path) as stream:
        return json.load(stream)
