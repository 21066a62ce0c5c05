"""Asynchronous federated learning: simulated at full scale, checked against its papers, deployed unchanged."""

from kasync import data, models, rules, schedules, timelines
from kasync.arrivals import Arrivals
from kasync.core import Part, Rule, ServerState, Step
from kasync.simulator import Record, server_gradient, simulate
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
    "models",
    "rules",
    "schedules",
    "server_gradient",
    "simulate",
    "timelines",
]
__version__ = "0.1.0"
