"""Who made the samples? One client per writer or celebrity, the partition that data sets bring themselves."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kasync.data.partition.draws import Purpose, order
from kasync.data.partition.lists import Split, by_owner
from kasync.errors import UserError, unknown

PICKS = ("largest", "first", "random")


@dataclass(frozen=True)
class ByGroups(Split):
    """One client per group; for fewer clients than groups the "largest", the "first" or "random" ones are taken."""

    pick: str = "largest"
    kind: ClassVar[str] = "natural"

    def __post_init__(self) -> None:
        if self.pick not in PICKS:
            raise unknown("pick of natural", self.pick, PICKS)

    def lists(
        self, labels: NDArray, clients: int | None, seed: int, groups: NDArray | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        if groups is None:
            raise UserError("natural needs to know who made each sample, which this data set does not say: use labels.")
        _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)  # group [N], sizes [groups]
        count = len(sizes) if clients is None else clients
        if count > len(sizes):
            raise UserError(
                f"clients is {count}, but natural finds only {len(sizes)} groups: lower it or leave it out."
            )
        ranking = {
            "largest": lambda: np.argsort(-sizes, kind="stable"),
            "first": lambda: np.arange(len(sizes)),
            "random": lambda: order(len(sizes), seed, Purpose.DEAL),
        }[self.pick]()
        client_of = np.full(len(sizes), -1)  # [groups]
        client_of[np.sort(ranking[:count])] = np.arange(count)  # clients keep the order of their groups
        owners = client_of[group]  # [N]
        taken = np.flatnonzero(owners >= 0)
        return by_owner(taken, owners[taken], count)
