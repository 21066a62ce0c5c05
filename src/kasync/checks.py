"""Checks of hyper-parameters, each one sentence with the setting, the value and what is allowed."""

from __future__ import annotations

import math
from numbers import Integral, Real

LARGEST = 2**63  # a whole number beyond it is no tensor's


def at_least(name: str, value: float, least: float) -> None:
    """Refuse a number below `least`, an infinity and whatever is no number."""
    if not (_is_number(value) and least <= value < math.inf):
        raise ValueError(f"{name} = {value!r}: must be a finite number not below {least:g}")


def above(name: str, value: float, bound: float) -> None:
    """Refuse a number that is not above `bound`, an infinity and whatever is no number."""
    if not (_is_number(value) and bound < value < math.inf):
        raise ValueError(f"{name} = {value!r}: must be a finite number above {bound:g}")


def limit(name: str, value: float) -> None:
    """Refuse a limit that is not above 0; infinity means no limit."""
    if not (_is_number(value) and value > 0):
        raise ValueError(f"{name} = {value!r}: must be a number above 0, or infinity for no limit")


def between(name: str, value: float, least: float, most: float) -> None:
    """Refuse a number outside [least, most]."""
    if not (_is_number(value) and least <= value <= most):
        raise ValueError(f"{name} = {value!r}: must lie in [{least:g}, {most:g}]")


def fraction(name: str, value: float) -> None:
    """Refuse a number outside [0, 1)."""
    if not (_is_number(value) and 0.0 <= value < 1.0):
        raise ValueError(f"{name} = {value!r}: must be a number in [0, 1)")


def finite(name: str, value: float) -> None:
    """Refuse an infinity and whatever is no number."""
    if not (_is_number(value) and math.isfinite(value)):
        raise ValueError(f"{name} = {value!r}: must be a finite number")


def count(name: str, value: int, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`, or too large for 64 bits."""
    if isinstance(value, Integral) and value >= LARGEST:
        raise ValueError(f"{name} = {value!r}: must be below 2^63")
    if not (isinstance(value, Integral) and not isinstance(value, bool) and value >= least):
        raise ValueError(f"{name} = {value!r}: must be a whole number of at least {least}")


def flag(name: str, value: bool) -> None:
    """Refuse what is neither True nor False: any text would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}: must be True or False")


def function(name: str, value: object, of: str) -> None:
    """Refuse what cannot be called with what it is a function of."""
    if not callable(value):
        raise ValueError(f"{name} = {value!r}: must be a function of {of}")


def _is_number(value: object) -> bool:
    """Whether torch can compute with it."""
    return isinstance(value, Real) and not (isinstance(value, Integral) and abs(int(value)) >= LARGEST)
