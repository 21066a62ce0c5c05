"""Faults of clients, on purpose: who has them, how often, and what the server then receives."""

from kasync.faults.arrivals import inject
from kasync.faults.kinds import (
    KINDS,
    AddNoise,
    DeliverTwice,
    Fault,
    FlipLabels,
    FlipSign,
    Leave,
    LeaveAndReturn,
    SendHuge,
    SendInfinity,
    SendNaN,
    SendZero,
    Stall,
    build,
)

__all__ = [
    "KINDS",
    "AddNoise",
    "DeliverTwice",
    "Fault",
    "FlipLabels",
    "FlipSign",
    "Leave",
    "LeaveAndReturn",
    "SendHuge",
    "SendInfinity",
    "SendNaN",
    "SendZero",
    "Stall",
    "build",
    "inject",
]
