"""Decoded datasets, one safetensors file per content of the source files, written atomically.

A cache file is named after the sha256 of the content of every source file, so an edited source is never answered with
old samples. Reading gigabytes to learn that nothing changed would be slow, so, as in git's index, the key is remembered
under a stamp of the files (path, size, modification and change time in nanoseconds, inode). A stamp is only remembered
when every file had been still for two seconds before it was read: no edit can hide within the clock's resolution.
"""

import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from kasync.data.dataset import Dataset, Samples

LAYOUT = 1  # raise it whenever a decoder changes what it makes of the same bytes
STILL_NS = 2_000_000_000  # the coarsest clock among common file systems ticks every two seconds
ABANDONED_S = 86_400.0  # a temporary file this old belongs to a writer that was killed


def cached(name: str, files: Iterable[Path], decode: Callable[[], Dataset]) -> Dataset:
    """The dataset decoded from these files: from the cache if it holds one of the same content, else from `decode`."""
    folder = cache_folder()
    entry = folder / f"{name}-{content_key(name, sorted(files), folder / 'stamps')}.safetensors"
    found = _read(entry)
    if found is not None:
        return found
    dataset = decode()
    try:
        _write(entry, dataset)
    except OSError as error:
        warnings.warn(f"{name} is not cached: {folder} cannot be written ({error}); set KASYNC_CACHE.", stacklevel=2)
    return dataset


def cache_folder() -> Path:
    """Where decoded datasets are kept: $KASYNC_CACHE, or ~/.cache/kasync."""
    return Path(os.environ.get("KASYNC_CACHE") or Path.home() / ".cache" / "kasync")


def content_key(name: str, files: list[Path], stamps: Path) -> str:
    """The sha256 of the names and contents of these files, remembered in `stamps` while they stay as they are."""
    stamp_file = stamps / _stamp(name, files)
    with suppress(OSError, UnicodeDecodeError):
        remembered = stamp_file.read_text(encoding="ascii")
        if len(remembered) == 64:
            return remembered
    started = time.time_ns()
    key = hashlib.sha256(f"{name} {LAYOUT}".encode())
    for file in files:
        with file.open("rb") as stream:
            key.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    newest = max((max(s.st_mtime_ns, s.st_ctime_ns) for s in map(os.stat, files)), default=0)
    if newest + STILL_NS < started and stamp_file.name == _stamp(name, files):
        # if it fails only a memory is lost; `cached` warns where the samples cannot be kept either
        with suppress(OSError), appearing_whole(stamp_file) as temporary:
            temporary.write_text(key.hexdigest(), encoding="ascii")
    return key.hexdigest()


def _stamp(name: str, files: list[Path]) -> str:
    """A digest of what the file system says about these files, without reading them."""
    stamp = hashlib.sha256(f"{name} {LAYOUT}".encode())
    for file in files:
        status = file.stat()
        facts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        stamp.update(f"{file.absolute()} {facts}\n".encode(errors="surrogateescape"))
    return stamp.hexdigest()


@contextmanager
def appearing_whole(path: Path) -> Iterator[Path]:
    """A temporary name to write to; the file appears whole under its own name or not at all, even if we are killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    for left in (*folder.glob("*.partial"), *folder.glob(".tmp*")):  # ours, and those of safetensors
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - ABANDONED_S:
                left.unlink()


def _write(entry: Path, dataset: Dataset) -> None:
    """One safetensors file with the arrays, and the words as its metadata."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {
        f"{part}.{field}": np.ascontiguousarray(array)
        for part, samples in (("train", dataset.train), ("test", dataset.test))
        for field, array in vars(samples).items()
        if isinstance(array, np.ndarray)
    }
    tokens = None if dataset.vocabulary is None else [dataset.vocabulary.tokens, dataset.vocabulary.words]
    called = {"classes": dataset.class_names, "groups": dataset.train.group_names, "vocabulary": tokens}
    words = {"name": dataset.name, "classes": str(dataset.classes), "source": dataset.source}
    words["called"] = json.dumps(called)
    with appearing_whole(entry) as temporary:
        try:
            save_file(arrays, temporary, metadata=words)
        except SafetensorError as problem:  # a full disk, say, in its own words
            raise OSError(str(problem)) from None


def _read(entry: Path) -> Dataset | None:
    """What the cache holds; None if nothing, or nothing that can be read (it is then decoded and written again)."""
    if not entry.is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(entry, framework="numpy") as stored:
            words = stored.metadata()
            arrays = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 (not a mapping)
        called = json.loads(words.get("called", "{}"))
        classes, groups = (tuple(called[what]) if called.get(what) else None for what in ("classes", "groups"))
        train, test = (
            Samples(arrays[f"{part}.inputs"], arrays[f"{part}.labels"], arrays.get(f"{part}.groups"), groups)
            for part in ("train", "test")
        )
        vocabulary = None
        if called.get("vocabulary"):
            from kasync.data.text import Vocabulary

            tokens, of_words = called["vocabulary"]
            vocabulary = Vocabulary(tuple(tokens), of_words)
        return Dataset(words["name"], train, test, int(words["classes"]), words["source"], classes, vocabulary)
    except (SafetensorError, KeyError, TypeError, ValueError, OSError):
        return None
