"""`kasync bench` reports the time that steps really take."""

import time

import pytest

from kasync.cli.planning import timed
from kasync.experiments.experiment import settings_for


@pytest.mark.parametrize("steps", [20, 150])
def test_a_timed_step_fits_into_the_time_it_took_and_costs_about_what_its_gradients_do(steps):
    given = {"model": "logistic", "clients": 50, "k": 10, "steps": steps, "device": "cpu"}
    settings = settings_for("wkafl", {**given, "work": {"kind": "gradient", "batch_size": 8}}, {}).resolved()
    began = time.perf_counter()
    measured = timed(settings)
    assert steps * measured["ms_per_step"] / 1000 < time.perf_counter() - began
    assert measured["ms_per_step"] > 0.02  # ten gradients of 7,850 numbers, the rule and the update
    assert measured["updates_per_second"] == pytest.approx(1000 * given["k"] / measured["ms_per_step"], rel=0.05)
