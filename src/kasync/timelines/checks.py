"""Checks of the settings of a timeline, each with the sentence that refuses them."""

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.errors import UserError, unknown


def whole(name: str, value: object, at_least: int) -> int:
    """The value as an int; a fraction, a word or something too small is refused."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UserError(f"{name} is {value!r}: give a whole number of at least {at_least}.")
    number = int(value.__index__())
    if number < at_least:
        raise UserError(f"{name} is {number}: give a whole number of at least {at_least}.")
    return number


def sizes(clients: object, k: object, steps: object) -> tuple[int, int, int]:
    """clients, k and steps, once they can work together."""
    clients, k, steps = whole("clients", clients, 1), whole("k", k, 1), whole("steps", steps, 1)
    if k > clients:
        sizes_given = f"k = {k} is more than clients = {clients}"
        raise UserError(f"{sizes_given}: lower k or raise clients; a client delivers at most once per step.")
    if max(clients, steps) >= 2**31 - 1:
        raise UserError(f"{clients} clients and {steps} steps: both must stay below 2^31 - 1, choose fewer.")
    return clients, k, steps


def seed_of(seed: object) -> int:
    """A seed of at least 0, and below 2^64, so that no two seeds are the same."""
    number = whole("seed", seed, 0)
    if number >= 2**64:
        raise UserError(f"seed is {number}: give a whole number below 2^64.")
    return number


def positive(name: str, value: float) -> float:
    """A finite number above zero."""
    number = _number(name, value)
    if not (math.isfinite(number) and number > 0):
        raise UserError(f"{name} is {value!r}: give a finite number above 0.")
    return number


def positives(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Finite numbers above zero: one, or one for each client."""
    try:
        numbers = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{name} is {value!r}: give numbers above 0.") from None
    if numbers.ndim > 1 or numbers.size == 0 or not (np.isfinite(numbers) & (numbers > 0)).all():
        shown = f"is {value!r}" if numbers.ndim == 0 else f"of shape {numbers.shape}"
        raise UserError(f"{name} {shown}: give a finite number above 0, or one for each client.")
    return numbers


def cell(text: str | None, column: str, file: object, line: int) -> float:
    """A number in a csv file."""
    try:
        return float(text or "")
    except ValueError:
        shown = text[:80] if text else text
        raise UserError(f"{file}, line {line}: {column} is {shown!r}, give a number.") from None


def share(name: str, value: float) -> float:
    """A probability in [0, 1); at 1 nothing would ever arrive."""
    number = _number(name, value)
    if not 0 <= number < 1:
        raise UserError(f"{name} is {value!r}: give a share from 0 up to, not including, 1.")
    return number


def one_of(kind: str, name: str, known: Collection[str]) -> str:
    """The name, if it is known; otherwise the error names the nearest one."""
    if name not in known:
        raise unknown(kind, name, known)
    return name


def _number(name: str, value: object) -> float:
    try:
        if isinstance(value, str):  # whose text float() would read, and nobody could compute with
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UserError(f"{name} is {value!r}: give a number.") from None
