"""What if a client that has delivered had to wait for the others? GSGM's scheduling: once per round."""

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, uniforms
from kasync.errors import UserError
from kasync.timelines import checks
from kasync.timelines.durations import Durations
from kasync.timelines.timeline import Timeline


def once_per_round(clients: int, k: int, steps: int, seed: int = 0, durations: Durations | None = None) -> Timeline:
    """Each client delivers at most once per round of clients // k steps, k at a time.

    How the paper's description was taken: a client that has delivered is blocked until the round ends, which it does
    when fewer than k clients are left that have not delivered in it. Then all that delivered receive the newest model
    and begin together; the few that were left over keep working on the model they have and may deliver in the next
    round. So a deliverer's next version is the step at which its next round begins.

    Without durations, the next k are drawn uniformly from those that have not delivered in the round, and a step is
    one unit of virtual time; with them, the fastest come first, and a step takes place when the last of its k is there.
    """
    clients, k, steps = checks.sizes(clients, k, steps)
    seed = checks.seed_of(seed)
    if durations is not None and not isinstance(durations, Durations):
        raise UserError(f"durations is {durations!r}: give one such as durations.exponential(1.0), or None.")
    length = clients // k  # steps of a round
    rounds = -(-steps // length)
    everyone = np.arange(clients)
    version = np.zeros(clients, dtype=np.int32)  # [clients]: the model each works on
    piece = np.zeros(clients, dtype=np.int64)  # [clients]: deliveries so far
    finish = np.zeros(clients) if durations is None else durations.seconds(seed, everyone, piece)  # [clients]
    arrivals, versions, times = [], [], []
    for number in range(rounds):
        keys = uniforms(seed, Stream.ROUNDS, everyone, number) if durations is None else finish
        # Ties go to the work that was handed out first, then to the lower client number.
        delivering = np.lexsort((version, keys))[: length * k]
        arrivals.append(delivering.reshape(length, k))
        versions.append(version[delivering].reshape(length, k))
        last = _moments(number, length, None if durations is None else finish[delivering].reshape(length, k))
        times.append(last)
        version[delivering] = (number + 1) * length
        piece[delivering] += 1
        if durations is not None:
            finish[delivering] = last[-1] + durations.seconds(seed, delivering, piece[delivering])
    return Timeline(
        clients=np.concatenate(arrivals)[:steps].astype(np.int32),
        versions=np.concatenate(versions)[:steps],
        times=np.concatenate(times)[:steps],
        population=clients,
        kind="once per round",
        settings={"seed": seed} | ({} if durations is None else {"durations": repr(durations)}),
    )


def _moments(number: int, length: int, finish: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """[length]: when each step of a round happens."""
    if finish is None:
        return np.arange(number * length + 1, (number + 1) * length + 1, dtype=np.float64)
    return finish[:, -1]
