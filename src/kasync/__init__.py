"""Asynchronous federated learning: simulated at full scale, checked against its papers, deployed unchanged."""

from kasync import rules, schedules, timelines
from kasync.arrivals import Arrivals
from kasync.core import Part, Rule, ServerState, Step

__all__ = ["Arrivals", "Part", "Rule", "ServerState", "Step", "rules", "schedules", "timelines"]
__version__ = "0.1.0"
