"""Staleness against theory: P/K - 1 on average, and Appendix D's bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from timeline_kinds import RELIABLE_ASYNC, ROUNDS, sizes

from kasync.timelines import Dropouts, clock, durations, held_staleness, staleness_bound, uniform


@pytest.mark.parametrize(("clients", "k"), [(1000, 10), (3000, 20), (300, 7), (50, 20), (10_000, 1000)])
def test_the_mean_staleness_of_uniform_arrivals_is_clients_over_k_less_one(clients, k):
    warm = 10 * clients // k  # a client that has not delivered yet is stale by the age of the run, not by its turn
    timeline = uniform(clients, k, warm + max(2000, 400_000 // k), seed=1)
    assert timeline.staleness[warm:].mean() == pytest.approx(clients / k - 1, rel=0.02)


def test_uniform_arrivals_favour_nobody():
    """Every client and every pair is drawn about as often as any other (chi squared within 5 deviations)."""
    for clients, k in [(12, 2), (12, 5)]:  # rarely repeated draws, and the dense way
        steps = 20_000
        here = np.zeros((steps, clients))
        np.put_along_axis(here, uniform(clients, k, steps, seed=3).clients, 1.0, axis=1)
        pairs = (here.T @ here)[np.triu_indices(clients, 1)]
        expected = steps * k * (k - 1) / (clients * (clients - 1))
        assert abs(pairs - expected).max() < 5 * np.sqrt(expected)
        assert abs(here.sum(0) - steps * k / clients).max() < 5 * np.sqrt(steps * k / clients)


def naive_held_staleness(timeline):
    held, out = np.zeros(timeline.population), []
    pulls = {}
    for step in range(timeline.steps):
        for client, version in zip(timeline.clients[step], timeline.versions[step], strict=True):
            pulls.setdefault(int(version), []).append(client)
    for step in range(timeline.steps + 1):
        if step:
            held[timeline.clients[step - 1]] = step
        for client in pulls.get(step, []):
            held[client] = max(held[client], step)
        out.append(step - held.mean())
    return out


@pytest.mark.parametrize("kind", RELIABLE_ASYNC | ROUNDS)
@given(size=sizes(20, 30))
@settings(max_examples=8, deadline=None)
def test_held_staleness_agrees_with_a_plain_loop(kind, size):
    timeline = (RELIABLE_ASYNC | ROUNDS)[kind](*size)
    np.testing.assert_allclose(held_staleness(timeline), naive_held_staleness(timeline), atol=1e-9)


@pytest.mark.parametrize("kind", RELIABLE_ASYNC)
@given(size=sizes(60, 100))
@settings(max_examples=20, deadline=None)
def test_what_the_clients_hold_is_at_least_as_stale_as_appendix_d_says(kind, size):
    clients, k, _, _ = size
    held = held_staleness(RELIABLE_ASYNC[kind](*size)) + 1  # the appendix counts from 1
    assert (held[clients // k :] >= staleness_bound(clients, k) - 1e-9).all()


def test_appendix_d_is_attained_when_clients_take_turns():
    timeline = clock(40, 4, 50, durations.constant(1.0))
    assert held_staleness(timeline)[10:] + 1 == pytest.approx(staleness_bound(40, 4))


@pytest.mark.parametrize("kind", RELIABLE_ASYNC)
def test_what_is_delivered_after_warm_up_is_above_the_bound_too(kind):
    timeline = RELIABLE_ASYNC[kind](200, 4, 4000, 0)
    assert timeline.staleness[50:].mean() + 1 >= staleness_bound(200, 4)


@pytest.mark.parametrize("kind", RELIABLE_ASYNC)
@given(size=sizes())
@settings(max_examples=10, deadline=None)
def test_what_is_delivered_and_what_is_held_add_up(kind, size):
    clients, k, steps, _ = size
    timeline = RELIABLE_ASYNC[kind](*size)
    delivered = timeline.staleness.mean() + 1
    left = held_staleness(timeline)[-1]
    assert delivered == pytest.approx(clients / k * (1 - left / steps))


@pytest.mark.parametrize("kind", ROUNDS)
def test_whole_rounds_without_leftovers_deliver_exactly_the_bound(kind):
    timeline = ROUNDS[kind](40, 4, 50, 0)
    assert timeline.staleness.mean() + 1 == pytest.approx(staleness_bound(40, 4))


def test_the_bound_does_not_speak_of_deliveries():
    """Four clients a thousand times faster than the rest are always fresh; what the others hold is not."""
    timeline = clock(40, 4, 100, durations.constant(1.0), speeds=[1000.0] * 4 + [1.0] * 36)
    assert timeline.staleness.mean() + 1 == 1.0 < staleness_bound(40, 4)
    assert (held_staleness(timeline)[10:] + 1 >= staleness_bound(40, 4)).all()


def test_the_bound_needs_that_only_deliverers_take_the_new_model():
    """Where most uploads are lost, most clients hold newer models than k at a time could."""
    timeline = clock(100, 5, 200, durations.exponential(1.0), lost=0.9)
    assert timeline.staleness[20:].mean() + 1 < staleness_bound(100, 5)
    returning = clock(100, 5, 200, durations.exponential(1.0), dropouts=Dropouts(0.8, durations.constant(1e-3)))
    assert returning.staleness[20:].mean() + 1 < staleness_bound(100, 5)


def test_a_summary_says_what_the_arrays_say():
    timeline = clock(30, 3, 200, durations.exponential(2.0), seed=4)
    summary = timeline.summary()
    deliveries = np.bincount(timeline.clients.ravel(), minlength=30)
    assert summary.mean_staleness == pytest.approx(timeline.staleness.mean())
    assert summary.median_staleness == np.median(timeline.staleness)
    assert summary.max_staleness == timeline.staleness.max()
    assert summary.steps_per_second == pytest.approx(200 / timeline.times[-1])
    assert summary.share_delivering == (deliveries > 0).mean()
    assert (summary.fewest_deliveries, summary.most_deliveries) == (deliveries.min(), deliveries.max())
    assert summary.median_deliveries == np.median(deliveries)
    assert summary.rows_held == 30
    assert "200 steps" in str(summary)
