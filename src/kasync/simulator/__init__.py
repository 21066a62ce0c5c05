"""What does asynchronous training do, with true staleness, for thousands of clients on one machine?"""

from kasync.simulator.alike import alike, together
from kasync.simulator.records import Record
from kasync.simulator.server import server_gradient
from kasync.simulator.simulation import Simulation, simulate

__all__ = ["Record", "Simulation", "alike", "server_gradient", "simulate", "together"]
