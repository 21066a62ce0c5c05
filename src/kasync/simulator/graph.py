"""How does one whole step become a single launch on a GPU? Captured once in a CUDA graph and replayed."""

from __future__ import annotations

from kasync.simulator.run import Run


class CapturedRun(Run):
    """A run on CUDA."""
