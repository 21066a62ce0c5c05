"""How is an idx file (MNIST's format) read? Its header is checked against the file before anything is allocated."""

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kasync.data.files import broken, most_bytes, open_plain, read_exactly, refusing

TYPES: dict[int, np.dtype] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}  # those MNIST, EMNIST and QMNIST use


def read_idx(path: Path, kind: str, shape: tuple[int | None, ...]) -> NDArray:
    """The array of an idx file, gzip or not; `shape` fixes the sizes that are not None, `kind` is uint8 or int32."""
    sizes = ", ".join("N" if size is None else str(size) for size in shape)
    expected = f"an idx file of {kind} [{sizes}]"
    with refusing(path, expected), open_plain(path) as stream:
        header = bytes(read_exactly(stream, 4 + 4 * len(shape)))
        if len(header) < 4 + 4 * len(shape):
            raise broken(path, expected, f"it ends within its header, after {len(header)} bytes")
        code, axes = header[2], header[3]
        if header[:2] != b"\0\0" or code not in TYPES or TYPES[code].newbyteorder("=").name != kind:
            raise broken(path, expected, f"its first bytes are {header[:4].hex()}")
        if axes != len(shape):
            raise broken(path, expected, f"it has {axes} dimensions")
        found = tuple(int(size) for size in np.frombuffer(header, ">u4", offset=4))
        if any(want is not None and want != size for want, size in zip(shape, found, strict=True)):
            raise broken(path, expected, f"its header says {list(found)}")
        size = prod(found) * TYPES[code].itemsize
        if size > most_bytes(path):
            raise broken(path, expected, f"its header says {list(found)}, more than the file can hold")
        content = read_exactly(stream, size)
        if len(content) < size:
            raise broken(path, expected, f"it holds {len(content)} of the {size} bytes its header says")
        if stream.read(1):
            raise broken(path, expected, f"it holds more than the {size} bytes its header says")
    return np.frombuffer(content, TYPES[code]).reshape(found)
