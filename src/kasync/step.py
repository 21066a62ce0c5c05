"""What is one aggregation while it is in progress? K gradients as coefficients in the span of a few long rows.

Row i of the coefficients is gradient i as it stands. A part asks for norms, cosines and weights, all arithmetic on K
numbers, and returns the step with something changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kasync.constants import constant, filled, units, where


@dataclass(frozen=True)
class Step:
    """One aggregation in progress. Row i of `coefficients` is gradient i as it stands, in the span of the basis."""

    gram: Tensor  # [B, B] float64, inner products of the basis rows
    layout: Mapping[str, slice]  # where each named block of rows lies in the basis
    usable: Tensor  # [K] bool, which arrivals are sound
    staleness: Tensor  # [K] float64
    losses: Tensor | None  # [K] float64
    batch_sizes: Tensor  # [K] float64
    clients: Tensor | None  # [K] int64; for rules with tables, one past the last client where the arrival is not usable
    number: Tensor  # [] int64, the server's step count before this step
    memory: Mapping[str, Tensor]  # what the server remembered before this step
    coefficients: Tensor  # [K, B] float64
    weights: Tensor  # [K] float64
    lr: Tensor  # [] float64
    full_lr: Tensor  # [] float64, the rule's own, before its schedule
    stage: Tensor  # [] int64
    estimate: Tensor | None = None  # [B] the estimated unbiased gradient, where a part made one
    similarities: Tensor | None = None  # [K]
    vectors: Mapping[str, Tensor] = field(default_factory=dict)  # name -> [B], long vectors to remember
    values: Mapping[str, Tensor] = field(default_factory=dict)  # name -> small tensors to remember
    rows: Mapping[str, TableRows] = field(default_factory=dict)  # rows of tables to overwrite
    dropped: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))  # [] arrivals not used
    skipped: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.bool))  # [] nothing usable arrived
    all_usable: bool = False  # known where a CPU could be asked, and then there is nothing to choose

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
        step = object.__new__(Step)
        fields = step.__dict__
        fields.update(self.__dict__)
        if "coefficients" in changes or "gram" in changes:
            fields.pop("lengths", None)
        if "usable" in changes or "losses" in changes:
            fields.pop("mean_loss", None)
        if "usable" in changes:
            fields.pop("count", None)
            fields["all_usable"] = False
        fields.update(changes)
        return step

    def unit(self, name: str) -> Tensor:
        """[n, B] coefficients of the basis rows called `name`."""
        rows = self.layout[name]
        return units(rows.start, rows.stop, self.gram.shape[0], self.gram.device)

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """[...] inner products of coefficient rows a and b [..., B]."""
        return a @ (self.gram @ b) if b.dim() == 1 else ((a @ self.gram) * b).sum(-1)

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
        if known is None or known[0] is not row or known[1] is not self.gram:
            inner = self.gram @ row
            known = self.__dict__["measured"] = (row, self.gram, inner, (row @ inner).clamp(min=0).sqrt())
        return known[2:]

    def scaled(self, factors: Tensor) -> Step:
        """Every gradient times its factor [K]."""
        return self.having(coefficients=self.coefficients * factors[:, None])

    def shortened(self, factors: Tensor) -> Step:
        """The same for factors that are not negative, where what that makes of the norms is soon asked for."""
        return self.having(coefficients=self.coefficients * factors[:, None], lengths=self.norms() * factors)

    def averaged(self, scores: Tensor) -> Tensor:
        """[K] scores of the usable arrivals, scaled to sum to one; all zero when they sum to zero."""
        kept = self.kept(scores, 0.0)
        total = kept.sum()
        return kept / where(total > 0, total, 1.0)

    def weighed(self, weights: Tensor) -> Step:
        """The gradients combined with these weights [K]; those not usable get none."""
        return self.having(weights=self.kept(weights, 0.0))

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
        return self.kept(values, 0.0).max()

    def remember(self, **vectors: Tensor) -> Step:
        """Keep these combinations of basis rows [B] as the server's vectors of these names."""
        return self.having(vectors={**self.vectors, **vectors})

    def overwrite(self, **rows: TableRows) -> Step:
        """Put these rows into the server's tables of these names."""
        return self.having(rows={**self.rows, **rows})

    def keep(self, **values: Tensor) -> Step:
        """Keep these small tensors in the server's memory."""
        return self.having(values={**self.values, **values})


@dataclass(frozen=True)
class TableRows:
    """Rows of a table that this step overwrites: with the delivered gradients, or with combinations of the basis."""

    index: Tensor  # [K] int64, row of the table for each arrival
    coefficients: Tensor | None = None  # [K, B], or None for the delivered gradients themselves
