"""Draws who has a fault and which pieces of work it hits: hashes of (seed, client, piece), never of the order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, uniforms
from kasync.errors import UserError
from kasync.faults.kinds import Fault

Ints = NDArray[np.integer]


def chances(fault: Fault, population: int, seed: int) -> NDArray[np.float64]:
    """[population]: the chance that a piece of each client's work is hit; 0 for those that do not have the fault.

    A share of the clients means the nearest whole number of them; a larger share has the clients of a smaller one.
    """
    found = np.zeros(population)
    if fault.clients is not None:
        if max(fault.clients) >= population:
            raise UserError(
                f"{fault.kind} names client {max(fault.clients)}: with {population} clients give 0 to {population - 1}."
            )
        found[list(fault.clients)] = fault.chance
        return found
    count = int(fault.share * population + 0.5)
    if count == 0:
        raise UserError(
            f"share = {fault.share} of {population} clients is nobody to have {fault.kind}: raise the share or clients."
        )
    order = np.argsort(uniforms(seed, Stream.FAULTY, np.arange(population), fault.number), kind="stable")
    found[order[:count]] = fault.chance
    return found


def hit(fault: Fault, of: NDArray[np.float64], seed: int, clients: Ints, pieces: Ints) -> NDArray[np.bool_]:
    """[...]: whether these pieces of work are hit, `of` [population] being the chances."""
    return uniforms(seed, Stream.FAULTS, clients, pieces, fault.number) < of[clients]
