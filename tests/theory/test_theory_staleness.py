"""Appendix D's bound on real timelines of every kind, and the timelines that reach it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kasync.errors import UserError
from kasync.theory import least_mean_age, mean_ages, tight_mean_age
from kasync.timelines import Dropouts, Repeating, clock, durations, held_staleness, once_per_round, uniform

K_ASYNC = {
    "uniform": uniform,
    "constant": lambda p, k, steps: clock(p, k, steps, durations.constant(1.0)),
    "exponential": lambda p, k, steps: clock(p, k, steps, durations.exponential(1.0)),
    "shifted exponential": lambda p, k, steps: clock(p, k, steps, durations.shifted_exponential(1.0, 0.2)),
    "log-normal": lambda p, k, steps: clock(p, k, steps, durations.log_normal(1.0, 1.5)),
    "pareto": lambda p, k, steps: clock(p, k, steps, durations.pareto(1.0, 1.1)),
    "own speeds": lambda p, k, steps: clock(
        p, k, steps, durations.constant(1.0), speeds=durations.log_normal(1.0, 1.0)
    ),
}
OTHERS = {
    "K-sync": lambda p, k, steps: clock(p, k, steps, durations.exponential(1.0), mode="sync"),
    "fully synchronous": lambda p, k, steps: clock(p, k, steps, durations.exponential(1.0), mode="full"),
    "once per round": once_per_round,
    "windows": lambda p, k, steps: clock(p, k, steps, durations.exponential(1.0), availability=Repeating(5.0, 8.0)),
    "drop-outs": lambda p, k, steps: clock(
        p, k, steps, durations.exponential(1.0), dropouts=Dropouts(0.2, durations.exponential(3.0))
    ),
    "lost uploads": lambda p, k, steps: clock(p, k, steps, durations.exponential(1.0), lost=0.3),
}
SIZES = [(12, 3), (13, 3), (10, 10), (7, 1), (30, 4)]


def naive_ages(deliveries, clients):
    """The mean age of all clients at each version, looked up one client at a time."""
    ages = []
    for version in range(len(deliveries) + 1):
        heard = [0] * clients
        for step in range(version):
            for client in deliveries[step]:
                heard[client] = step + 1
        ages.append(np.mean([version - v + 1 for v in heard]))
    return ages


def test_the_running_mean_of_ages_is_what_looking_up_every_client_gives():
    timeline = uniform(9, 2, 30, seed=3)
    assert mean_ages(timeline.clients, 9) == pytest.approx(naive_ages(timeline.clients, 9))


@pytest.mark.parametrize("kind", K_ASYNC | OTHERS)
@pytest.mark.parametrize(("clients", "k"), SIZES)
def test_appendix_d_bounds_the_mean_age_on_every_kind_of_timeline(kind, clients, k):
    timeline = (K_ASYNC | OTHERS)[kind](clients, k, 60)
    ages = mean_ages(timeline.clients, clients)[clients // k :]
    assert ages.min() >= tight_mean_age(clients, k) - 1e-9
    assert tight_mean_age(clients, k) >= least_mean_age(clients, k)


@pytest.mark.parametrize("kind", K_ASYNC)
@pytest.mark.parametrize(("clients", "k"), SIZES)
def test_in_k_async_learning_the_age_is_that_of_the_model_each_client_works_on(kind, clients, k):
    timeline = K_ASYNC[kind](clients, k, 60)
    assert mean_ages(timeline.clients, clients) == pytest.approx(held_staleness(timeline) + 1)


@pytest.mark.parametrize(("clients", "k"), SIZES)
def test_clients_that_take_turns_reach_the_bound(clients, k):
    turns = np.arange(60 * k).reshape(60, k) % clients
    ages = mean_ages(turns, clients)[-(-clients // k) :]
    assert ages == pytest.approx(np.full(len(ages), tight_mean_age(clients, k)))
    if clients % k == 0:
        assert ages == pytest.approx(np.full(len(ages), least_mean_age(clients, k)))


def test_equal_durations_make_clients_take_turns():
    timeline = K_ASYNC["constant"](12, 3, 60)
    assert mean_ages(timeline.clients, 12)[-1] == pytest.approx(least_mean_age(12, 3))


def test_where_everybody_gets_the_new_model_the_age_of_the_model_escapes_the_bound():
    timeline = OTHERS["K-sync"](12, 3, 60)
    assert timeline.staleness.max() == 0
    assert timeline.staleness.mean() + 1 < least_mean_age(12, 3)


@given(st.integers(1, 500), st.data())
@settings(max_examples=200, deadline=None)
def test_the_closed_form_is_the_sum_of_the_youngest_possible_ages(clients, data):
    k = data.draw(st.integers(1, clients))
    youngest = [1 + client // k for client in range(clients)]
    assert tight_mean_age(clients, k) == pytest.approx(np.mean(youngest))
    rounds = clients // k
    assert least_mean_age(clients, k) == pytest.approx(np.sum(youngest[: rounds * k]) / clients)


def test_the_bound_is_about_half_of_clients_over_k():
    assert least_mean_age(30_000, 10) == pytest.approx(30_000 / 20, rel=1e-3)


def test_more_deliverers_than_clients_are_refused():
    with pytest.raises(UserError, match="k=5"):
        least_mean_age(4, 5)
