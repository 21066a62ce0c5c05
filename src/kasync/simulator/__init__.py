"""Asynchronous training with true staleness, for thousands of clients on one machine."""

from kasync.simulator.evaluate import PerClient
from kasync.simulator.records import Record
from kasync.simulator.server import server_gradient
from kasync.simulator.simulation import Simulation, simulate
from kasync.simulator.stack import stackable, together

__all__ = ["PerClient", "Record", "Simulation", "server_gradient", "simulate", "stackable", "together"]
