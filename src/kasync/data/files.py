"""The files of a data set: where they are, and how they are read without trusting them."""

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kasync.errors import UserError

CHUNK = 1 << 20  # bytes asked for at a time: memory grows with what a file holds, never with what its header says
DEFLATE_RATIO = 1032  # no gzip stream expands more than this many times


def roots(root: str | os.PathLike[str] | None) -> tuple[Path, ...]:
    """The folders to look in: `root`, or those of $KASYNC_DATA (several are separated as in $PATH)."""
    places = [os.fspath(root)] if root is not None else os.environ.get("KASYNC_DATA", "").split(os.pathsep)
    return tuple(Path(place).expanduser() for place in places if place)


def find(places: Sequence[Path], folders: Sequence[str], files: Sequence[str], kind: str = "file") -> Path | None:
    """The first of these names that exists in one of these folders of a place, or in the place itself."""
    for place in places:
        for folder in (*folders, ""):
            for file in files:
                path = place / folder / file
                if path.is_file() if kind == "file" else path.is_dir():
                    return path
    return None


def missing(name: str, places: Sequence[Path], wanted: str) -> UserError:
    """The sentence for files that are not there: which, where to put them, and how to get them."""
    where = " or ".join(str(place / name) for place in places)
    put = f"put it in {where}" if where else "put it in a folder and name it in $KASYNC_DATA (or root)"
    return UserError(f"{name} needs {wanted}: {put}, or run `kasync data get {name}` where there is a network.")


def broken(path: Path | str, expected: str, found: object) -> UserError:
    """The sentence for a file that is not what it should be."""
    return UserError(f"{path} is not {expected}: {str(found)[:300]}; fetch the file again.")


@contextmanager
def refusing(path: Path | str, expected: str, *errors: type[BaseException]) -> Iterator[None]:
    """Whatever these errors say inside becomes one sentence that names the file."""
    expectable: tuple[type[BaseException], ...] = (OSError, EOFError, zlib.error, *errors)
    try:
        yield
    except UserError:
        raise
    except expectable as error:
        raise broken(path, expected, " ".join(str(error).split())[:200] or type(error).__name__) from None


def is_gzip(path: Path) -> bool:
    """Whether the first two bytes are gzip's, whatever the name says."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def open_plain(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it is gzip."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")  # type: ignore[return-value]


def most_bytes(path: Path) -> int:
    """No more than this many bytes can come out of the file."""
    return path.stat().st_size * (DEFLATE_RATIO if is_gzip(path) else 1)


def read_exactly(stream: IO[bytes], count: int) -> bytearray:
    """`count` bytes, or as many as there are; never more memory than the stream fills."""
    content = bytearray()
    while len(content) < count:
        chunk = stream.read(min(CHUNK, count - len(content)))
        if not chunk:
            break
        content += chunk
    return content
