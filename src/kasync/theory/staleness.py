"""The least staleness of K-async learning: Appendix D's bound, beside what a timeline really has.

Appendix D counts from 1: work begun on the newest model has age 1, which is staleness 0 elsewhere in this package.
"""

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError
from kasync.theory.theorems import Floats


def least_mean_age(clients: int, k: int) -> float:
    """Theorem of Appendix D: (K / 2P) (1 + [P/K]) [P/K], the least mean age after P/K steps; about P / 2K."""
    rounds = _rounds(clients, k)
    return k / (2 * clients) * (1 + rounds) * rounds


def tight_mean_age(clients: int, k: int) -> float:
    """The same with the P - [P/K] K left-over clients counted at age [P/K] + 1: the proof drops them in its last lines.

    Reached by any timeline in which the clients take turns, whether or not k divides their number.
    """
    rounds = _rounds(clients, k)
    return (1 + rounds) * (clients - k * rounds / 2) / clients


def mean_ages(deliveries: NDArray[np.integer], clients: int) -> Floats:
    """The mean age over all clients at each version 0..J [J + 1], from who delivered at each step [J, k].

    The age of a client is 1 plus the steps since it was last heard of. In K-async learning only deliverers receive the
    new model, so that is the age of the model it works on; on every other timeline the bounds above still hold for it,
    because no more than k clients are heard of at a step.
    """
    steps = len(deliveries)
    heard = np.zeros(clients, dtype=np.int64)  # the version each client got when it last delivered
    freed = np.empty(steps)  # how much age each step's deliverers lose
    for step, delivering in enumerate(deliveries):
        freed[step] = np.sum(step + 1 - heard[delivering])
        heard[delivering] = step + 1
    totals = clients * np.arange(1, steps + 2, dtype=np.float64)
    totals[1:] -= np.cumsum(freed)
    return totals / clients


def _rounds(clients: int, k: int) -> int:
    if not 1 <= k <= clients:
        raise UserError(f"k={k} of {clients} clients: choose k between 1 and the number of clients.")
    return clients // k
