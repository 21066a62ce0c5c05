"""Six ways to share a training set out over clients, each `way(settings)(dataset, clients, seed)`.

labels(per_client, size)   Algorithm 4 of the paper: a few labels per client, samples may be shared between clients
dirichlet(alpha)           each label's samples in Dirichlet proportions over the clients
shards(per_client)         sorted by label, cut in equal shards, so many shards per client
quantity(law, shape)       labels as in the whole set, sizes far apart
iid()                      shuffled, equal sizes
natural(pick)              one client per writer, per celebrity: whoever made the samples
"""

from dataclasses import fields
from importlib import import_module
from typing import Any

from kasync.data.partition.algorithm4 import ByLabels as labels
from kasync.data.partition.lists import Partition, Split
from kasync.data.partition.measures import Measures
from kasync.data.partition.whole import ByDirichlet as dirichlet
from kasync.data.partition.whole import ByGroups as natural
from kasync.data.partition.whole import ByQuantity as quantity
from kasync.data.partition.whole import ByShards as shards
from kasync.data.partition.whole import Equal as iid
from kasync.errors import UserError, unknown

__all__ = [
    "Measures",
    "Partition",
    "Split",
    "build",
    "dirichlet",
    "iid",
    "labels",
    "names",
    "natural",
    "quantity",
    "shards",
]

_WAYS: dict[str, type[Split]] = {
    "labels": labels,
    "dirichlet": dirichlet,
    "shards": shards,
    "quantity": quantity,
    "iid": iid,
    "natural": natural,
}


def names() -> list[str]:
    """The names `build` knows."""
    return sorted(_WAYS)


def build(name: str, **settings: Any) -> Split:
    """The way of this name with these settings, as a file of settings would say it: build("labels", per_client=1)."""
    if name not in _WAYS:
        raise unknown("partition", name, _WAYS)
    known = [field.name for field in fields(_WAYS[name])]
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of partition {name!r}", setting, known)
    missing = sorted(set(_WAYS[name].required()) - set(settings))
    if missing:
        raise UserError(
            f"partition {name!r} needs {' and '.join(missing)}: give {'it' if len(missing) == 1 else 'them'}."
        )
    return _WAYS[name](**settings)


def __getattr__(name: str) -> Any:
    """The Flower partitioners need the extra `data`, so they are imported when first asked for."""
    if name == "flower":
        return import_module("kasync.data.partition.flower")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
