"""The age of the work that all clients hold, delivered or not: the quantity of the paper's Appendix D.

The appendix lines the P clients up by the staleness of what they hold. A version is handed to k clients and no more, so
from step P/K on at most k of them hold the newest model, k the one before, and so on: the mean is at least the
bound, whatever the durations. Three things to know:

- It speaks of what is held. What is delivered may be fresher: if the same k clients are always the first, the staleness
  of their deliveries is 0 for ever, while the others' grows.
- Summed over steps 0 .. J-1, what is delivered (counted from 1) makes up, client by client, the time until its last
  delivery. So delivered mean = P/K - (P/KJ) * held mean at the end, exactly, in K-async: it tends to P/K, twice the
  bound, when every client keeps delivering, and to (active clients)/K when the others never do.
- It needs the rule "k deliverers, and only they, get the new model". It fails where more take the newest one at once:
  K-sync and FedAvg (everything is fresh), the start of a GSGM round, many returns or lost uploads between two steps.
"""

import numpy as np
from numpy.typing import NDArray

from kasync.timelines.timeline import Timeline


def held_staleness(timeline: Timeline) -> NDArray[np.float64]:
    """[steps + 1]: mean over all clients of step - version, for the model each holds when the step begins.

    A client holds version 0 at first and version s + 1 after a delivery at step s; one that takes another model before
    it delivers (late, after a loss, when a round ends) holds that one from the step at which it was the newest.
    """
    after_last = timeline.previous_step + 1  # [steps, k]: what it got for its last delivery, 0 at first
    steps = np.arange(timeline.steps)[:, None]  # [steps, 1]
    gained = np.bincount((steps + 1).repeat(timeline.k), timeline.staleness.ravel() + 1, timeline.steps + 1)
    taken = np.bincount(timeline.begun.ravel(), (timeline.versions - after_last).ravel(), timeline.steps + 1)
    return np.arange(timeline.steps + 1) - np.cumsum(gained + taken) / timeline.population


def staleness_bound(clients: int, k: int) -> float:
    """Appendix D's least mean, counted from 1, after n = [clients / k] steps: (k / 2 clients) (1 + n) n."""
    whole = clients // k
    return k / (2 * clients) * (1 + whole) * whole
