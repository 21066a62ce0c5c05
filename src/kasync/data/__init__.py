"""Data sets by name, a user's own arrays and texts, and the ways to share samples out over clients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kasync.data.catalogue import load, names
from kasync.data.dataset import Dataset, Samples

if TYPE_CHECKING:
    from kasync.data import partition
    from kasync.data.federated import FederatedData, federate, from_arrays, scaled
    from kasync.data.tables import from_dataset
    from kasync.data.text import Vocabulary, from_texts

__all__ = [
    "Dataset",
    "FederatedData",
    "Samples",
    "Vocabulary",
    "federate",
    "from_arrays",
    "from_dataset",
    "from_texts",
    "load",
    "names",
    "partition",
    "scaled",
]
_PLACES = {  # where the names live that are imported when first asked for
    "FederatedData": "federated",
    "Vocabulary": "text",
    "federate": "federated",
    "from_arrays": "federated",
    "from_dataset": "tables",
    "from_texts": "text",
    "scaled": "federated",
}


def __getattr__(name: str) -> Any:
    """Partitions and federated data are imported when first asked for."""
    if name == "partition":
        return import_module("kasync.data.partition")
    if name in _PLACES:
        return getattr(import_module(f"kasync.data.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
