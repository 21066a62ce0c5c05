"""How are CelebA's pictures read? From their folder or zip file, each checked for its size before it is decoded."""

import io
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.data.files import broken, find, refusing
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
                inputs[row] = decode(content, self.path / name)
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


def decode(content: bytes, path: Path) -> NDArray[np.uint8]:
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
