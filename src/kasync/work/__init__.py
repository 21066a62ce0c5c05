"""What a client brings, and how it is computed for many clients at once. No clock, no server."""

from kasync.work.protocol import Client, Custom, Gradient, Local, LocalSGD, Work

__all__ = ["Client", "Custom", "Gradient", "Local", "LocalSGD", "Work"]
