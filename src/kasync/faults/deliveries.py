"""What the server receives from a faulty client: row * times + plus + noise |row| z, for every row.

The numbers are drawn on the host for a chunk of steps; applying them branches on no value, so it can be captured in a
CUDA graph. A delivery that no fault hits keeps every bit: it is multiplied by 1, and 0 is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kasync.counter import Stream, bits
from kasync.faults.draws import chances, hit
from kasync.faults.kinds import DeliveryFault

GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # of splitmix64, as int64


@dataclass(frozen=True, eq=False)
class Damage:
    """What happens to the deliveries of some steps."""

    times: NDArray[np.float32]  # [steps, k]
    plus: NDArray[np.float32]  # [steps, k]
    noise: NDArray[np.float32] | None  # [steps, k]; None: no fault adds noise
    keys: NDArray[np.int64] | None  # [steps, k], where there is noise: what z is drawn from

    def arrays(self) -> dict[str, NDArray]:
        """By name, as a captured step reads them."""
        named = {"times": self.times, "plus": self.plus, "noise": self.noise, "keys": self.keys}
        return {f"damage_{name}": array for name, array in named.items() if array is not None}

    def done_to(self, rows: Tensor, step: int) -> Tensor:
        """[K, D] what arrives at this step instead of the rows; the rows themselves where nothing is wrong."""
        wrong = (self.times[step] != 1) | (self.plus[step] != 0)  # NaN is not 0 either
        wrong = wrong if self.noise is None else wrong | (self.noise[step] != 0)
        if not wrong.any():
            return rows
        chosen = torch.from_numpy(np.flatnonzero(wrong)).to(rows.device)
        here = {name: torch.from_numpy(array[step][wrong]).to(rows.device) for name, array in self.arrays().items()}
        return rows.index_copy(0, chosen, damaged(rows[chosen], here))


def damaged(rows: Tensor, here: dict[str, Tensor]) -> Tensor:
    """[K, D] rows * times + plus + noise |row| z, given the arrays of one step [K]."""
    made = rows * here["damage_times"][:, None] + here["damage_plus"][:, None]
    if "damage_noise" not in here:
        return made
    lengths = here["damage_noise"] * rows.norm(dim=1) / math.sqrt(rows.shape[1])  # [K]
    return made + lengths[:, None] * normals(here["damage_keys"], rows.shape[1])


def normals(keys: Tensor, length: int) -> Tensor:
    """[K, length] float32 standard normal numbers, a function of each key [K] int64 and of the place.

    The bits are mix(key + place * 0x9E3779B97F4A7C15) as in kasync.counter; the two halves make u and u' in
    sqrt(-2 log u) cos(2 pi u'), 24 bits each.
    """
    state = keys[:, None] + torch.arange(length, device=keys.device) * GOLDEN
    state = (state ^ _shifted(state, 30)) * FIRST
    state = (state ^ _shifted(state, 27)) * SECOND
    state = state ^ _shifted(state, 31)
    one, other = _shifted(state, 40), _shifted(state, 8) & 0xFFFFFF
    radius = ((one.float() + 0.5) * 2.0**-24).log().mul(-2.0).sqrt()
    return radius * (other.float() * (2.0**-23 * math.pi)).cos()


def _shifted(state: Tensor, by: int) -> Tensor:
    """To the right, zeros coming in, as for numbers without a sign."""
    return (state >> by) & ((1 << (64 - by)) - 1)


@dataclass(frozen=True, eq=False)
class Damages:
    """Draws the damage of any steps."""

    faults: tuple[DeliveryFault, ...]
    chances: tuple[NDArray[np.float64], ...]  # [population] for each fault
    seed: int

    @classmethod
    def of(cls, faults: tuple[DeliveryFault, ...], population: int, seed: int) -> Damages:
        return cls(faults, tuple(chances(fault, population, seed) for fault in faults), seed)

    def drawn(self, clients: NDArray[np.integer], visits: NDArray[np.integer]) -> Damage:
        """For the deliveries [steps, k]; one that two faults hit suffers the first and then the second."""
        times, plus, noise = np.ones(clients.shape), np.zeros(clients.shape), np.zeros(clients.shape)
        for fault, likely in zip(self.faults, self.chances, strict=True):
            hits = hit(fault, likely, self.seed, clients, visits)
            a, b, c = fault.terms
            noise[hits] = noise[hits] * abs(a) + abs(times[hits]) * c
            with np.errstate(invalid="ignore"):  # infinity times 0 is not a number, and may be that here
                plus[hits] = plus[hits] * a + b
            times[hits] *= a
        if not any(fault.terms[2] for fault in self.faults):
            return Damage(times.astype(np.float32), plus.astype(np.float32), None, None)
        keys = bits(self.seed, Stream.NOISE, clients, visits).view(np.int64)
        return Damage(times.astype(np.float32), plus.astype(np.float32), noise.astype(np.float32), keys)
