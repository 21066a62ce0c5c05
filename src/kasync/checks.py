"""Are the hyper-parameters of a part possible?"""

from __future__ import annotations

import math


def at_least(name: str, value: float, least: float) -> None:
    """Refuse a number below `least`, or one that is no number."""
    if not (isinstance(value, int | float) and value >= least):
        raise ValueError(f"{name} = {value!r}: must be a number not below {least:g}")


def above(name: str, value: float, bound: float) -> None:
    """Refuse a number that is not above `bound`, or one that is no number."""
    if not (isinstance(value, int | float) and value > bound):
        raise ValueError(f"{name} = {value!r}: must be a number above {bound:g}")


def between(name: str, value: float, least: float, most: float) -> None:
    """Refuse a number outside [least, most]."""
    if not (isinstance(value, int | float) and least <= value <= most):
        raise ValueError(f"{name} = {value!r}: must lie in [{least:g}, {most:g}]")


def finite(name: str, value: float) -> None:
    """Refuse an infinity and whatever is no number."""
    if not (isinstance(value, int | float) and math.isfinite(value)):
        raise ValueError(f"{name} = {value!r}: must be a finite number")


def count(name: str, value: int, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        raise ValueError(f"{name} = {value!r}: must be a whole number of at least {least}")
