"""The paper's theory: its bounds as functions, their constants measured from runs, and the choice of k."""

from kasync.theory.arrivals import Observed, observed_durations, observed_pairs
from kasync.theory.bound import Bound, Condition
from kasync.theory.constants import StageOne, StageTwo, squared_weights
from kasync.theory.fitting import Fit, Fleet, fit_fleet
from kasync.theory.measure import Estimate, Measured, measure_constants
from kasync.theory.measure_stage_two import MeasuredStageTwo, Selection, measure_stage_two
from kasync.theory.planning import PlanRow, plan
from kasync.theory.recommend import Pilot, Recommendation, recommend
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
from kasync.theory.stage_one import theorem_one
from kasync.theory.stage_two import theorem_two
from kasync.theory.staleness import least_mean_age, mean_ages, tight_mean_age
from kasync.theory.tasks import ModelTask

__all__ = [
    "Bound",
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
    "constant_rate",
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
