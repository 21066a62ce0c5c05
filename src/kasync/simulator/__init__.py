"""Asynchronous training with true staleness, for thousands of clients on one machine."""

from kasync.simulator.evaluate import PerClient
from kasync.simulator.records import Record
from kasync.simulator.server import server_gradient
from kasync.simulator.simulation import Simulation, simulate
from kasync.simulator.stack import alike, together

__all__ = ["PerClient", "Record", "Simulation", "alike", "server_gradient", "simulate", "together"]
