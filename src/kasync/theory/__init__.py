"""The paper's theory: its bounds as functions, their constants measured from runs, and the choice of k."""

from kasync.theory.along_runs import Chapter, chapters, constants_at_start
from kasync.theory.fitting import Fit, Fleet, Observed, fit_fleet, observed_durations, observed_pairs
from kasync.theory.measure import (
    Estimate,
    Measured,
    MeasuredStageTwo,
    ModelTask,
    Selection,
    measure_constants,
    measure_stage_two,
)
from kasync.theory.pilots import race
from kasync.theory.planning import Pilot, PlanRow, Recommendation, plan, recommend
from kasync.theory.remarks import (
    ConstantRate,
    best_rate,
    constant_rate,
    largest_rate,
    lemma_one,
    remark_one,
    remark_one_rate,
    remark_two,
    remark_two_rate,
)
from kasync.theory.staleness import least_mean_age, mean_ages, tight_mean_age
from kasync.theory.theorems import Bound, Condition, StageOne, StageTwo, squared_weights, theorem_one, theorem_two

__all__ = [
    "Bound",
    "Chapter",
    "Condition",
    "ConstantRate",
    "Estimate",
    "Fit",
    "Fleet",
    "Measured",
    "MeasuredStageTwo",
    "ModelTask",
    "Observed",
    "Pilot",
    "PlanRow",
    "Recommendation",
    "Selection",
    "StageOne",
    "StageTwo",
    "best_rate",
    "chapters",
    "constant_rate",
    "constants_at_start",
    "fit_fleet",
    "largest_rate",
    "least_mean_age",
    "lemma_one",
    "mean_ages",
    "measure_constants",
    "measure_stage_two",
    "observed_durations",
    "observed_pairs",
    "plan",
    "race",
    "recommend",
    "remark_one",
    "remark_one_rate",
    "remark_two",
    "remark_two_rate",
    "squared_weights",
    "theorem_one",
    "theorem_two",
    "tight_mean_age",
]
