"""Partitions into disjoint lists: IID, shards, Dirichlet, quantity skew, and by who made the samples."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kasync.data.partition.draws import Purpose, generator, order
from kasync.data.partition.lists import Split, apportion, by_owner
from kasync.errors import UserError, unknown

Lists = tuple[NDArray[np.int32], NDArray[np.int64]]


@dataclass(frozen=True)
class Equal(Split):
    """IID: shuffled and dealt out, sizes equal to within one."""

    kind: ClassVar[str] = "iid"
    by_class: ClassVar[bool] = False

    def lists(self, labels: NDArray, clients: int | None, seed: int, groups: NDArray | None) -> Lists:
        count = self.needs_clients(clients)
        owners = _cut_evenly(len(labels), count)  # [N]
        return by_owner(order(len(labels), seed, Purpose.ORDER), owners, count)


@dataclass(frozen=True)
class ByShards(Split):
    """Sorted by label, cut in clients * per_client shards equal to within one, dealt out (McMahan et al., 2017)."""

    per_client: int = 2
    kind: ClassVar[str] = "shards"

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise UserError(f"per_client is {self.per_client}, but a client needs at least 1 shard.")

    @property
    def remedy(self) -> str:
        return "lower per_client, " if self.per_client > 1 else ""

    def lists(self, labels: NDArray, clients: int | None, seed: int, groups: NDArray | None) -> Lists:
        count = self.needs_clients(clients)
        lots = order(len(labels), seed, Purpose.ORDER)
        samples = lots[np.argsort(labels[lots], kind="stable")]  # [N] label after label, each in random order
        shards = _cut_evenly(len(labels), count * self.per_client)  # [N]
        dealt = order(count * self.per_client, seed, Purpose.DEAL) // self.per_client  # [shards] their clients
        return by_owner(samples, dealt[shards], count)


@dataclass(frozen=True)
class ByDirichlet(Split):
    """Each label's samples in Dirichlet(alpha) proportions over the clients: small alpha, few labels per client.

    Clients with fewer samples than `least` take what they lack from the client that has most.
    """

    alpha: float
    least: int = 0
    kind: ClassVar[str] = "dirichlet"

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha)
        if self.least < 0:
            raise UserError(f"least is {self.least}, but must be at least 0: the samples that every client gets.")

    @property
    def remedy(self) -> str:
        return "raise alpha, "

    def lists(self, labels: NDArray, clients: int | None, seed: int, groups: NDArray | None) -> Lists:
        count = self.needs_clients(clients)
        lots = order(len(labels), seed, Purpose.ORDER)
        samples = lots[np.argsort(labels[lots], kind="stable")]  # [N] label after label, each in random order
        owners = []
        for label, held in zip(*np.unique(labels, return_counts=True), strict=True):
            rng = generator(seed, Purpose.PROPORTIONS, int(label))
            ends = np.cumsum(_dirichlet(self.alpha, count, rng)) * held  # [clients], rounded where they fall
            owners.append(np.minimum(np.searchsorted(ends, np.arange(held) + 0.5), count - 1))
        return by_owner(samples, _with_least(np.concatenate(owners), count, self.least), count)


def _with_least(owners: NDArray[np.int64], count: int, least: int) -> NDArray[np.int64]:
    """Owners [N] such that every one of `count` clients has `least` samples; the richest give, one client at a time."""
    if least * count > len(owners):
        raise UserError(f"least is {least} for {count} clients, but there are {len(owners)} samples: lower it.")
    owners, sizes = owners.copy(), np.bincount(owners, minlength=count)
    for client in np.flatnonzero(sizes < least):
        while sizes[client] < least:
            richest = int(sizes.argmax())
            given = min(least - sizes[client], sizes[richest] - least)
            owners[np.flatnonzero(owners == richest)[-given:]] = client
            sizes[richest] -= given
            sizes[client] += given
    return owners


@dataclass(frozen=True)
class ByQuantity(Split):
    """IID labels, sizes far apart: "lognormal" (shape: sigma), "power" (tail exponent) or "dirichlet" (concentration).

    Every client gets at least one sample, unless allow_empty.
    """

    law: str = "lognormal"
    shape: float = 1.0
    kind: ClassVar[str] = "quantity"
    by_class: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.law not in _LAWS:
            raise unknown("law of quantity", self.law, _LAWS)
        _check_positive("shape", self.shape)

    def lists(self, labels: NDArray, clients: int | None, seed: int, groups: NDArray | None) -> Lists:
        count = self.needs_clients(clients)
        weights = _LAWS[self.law](self.shape, count, generator(seed, Purpose.PROPORTIONS))  # [clients]
        sizes = apportion(np.array([len(labels)]), weights[None], least=0 if self.allow_empty else 1)[0]
        return by_owner(order(len(labels), seed, Purpose.ORDER), np.repeat(np.arange(count), sizes), count)


def _dirichlet(alpha: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Dirichlet proportions [count] that stay numbers however small alpha is: gamma draws kept as logarithms."""
    logs = np.log(rng.standard_gamma(alpha + 1, count)) + np.log1p(-rng.random(count)) / alpha
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def _log_normal(sigma: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    logs = sigma * rng.standard_normal(count)
    return np.exp(logs - logs.max())


def _power(exponent: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Pareto: P(weight > w) = w^-exponent."""
    logs = -np.log1p(-rng.random(count)) / exponent
    return np.exp(logs - logs.max())


_LAWS = {"lognormal": _log_normal, "power": _power, "dirichlet": _dirichlet}


def _cut_evenly(total: int, parts: int) -> NDArray[np.int64]:
    """Which of `parts` runs, equal to within one, each of 0..total-1 falls in, [total]."""
    return np.arange(total) * parts // total


def _check_positive(setting: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise UserError(f"{setting} is {value}, but must be a positive number: 0.5, say.")


PICKS = ("largest", "first", "random")


@dataclass(frozen=True)
class ByGroups(Split):
    """One client per group; for fewer clients than groups the "largest", the "first" or "random" ones are taken."""

    pick: str = "largest"
    kind: ClassVar[str] = "natural"
    by_class: ClassVar[bool] = False

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
