"""Runs that settings describe, experiments that files describe, and the store of what they gave."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kasync.experiments import archive, build, display, grid, runner

__all__ = ["archive", "build", "display", "grid", "runner"]  # imported when first asked for: they need torch


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
