"""Asynchronous federated learning: simulated at full scale, checked against its papers, deployed unchanged."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kasync import data, faults, models, rules, schedules, timelines
    from kasync.adapters import lora, merge_lora
    from kasync.arrivals import Arrivals
    from kasync.comparison import Comparison, Tune, compare
    from kasync.core import Part, Rule, ServerState, Step
    from kasync.simulator import Record, server_gradient, simulate, together
    from kasync.work import Client, Custom, Gradient, Local, LocalSGD, Work

__all__ = [
    "Arrivals",
    "Client",
    "Comparison",
    "Custom",
    "Gradient",
    "Local",
    "LocalSGD",
    "Part",
    "Record",
    "Rule",
    "ServerState",
    "Step",
    "Tune",
    "Work",
    "compare",
    "data",
    "faults",
    "lora",
    "merge_lora",
    "models",
    "rules",
    "schedules",
    "server_gradient",
    "simulate",
    "timelines",
    "together",
]
__version__ = "0.2.0"
_PLACES = {  # where each name lives; imported when first asked for, so that `kasync --help` needs no torch
    "Arrivals": "arrivals",
    "Client": "work",
    "Custom": "work",
    "Comparison": "comparison",
    "Gradient": "work",
    "Local": "work",
    "Work": "work",
    "LocalSGD": "work",
    "Part": "core",
    "Record": "simulator",
    "Rule": "core",
    "ServerState": "core",
    "Step": "core",
    "Tune": "comparison",
    "compare": "comparison",
    "lora": "adapters",
    "merge_lora": "adapters",
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


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
