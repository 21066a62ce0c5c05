"""When each client delivered before and will again, for all deliveries by one sort."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class History:
    """For every delivery: how many its client made before, and the steps of the last and next one (-1: none)."""

    visits: Ints  # [steps, k]
    previous_step: Ints  # [steps, k]
    next_step: Ints  # [steps, k]


def history(clients: Ints) -> History:
    """The history of the deliveries clients [steps, k]; memory about 24 bytes per delivery while it runs."""
    k = clients.shape[1]
    # Sorting client * 2^32 + place brings the deliveries of a client together, in time order, without an index sort.
    keys = (clients.astype(np.int64) << 32).ravel()  # [steps * k]
    keys |= np.arange(keys.size, dtype=np.int64)
    keys.sort()
    place = (keys & 0xFFFFFFFF).astype(np.intp)  # [steps * k]
    owner = (keys >> 32).astype(np.int32)  # [steps * k]
    del keys
    step = (place // k).astype(np.int32)  # [steps * k]
    same = owner[1:] == owner[:-1]  # [steps * k - 1]: the next entry is the same client's next delivery

    index = np.arange(owner.size, dtype=np.int32)  # [steps * k]
    starts = np.concatenate([[True], ~same])
    visits = index - np.maximum.accumulate(np.where(starts, index, 0))
    before = np.concatenate([[-1], np.where(same, step[:-1], -1)])
    after = np.concatenate([np.where(same, step[1:], -1), [-1]])
    return History(*(_scatter(values, place, clients.shape) for values in (visits, before, after)))


def originals_before(clients: Ints, copies: NDArray[np.bool_]) -> Ints:
    """[steps, k]: how many deliveries a client made before that were no copies; of a copy, before what it copies."""
    place = np.argsort(clients, axis=None, kind="stable")  # [steps * k]: the deliveries of a client together, in order
    owner, new = clients.ravel()[place], ~copies.ravel()[place]
    so_far = np.cumsum(new)
    starts = np.flatnonzero(np.diff(owner, prepend=-1))  # [clients that deliver]
    others: NDArray[np.int64] = np.repeat(so_far[starts] - new[starts], np.diff(starts, append=len(owner)))  # before
    return _scatter(so_far - others - 1, place, clients.shape)


def _scatter(values: NDArray[np.integer], place: NDArray[np.intp], shape: tuple[int, ...]) -> Ints:
    """Values in sorted order, put back where they came from."""
    out = np.empty(place.size, dtype=np.int32)
    out[place] = values
    out.flags.writeable = False
    return out.reshape(shape)
