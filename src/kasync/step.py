"""One aggregation while it is in progress: K gradients as coefficients in the span of a few long rows.

Row i of the coefficients is gradient i as it stands. A part asks for norms, cosines and weights, all arithmetic on K
numbers, and returns the step with something changed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kasync.constants import all_owned, constant, eye, filled, units, where
from kasync.errors import unknown
from kasync.span import Basis, surely_above


@dataclass(frozen=True)
class Step:
    """One aggregation in progress. Row i of `coefficients` is gradient i as it stands, in the span of the basis."""

    basis: Basis  # the rows, and their inner products when somebody asks
    usable: Tensor  # [K] bool, which arrivals are sound
    staleness: Tensor  # [K] float64
    losses: Tensor | None  # [K] float64
    batch_sizes: Tensor  # [K] float64
    clients: Tensor | None  # [K] int64; for rules with tables, one past the last client where the arrival is not usable
    number: Tensor  # [] int64, the server's step count before this step
    memory: Mapping[str, Tensor]  # what the part at work remembers from before this step
    everything: Mapping[str, Tensor]  # what the server does
    coefficients: Tensor  # [K, B] float64
    weights: Tensor  # [K] float64
    lr: Tensor  # [] float64
    full_lr: Tensor  # [] float64, the rule's own, before its schedule
    stage: Tensor  # [] int64
    place: str = ""  # the name of the part at work
    estimate: Tensor | None = None  # [B] the estimated unbiased gradient, where a part made one
    similarities: Tensor | None = None  # [K]
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # "Part.name" -> [B], long vectors to remember
    values: Mapping[str, Tensor] = field(default_factory=dict)  # "Part.name" -> small tensors to remember
    rows: Mapping[str, TableRows] = field(default_factory=dict)  # "Part.name" -> rows of tables to overwrite
    dropped: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))  # [] arrivals not used
    skipped: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.bool))  # [] nothing usable arrived
    still: Tensor | None = None  # [] whether a part has refused everything, so that an optimiser must not move
    all_usable: bool = False  # known where a CPU could be asked, and then there is nothing to choose

    @classmethod
    def opened(cls, basis: Basis, k: int, values: Mapping[str, Any]) -> Step:
        """A step of k arrivals before the first part, all usable, each gradient as it came; a rule's own."""
        step = object.__new__(cls)  # a frozen dataclass sets field by field, which takes ten times as long
        known = step.__dict__
        known.update(_first(k, basis.size, basis.device))
        known.update(values, basis=basis, vectors={}, values={}, rows={})
        return step

    @property
    def k(self) -> int:
        return self.weights.shape[0]  # a tensor's len takes ten times as long

    @cached_property
    def count(self) -> Tensor:
        """[] float64, how many arrivals are usable (at least 1, so that it can divide)."""
        if self.all_usable:
            return constant(self.k, torch.float64, self.usable.device)
        return self.usable.sum().clamp(min=1).double()

    @property
    def equal_weights(self) -> Tensor:
        """[K] the same for every usable arrival, summing to one; 0 for those that are not usable."""
        if self.all_usable:
            return filled(1.0 / self.k, self.k, torch.float64, self.usable.device)
        return where(self.usable, 1.0 / self.count, 0.0)

    @cached_property
    def mean_loss(self) -> Tensor:
        """[] float64, over the usable arrivals, where there are losses (one is 0 where it is not usable)."""
        assert self.losses is not None
        return self.losses.mean() if self.all_usable else self.losses.sum() / self.count

    @cached_property
    def lengths(self) -> Tensor:
        """[K] 2-norms of the gradients as they stand."""
        return self.dots(self.coefficients, self.coefficients).clamp(min=0).sqrt()

    @property
    def direction(self) -> Tensor:
        """[B] what the server would step along now: the weighted sum of the gradients as they stand."""
        return self.weights @ self.coefficients

    def having(self, **changes: Any) -> Step:
        """This step with some fields changed, and what was computed from them forgotten."""
        if not changes.keys() <= FIELDS:
            raise unknown("field of a step", min(changes.keys() - FIELDS), FIELDS)
        return self._with(changes)

    def _with(self, changes: dict[str, Any]) -> Step:
        step = object.__new__(Step)
        known = step.__dict__
        known.update(self.__dict__)
        if "coefficients" in changes:
            known.pop("lengths", None)
        if "usable" in changes or "losses" in changes:
            known.pop("mean_loss", None)
        if "usable" in changes:
            known.pop("count", None)
            known["all_usable"] = False
        known.update(changes)
        return step

    def turn_to(self, place: str, memory: Mapping[str, Tensor]) -> None:
        """Let the part of this name see its own memory; only a rule between two parts may do so."""
        known = self.__dict__  # in place: a copy for every part would cost more than the part
        known["place"], known["memory"] = place, memory

    def handed_out(self) -> Step:
        """This step, with tensors that its receiver may write to."""
        step = object.__new__(Step)
        step.__dict__.update(all_owned(self.__dict__))
        step.__dict__["coefficients"] = step.coefficients.contiguous()  # rows that are one row shown k times
        return step

    @property
    def layout(self) -> Mapping[str, slice]:
        """Where each named block of rows lies in the basis."""
        return self.basis.layout

    @property
    def gram(self) -> Tensor:
        """[B, B] float64, inner products of the basis rows; made when first asked for."""
        return self.basis.gram

    def unit(self, name: str) -> Tensor:
        """[n, B] coefficients of the basis rows called `name`: the part's own, or "gradients"."""
        layout = self.basis.layout
        rows = layout.get(f"{self.place}.{name}") or layout.get(name)
        if rows is None:
            raise unknown("row of the span", name, [each.removeprefix(f"{self.place}.") for each in layout])
        return units(rows.start, rows.stop, self.basis.size, self.basis.device)

    def has(self, name: str) -> bool:
        """Whether the part brought basis rows called `name`."""
        return f"{self.place}.{name}" in self.basis.layout

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """[...] inner products of coefficient rows a and b [..., B]."""
        gram = self.basis.gram
        return a @ (gram @ b) if b.dim() == 1 else ((a @ gram) * b).sum(-1)

    def apart(self, row: Tensor) -> Tensor:
        """[K] distances of the gradients from a row [B], also where they are small beside what both have in common."""
        difference = self.coefficients - row
        return ((difference @ self.basis.exact_gram) * difference).sum(-1).clamp(min=0).sqrt()

    def distances(self) -> Tensor:
        """[K, K] squared distances between the gradients as they stand, exact in the same sense."""
        inner = self.coefficients @ self.basis.exact_gram @ self.coefficients.T
        squares = inner.diagonal()
        apart = (squares[:, None] + squares[None, :] - inner - inner.T).clamp(min=0.0)  # symmetric to the last bit
        return where(torch.eye(self.k, dtype=torch.bool, device=apart.device), 0.0, apart)

    def norms(self, rows: Tensor | None = None) -> Tensor:
        """[...] 2-norms of coefficient rows [..., B]; of the K gradients as they stand by default."""
        if rows is None:
            return self.lengths
        return self._measured(rows)[1] if rows.dim() == 1 else self.dots(rows, rows).clamp(min=0).sqrt()

    def cosines_to(self, row: Tensor) -> Tensor:
        """[K] cosine of each gradient with the row [B]; a zero gradient has no direction and counts as 0."""
        inner, norm = self._measured(row)
        lengths = self.norms() * norm
        return (self.coefficients @ inner / where(lengths > 0, lengths, torch.inf)).clamp(-1.0, 1.0)

    def _measured(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """[B] the inner products of the basis with a row [B], and [] its norm; the last one asked for is known."""
        known = self.__dict__.get("measured")
        if known is None or known[0] is not row:
            inner = self.basis.gram @ row
            known = self.__dict__["measured"] = (row, inner, (row @ inner).clamp(min=0).sqrt())
        return known[1:]

    def scaled(self, factors: Tensor) -> Step:
        """Every gradient times its factor [K]."""
        return self.having(coefficients=self.coefficients * factors[:, None])

    def shortened(self, factors: Tensor) -> Step:
        """The same for factors that are not negative, where what that makes of the norms is soon asked for."""
        lengths = self.norms() * factors
        return self._with({"coefficients": self.coefficients * factors[:, None], "lengths": lengths})

    def averaged(self, scores: Tensor) -> Tensor:
        """[K] scores of the usable arrivals, scaled to sum to one; all zero when they sum to zero."""
        kept = self.kept(scores, 0.0)
        total = kept.sum()
        return kept / total if surely_above(total) else kept / where(total > 0, total, 1.0)

    def weighed(self, weights: Tensor) -> Step:
        """The gradients combined with these weights [K]; those not usable get none."""
        return self._with({"weights": self.kept(weights, 0.0)})

    def kept(self, values: Tensor, other: float) -> Tensor:
        """[K] the values of the usable arrivals, and the other number for those that are not."""
        if self.all_usable and values.shape == self.usable.shape:
            return values
        return where(self.usable, values, other)

    def least(self, values: Tensor) -> Tensor:
        """[] the smallest of the values [K] among usable arrivals (0 if there is none)."""
        least = self.kept(values, torch.inf).min()
        return least if self.all_usable else where(least.isinf(), 0.0, least)

    def largest(self, values: Tensor) -> Tensor:
        """[] the largest of the values [K] among usable arrivals (0 if there is none)."""
        largest = self.kept(values, -torch.inf).max()
        return largest if self.all_usable else where(largest.isinf(), 0.0, largest)

    def remember(self, **vectors: Tensor) -> Step:
        """Keep these combinations of basis rows [B] as the part's vectors of these names."""
        return self._with({"vectors": {**self.vectors, **self._own(vectors)}})

    def overwrite(self, **rows: TableRows) -> Step:
        """Put these rows into the part's tables of these names."""
        return self._with({"rows": {**self.rows, **self._own(rows)}})

    def keep(self, **values: Tensor) -> Step:
        """Keep these small tensors in the part's memory."""
        return self._with({"values": {**self.values, **self._own(values)}})

    def _own(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Under the names they have in the server's memory; one that the part's memory lacks is refused."""
        for name in named:
            if name not in self.memory:
                raise unknown(f"name in the memory of {self.place}", name, self.memory)
        return {f"{self.place}.{name}": value for name, value in named.items()}


@dataclass(frozen=True)
class TableRows:
    """Rows of a table that this step overwrites: with the delivered gradients, or with combinations of the basis."""

    index: Tensor  # [K] int64, row of the table for each arrival
    coefficients: Tensor | None = None  # [K, B], or None for the delivered gradients themselves


FIELDS = frozenset(each.name for each in fields(Step))


@functools.lru_cache(maxsize=1024)
def _first(k: int, size: int, device: torch.device) -> Mapping[str, Any]:
    """What a step of k arrivals, in a span of so many rows, begins with whatever arrived."""
    return {
        "usable": filled(True, k, torch.bool, device),
        "coefficients": eye(k, size, device),
        "weights": filled(1.0 / k, k, torch.float64, device),
        "place": "",
        "estimate": None,
        "similarities": None,
        "dropped": constant(0, torch.int64, device),
        "skipped": constant(False, torch.bool, device),
        "still": None,
        "all_usable": True,
    }
