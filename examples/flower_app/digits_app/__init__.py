"""Handwritten digits, learnt asynchronously by clients that hold only some of them."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reports usage to its makers otherwise
