"""Asynchronous federated learning: simulated at full scale, checked against its papers, deployed unchanged."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kasync import data, faults, models, rules, schedules, timelines
    from kasync.arrivals import Arrivals
    from kasync.core import Part, Rule, ServerState, Step
    from kasync.simulator import Record, server_gradient, simulate, together
    from kasync.work import Gradient, LocalSGD

__all__ = [
    "Arrivals",
    "Gradient",
    "LocalSGD",
    "Part",
    "Record",
    "Rule",
    "ServerState",
    "Step",
    "data",
    "faults",
    "models",
    "rules",
    "schedules",
    "server_gradient",
    "simulate",
    "timelines",
    "together",
]
__version__ = "0.1.0"
_PLACES = {  # where each name lives; imported when first asked for, so that `kasync --help` needs no torch
    "Arrivals": "arrivals",
    "Gradient": "work",
    "LocalSGD": "work",
    "Part": "core",
    "Record": "simulator",
    "Rule": "core",
    "ServerState": "core",
    "Step": "core",
    "server_gradient": "simulator",
    "simulate": "simulator",
    "together": "simulator",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _PLACES:
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
