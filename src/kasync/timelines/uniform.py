"""Timelines without a clock of each client: uniform arrivals, and once per round."""

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, bits, integers, uniforms
from kasync.errors import UserError
from kasync.timelines import checks
from kasync.timelines.durations import Durations
from kasync.timelines.timeline import Timeline, history

BLOCK = 1 << 20  # draws in one block: large enough for numpy, small enough to stay in cache


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


def subsets(
    among: int, k: int, steps: NDArray[np.int64], seed: int, stream: int = Stream.ARRIVALS
) -> NDArray[np.int32]:
    """k of `among` without replacement, uniformly, for each given step number: [len(steps), k], rows ascending.

    A row is a function of (among, k, seed, stream, step) alone: a longer timeline begins with the shorter one.
    """
    width = among if _dense(among, k) else k
    rows = max(1, BLOCK // width)
    draw = _smallest_keys if _dense(among, k) else _redraw_repeats
    out = np.empty((len(steps), k), dtype=np.int32)
    for first in range(0, len(steps), rows):
        out[first : first + rows] = draw(among, k, steps[first : first + rows, None], seed, stream)
    return out


def _dense(among: int, k: int) -> bool:
    """Whether so many are drawn that repeats would be redrawn too often."""
    return 4 * k > among


def _smallest_keys(among: int, k: int, steps: NDArray[np.int64], seed: int, stream: int) -> NDArray[np.int32]:
    """Every client gets a random key; the k smallest are drawn. Work per step: among, here at most 4 k."""
    if k == among:
        return np.broadcast_to(np.arange(k, dtype=np.int32), (len(steps), k))
    keys = bits(seed, stream, steps, np.arange(among))  # [rows, among]
    return np.sort(np.argpartition(keys, k - 1, axis=1)[:, :k], axis=1).astype(np.int32)


def _redraw_repeats(among: int, k: int, steps: NDArray[np.int64], seed: int, stream: int) -> NDArray[np.int32]:
    """Draw with replacement, redraw what a row holds twice until nothing is.

    Renaming the clients renames the outcome and nothing else, so every set of k is equally likely.
    """
    slots = np.arange(k)
    drawn = np.sort(integers(among, seed, stream, steps, slots).astype(np.int32), axis=1)  # [rows, k]
    rows, attempt = np.arange(len(drawn)), 0
    while len(rows):
        chosen = drawn[rows]  # [rows left, k]
        row, slot = np.nonzero(chosen[:, 1:] == chosen[:, :-1])
        attempt += 1
        chosen[row, slot] = integers(among, seed, stream, steps[rows[row], 0], slot, attempt).astype(np.int32)
        repeated = np.unique(row)
        rows = rows[repeated]
        drawn[rows] = np.sort(chosen[repeated], axis=1)
    return drawn
