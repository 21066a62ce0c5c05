"""What if, at each step, any k clients were equally likely to be the next ones? The paper's experiments."""

import numpy as np

from kasync.timelines import checks
from kasync.timelines.draws import subsets
from kasync.timelines.history import history
from kasync.timelines.timeline import Timeline


def uniform(clients: int, k: int, steps: int, seed: int = 0) -> Timeline:
    """k of the clients, uniformly and without replacement, at each step; one step is one unit of virtual time.

    A client's first delivery comes from version 0, every later one from the model it got at its last delivery.
    Mean staleness tends to clients / k - 1. A longer timeline begins with the shorter one of the same seed.
    """
    clients, k, steps = checks.sizes(clients, k, steps)
    seed = checks.seed_of(seed)
    arrivals = subsets(clients, k, np.arange(steps), seed)  # [steps, k]
    past = history(arrivals)
    return Timeline(
        clients=arrivals,
        versions=past.previous_step + np.int32(1),
        times=np.arange(1, steps + 1, dtype=np.float64),
        population=clients,
        kind="uniform",
        settings={"seed": seed},
    ).knowing(past)
