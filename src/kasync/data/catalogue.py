"""The data sets by name, and where the loader of each is."""

import os
from importlib import import_module
from inspect import signature
from typing import Any

from kasync.data.dataset import Dataset
from kasync.data.files import roots
from kasync.errors import UserError, unknown

LOADERS = {  # name -> module and function; imported when asked for
    "digits": ("digits", "load"),
    "mnist": ("mnist", "load_mnist"),
    "emnist-mnist": ("mnist", "load_emnist_mnist"),
    "emnist-byclass": ("mnist", "load_emnist_byclass"),
    "cifar10": ("cifar10", "load"),
    "celeba": ("celeba", "load"),
    "femnist": ("femnist", "load"),
    "synthetic": ("synthetic", "load"),
    "mixture": ("synthetic", "load_mixture"),
    "shakespeare": ("text", "load_shakespeare"),
    "newsgroups": ("text", "load_newsgroups"),
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
    known = set(signature(loader).parameters) - {"places"}
    for setting in settings:
        if setting not in known:
            if not known:
                raise UserError(f"{name} has no setting {setting!r}: leave it out.")
            raise unknown(f"setting of {name}", setting, known)
    return loader(roots(root), **settings)
