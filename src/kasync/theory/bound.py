"""What a theorem promises: its terms by name, the conditions it asks for, and its bound on |grad F|^2."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kasync.errors import UserError
from kasync.theory.constants import Floats


@dataclass(frozen=True)
class Condition:
    """One demand on the learning rates, value <= limit, at the step where it comes closest to failing."""

    name: str
    formula: str
    value: float
    limit: float
    step: int  # counted from 1, as in the paper
    required: bool = True  # False: reported beside the others, `holds` of the bound does not wait for it

    @property
    def holds(self) -> bool:
        return bool(self.value <= self.limit)

    @property
    def excess(self) -> float:
        """value / limit: above 1 the condition fails by this factor."""
        if self.limit > 0:
            return self.value / self.limit
        return 0.0 if self.value <= self.limit else np.inf

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "FAILS"
        return (
            f"{self.name} {verdict}: {self.formula}; {self.value:.4g} against {self.limit:.4g} "
            f"({self.excess:.3g} times the limit) at step {self.step}"
        )


@dataclass(frozen=True)
class Bound:
    """(1/J) sum_j weights_j E|grad F(w_j)|^2 <= total, and total is the sum of the terms."""

    theorem: str
    per_step: Mapping[str, Floats]  # each term before the mean over steps, {name: [J]}
    weights: Floats  # [J]: eta_j s_j / 2 in stage one, V_j in stage two
    conditions: tuple[Condition, ...]

    @property
    def terms(self) -> dict[str, float]:
        """The right-hand side by name."""
        return {name: float(values.mean()) for name, values in self.per_step.items()}

    @property
    def total(self) -> float:
        return float(sum(self.terms.values()))

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        terms = self.terms
        return max(terms, key=lambda name: terms[name])

    @property
    def holds(self) -> bool:
        """Whether every required condition is met, so that the theorem says anything at all."""
        return all(condition.holds for condition in self.conditions if condition.required)

    @property
    def failing(self) -> tuple[Condition, ...]:
        return tuple(condition for condition in self.conditions if condition.required and not condition.holds)

    @property
    def scale(self) -> float:
        """Turns a share of `total` into a share of `mean_squared_gradient`: 1 / mean weight, infinite below 0."""
        mean = float(self.weights.mean())
        return 1.0 / mean if mean > 0 else np.inf

    @property
    def mean_squared_gradient(self) -> float:
        """The bound on the weighted mean of E|grad F(w_j)|^2."""
        return self.total * self.scale if self.total > 0 else 0.0

    def left_side(self, squared_norms: Floats) -> float:
        """(1/J) sum_j weights_j |grad F(w_j)|^2 of a run whose squared gradient norms are [J]."""
        measured = np.asarray(squared_norms, dtype=np.float64)
        if measured.shape != self.weights.shape:
            raise UserError(
                f"squared_norms has shape {measured.shape}; give |grad F|^2 at each of the {len(self.weights)} steps."
            )
        return float((self.weights * measured).mean())

    def looseness(self, squared_norms: Floats) -> float:
        """total / left side: how many times the theorem overstates what the run did."""
        left = self.left_side(squared_norms)
        return self.total / left if left > 0 else np.inf

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {value:.4g}" for name, value in self.terms.items())
        lines = [
            f"{self.theorem}: total {self.total:.4g} ({terms}); mean |grad F|^2 <= {self.mean_squared_gradient:.4g}"
        ]
        return "\n  ".join(lines + [str(condition) for condition in self.conditions])
