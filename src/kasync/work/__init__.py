"""What does a client bring, and how is it computed for many clients at once? No clock, no server."""

from kasync.work.pieces import Gradient, LocalSGD, Work

__all__ = ["Gradient", "LocalSGD", "Work"]
