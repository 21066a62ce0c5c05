"""Where do samples come from, and which client has which? Datasets by name, and the ways to share them out."""

from importlib import import_module
from typing import Any

from kasync.data.catalogue import load, names
from kasync.data.dataset import Dataset, Samples

__all__ = ["Dataset", "FederatedData", "Samples", "federate", "from_arrays", "load", "names", "partition", "scaled"]


def __getattr__(name: str) -> Any:
    """Partitions and federated data are imported when first asked for."""
    if name == "partition":
        return import_module("kasync.data.partition")
    if name in ("FederatedData", "federate", "from_arrays", "scaled"):
        return getattr(import_module("kasync.data.federated"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
