"""How do a few choices become many tasks? One task for every combination of the values on an experiment's axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from kasync.errors import UserError, unknown
from kasync.experiments.experiment import merged

VALUE = ("title", "x", "run")  # what a value on an axis may say


def crossed(row: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The rows that a row with `axes = [...]` stands for; a row without stands for itself.

    Names are joined by dashes, titles by commas, the runs are merged in the order of the axes.
    """
    plain = {key: value for key, value in row.items() if key != "axes"}
    chosen = [_values(name, axes, where) for name in row.get("axes", ())]
    for values in product(*chosen):
        joined = dict(plain)
        for label, value in values:
            joined["name"] = f"{joined.get('name', '')}-{label}".lstrip("-")
            joined["run"] = merged(joined.get("run", {}), value.get("run", {}))
            joined |= {"x": value["x"]} if "x" in value else {}
        if values:
            titles = [value.get("title", label) for label, value in values]
            joined["title"] = ", ".join([*([plain["title"]] if "title" in plain else []), *titles])
        yield joined


def _values(name: str, axes: Mapping[str, Any], where: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """The values on one axis, each with its label."""
    if name not in axes:
        raise unknown(f"axis in {where}", name, axes)
    for label, value in axes[name].items():
        if not isinstance(value, Mapping):
            raise UserError(f"[axes.{name}] of {where} has {label} = {value!r}: write {{ run = {{ ... }} }}.")
        for key in value:
            if key not in VALUE:
                raise unknown(f"key of {label!r} in [axes.{name}] of {where}", key, VALUE)
    return list(axes[name].items())
