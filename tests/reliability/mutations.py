"""Damages something valid: its bytes, its fields, its length; every choice comes from one random generator."""

from __future__ import annotations

import copy
import math
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 255, -(2**31), 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**9, 10**12, 10**30, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *("", "x", "wkafl", "nan", "1", "../..", "/dev/null", "\0", "a\nb", "ü" * 40, "%s%n{0}", "x" * 5000, "-", "kind"),
    *(True, False, [], [0], [[]], [1, "a", 2.5], {}, {"kind": "x"}, {"kind": 3}, {"a": {"b": {"c": 1}}}, None),
)
BYTES = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"\0" * 64,
    b"nan",
    b"[" * 3000,
    b"{" * 3000,
    b"9" * 5000,
    b"\n\n",
)


class Canary:
    """A pickle of this leaves a file behind if anybody runs it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)

    @classmethod
    def pickled(cls, path: Path, protocol: int = 2) -> bytes:
        return pickle.dumps(cls(path), protocol)


def spoilt_bytes(draw: Random, content: bytes, header: int = 256) -> bytes:
    """Bits flipped, pieces overwritten, doubled, removed or moved, the end cut off; in its first bytes above all."""
    broken = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        if not broken:
            break
        reach = draw.choice((min(header, len(broken)), len(broken)))
        at = draw.randrange(reach)
        size = draw.choice((1, 2, 4, 8, 40))
        match draw.randrange(7):
            case 0 | 1:
                broken[at] ^= 1 << draw.randrange(8)
            case 2:
                broken[at : at + size] = draw.choice(BYTES)
            case 3:
                broken[at : at + size] = draw.randbytes(size)
            case 4:
                del broken[at : at + size]
            case 5:
                broken[at:at] = broken[at : at + size]
            case 6:
                del broken[draw.randrange(len(broken)) :]
    return bytes(broken)


def spoilt_fields(draw: Random, table: Mapping[str, Any]) -> dict[str, Any]:
    """Values replaced by odd or slightly different ones, keys removed, misspelt, added or swapped, at any depth."""
    spoilt = copy.deepcopy(dict(table))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(_places(spoilt))
        if not places:
            break
        holder, key = draw.choice(places)
        match draw.randrange(8):
            case 0 | 1 | 2:
                holder[key] = copy.deepcopy(draw.choice(ODD))
            case 3 | 4:
                holder[key] = _near(draw, holder[key])
            case 5:
                del holder[key]
            case 6 if isinstance(holder, dict):
                holder[key[:-1] + draw.choice("aeiou_") if draw.random() < 0.5 else f"{key}x"] = holder.pop(key)
            case _:
                other, name = draw.choice(places)
                if other is not holder and key in holder and name in other:
                    holder[key] = copy.deepcopy(other[name])
    return spoilt


def _near(draw: Random, value: Any) -> Any:
    """Something of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw.choice((-1000, -2, -1, 1, 2, 1000))
    if isinstance(value, float):
        return value * draw.choice((-1.0, 0.0, 1e-9, 2.0, 1e9))
    if isinstance(value, str) and value:
        return draw.choice((value[:-1], value.upper(), f" {value}", value[::-1]))
    if isinstance(value, list):
        return value[:-1] if draw.random() < 0.5 else value + value
    return str(value)


def _places(holder: Any) -> Any:
    """(container, key) of everything in nested tables and lists."""
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])
