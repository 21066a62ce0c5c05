"""Durations found again from what a timeline shows, rows that say what each k costs, and a k with its reason."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kasync.errors import UserError
from kasync.theory import (
    Observed,
    Pilot,
    StageOne,
    best_rate,
    constant_rate,
    fit_fleet,
    observed_durations,
    observed_pairs,
    plan,
    recommend,
)
from kasync.theory.fitting import log_survival, mean_above, square_above
from kasync.theory.planning import fairness
from kasync.theory.remarks import at_rate
from kasync.timelines import clock, durations

PROBLEM = StageOne(1.0, 3.0, 0.5, 0.3, 8, 1, 100, 1, 0.1, 2.0)
FLEET = {"durations": durations.log_normal(10.0, 0.5), "speeds": durations.log_normal(1.0, 0.5)}


def fleet(k, steps, mode="async", clients=100):
    return clock(clients, k, steps, mode=mode, **FLEET)


@pytest.fixture(scope="module")
def rows():
    return plan((2, 10, 50, 100), fleet, lambda k, steps: fleet(k, steps, "full"), PROBLEM, budget_seconds=2000)


@pytest.mark.parametrize(
    ("kind", "make", "expected"),
    [
        ("log_normal", lambda rng: 5 * np.exp(0.3 * rng.standard_normal(4000)), {"median": 5, "spread": 0.3}),
        ("exponential", lambda rng: rng.exponential(5, 4000), {"mean": 5}),
        ("shifted_exponential", lambda rng: 2 + rng.exponential(3, 4000), {"shift": 2, "mean": 3}),
    ],
)
def test_the_distribution_that_made_the_durations_is_chosen_and_its_settings_found(kind, make, expected):
    rng = np.random.default_rng(0)
    found = fit_fleet(observed_pairs(rng.integers(0, 50, 4000), make(rng)), 50)
    assert found.best.kind == kind
    assert dict(found.best.settings) == pytest.approx(expected, rel=0.05)
    assert found.best.kind in durations.KINDS
    durations.KINDS[found.best.kind](**found.best.settings)


def test_clients_of_their_own_speed_are_told_apart_and_unfinished_work_is_not_taken_for_fast_work():
    rng = np.random.default_rng(0)
    speeds = np.exp(0.4 * rng.standard_normal(100))
    owners = rng.integers(0, 100, 4000)
    whole = 5 * np.exp(0.3 * rng.standard_normal(4000)) / speeds[owners]
    stop = rng.uniform(0, 20, 4000)
    ended = whole <= stop
    assert 0.5 < ended.mean() < 0.9
    found = fit_fleet(Observed(owners, np.minimum(whole, stop), ended), 100)
    assert found.best.kind == "log_normal"
    assert found.best.settings["median"] == pytest.approx(5, rel=0.1)
    assert found.best.settings["spread"] == pytest.approx(0.3, rel=0.1)
    assert found.speed_spread == pytest.approx(0.4, rel=0.2)
    assert np.corrcoef(np.log(found.speeds), np.log(speeds))[0, 1] > 0.95
    careless = fit_fleet(observed_pairs(owners[ended], whole[ended]), 100)
    assert careless.best.settings["median"] < found.best.settings["median"]


@pytest.mark.parametrize("k", [1, 5, 30])
def test_the_durations_behind_a_timeline_are_found_from_it_alone(k):
    found = fit_fleet(observed_durations(fleet(k, 6000 // k)), 100)
    assert found.best.kind == "log_normal"
    assert found.best.settings["spread"] == pytest.approx(0.5, rel=0.1)
    typical = found.best.settings["median"] / 10
    # The speeds drawn for 100 clients need not have a median of exactly 1.
    assert typical == pytest.approx(1, rel=0.2)
    assert found.speed_spread == pytest.approx(0.5, rel=0.25)


def test_with_one_delivery_a_step_the_durations_are_read_off_exactly():
    timeline = clock(20, 1, 200, durations.exponential(3.0))
    seen = observed_durations(timeline)
    own = durations.exponential(3.0).seconds(0, timeline.clients.ravel(), timeline.visits.ravel())
    assert seen.seconds[seen.ended] == pytest.approx(own)
    assert np.sum(~seen.ended) == 19  # everybody but the one that delivered last is still at work


def test_a_fleet_without_any_randomness_is_fitted_without_complaint():
    found = fit_fleet(observed_durations(clock(30, 1, 200, durations.constant(2.0))), 30)
    assert found.best.kind == "shifted_exponential"
    assert found.best.settings["shift"] == pytest.approx(2.0)
    assert found.best.settings["mean"] < 1e-6
    assert found.speed_spread == 0


def test_tail_moments_of_a_normal_are_those_of_its_samples():
    draws = np.random.default_rng(0).normal(1.0, 2.0, 400_000)
    for level in (-3.0, 1.0, 4.0):
        tail = draws[draws > level]
        at = np.array([level])
        assert mean_above(at, 1.0, 2.0)[0] == pytest.approx(tail.mean(), rel=0.01)
        assert square_above(at, 1.0, 2.0)[0] == pytest.approx(np.square(tail).mean(), rel=0.02)
        assert np.exp(log_survival((at - 1) / 2))[0] == pytest.approx(len(tail) / len(draws), rel=0.02)
    far = log_survival(np.array([24.99, 25.01, 1e4]))
    assert np.all(np.diff(far) < 0)
    assert np.all(np.isfinite(far))


def test_a_larger_k_makes_longer_steps_less_staleness_and_fairer_shares(rows):
    for small, large in pairwise(rows):
        assert large.seconds_per_step > small.seconds_per_step
        assert large.mean_staleness < small.mean_staleness
        assert large.fairness > small.fairness
        assert large.idle_share >= small.idle_share
    last = rows[-1]
    assert last.max_staleness == 0
    assert last.fairness == pytest.approx(1)
    assert last.idle_saved == pytest.approx(0, abs=0.05)  # k = all clients is synchronous
    assert rows[0].idle_saved > 0
    assert rows[1].idle_saved > 0.5


def test_rows_count_what_their_timeline_did(rows):
    row = rows[1]
    assert row.gradients_per_second == pytest.approx(10 / row.seconds_per_step)
    assert row.fewest_deliveries <= row.median_deliveries <= row.most_deliveries
    assert row.staleness_quantiles[0.5] <= row.staleness_quantiles[0.9] <= row.staleness_quantiles[0.99]
    assert row.steps == int(2000 / row.seconds_per_step)
    assert row.bound == pytest.approx(sum(row.terms.values()))


def test_fairness_runs_from_one_over_clients_to_one():
    assert fairness(np.array([5.0, 5, 5, 5])) == pytest.approx(1)
    assert fairness(np.array([7.0, 0, 0, 0])) == pytest.approx(0.25)


def test_the_best_rate_beats_its_neighbours_and_stays_allowed():
    for staleness, gap in ((0, 2.0), (3, 0.001), (500, 2.0)):
        constants = replace(PROBLEM, steps=5000, max_staleness=staleness, initial_gap=gap)
        rate = best_rate(constants)
        here = constant_rate(at_rate(constants, rate))
        assert here.holds
        for factor in (0.8, 1.25):
            other = constant_rate(at_rate(constants, rate * factor))
            assert not other.holds or other.mean_squared_gradient >= here.mean_squared_gradient


def test_pilots_decide_by_time_to_the_target(rows):
    pilots = [Pilot(2, [90.0, 110.0]), Pilot(10, [40.0, 50.0]), Pilot(50, [60.0, np.inf])]
    chosen = recommend(rows, pilots)
    assert chosen.k == 10
    assert "44.72" in chosen.reason
    assert chosen.scores[50] == np.inf


def test_a_lead_that_the_seeds_do_not_bear_out_is_called_one(rows):
    clear = recommend(rows, [Pilot(2, [90.0, 110.0, 100.0]), Pilot(10, [45.0, 56.0, 51.0])])
    vague = recommend(rows, [Pilot(2, [90.0, 40.0, 100.0]), Pilot(10, [45.0, 70.0, 51.0])])
    assert clear.k == vague.k == 10
    assert "cannot tell apart" not in clear.reason
    assert "cannot tell apart" in vague.reason


def test_where_no_pilot_arrives_the_most_accurate_is_taken(rows):
    pilots = [Pilot(2, [np.inf], [0.5]), Pilot(10, [np.inf], [0.7])]
    assert recommend(rows, pilots).k == 10
    with pytest.raises(UserError, match="lower the target"):
        recommend(rows, [Pilot(2, [np.inf])])


def test_without_pilots_the_smallest_bound_decides(rows):
    chosen = recommend(rows)
    assert chosen.scores[chosen.k] == min(chosen.scores.values())
    assert f"k={chosen.k}" in chosen.reason


def test_the_worst_case_of_the_theorem_asks_for_less_asynchrony_than_the_typical_case():
    worst = plan((10, 100), fleet, constants=PROBLEM, budget_seconds=20_000, staleness_share=1.0)
    typical = plan((10, 100), fleet, constants=PROBLEM, budget_seconds=20_000, staleness_share=0.5)
    assert worst[0].bound > typical[0].bound
    assert worst[1].bound == pytest.approx(typical[1].bound)


def test_a_choice_without_anything_to_judge_by_is_refused(rows):
    bare = plan((2, 10), fleet, horizon_seconds=100.0)
    with pytest.raises(UserError, match="pilots"):
        recommend(bare)
    with pytest.raises(UserError, match="no rows"):
        recommend([])
    with pytest.raises(UserError, match="plan those k"):
        recommend(rows, [Pilot(3, [1.0])])
    with pytest.raises(UserError, match="ks is empty"):
        plan((), fleet)
    with pytest.raises(UserError, match="horizon_seconds"):
        plan((2,), fleet, horizon_seconds=-1.0)
