"""Which datasets are there, and how is one loaded by its name?"""

import os
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from kasync.data.dataset import Dataset
from kasync.errors import UserError, unknown

LOADERS = {  # name -> module and function; imported when asked for
    "digits": ("digits", "load"),
}


def names() -> list[str]:
    """The datasets `load` knows, in alphabetical order."""
    return sorted(LOADERS)


def load(name: str, root: str | os.PathLike[str] | None = None, **settings: Any) -> Dataset:
    """The dataset of this name from official files under `root`, by default $KASYNC_DATA; decoded once, then cached."""
    if name not in LOADERS:
        raise unknown("dataset", name, LOADERS)
    module, function = LOADERS[name]
    loader = getattr(import_module(f"kasync.data.{module}"), function)
    known = set(signature(loader).parameters) - {"root"}
    for setting in settings:
        if setting not in known:
            if not known:
                raise UserError(f"{name} has no setting {setting!r}: leave it out.")
            raise unknown(f"setting of {name}", setting, known)
    place = root or os.environ.get("KASYNC_DATA")
    return loader(Path(place).expanduser() if place else None, **settings)
