"""What holds for every kind of timeline."""

import numpy as np
import pytest
from hypothesis import given, settings
from timeline_judge import naive_held, naive_history
from timeline_kinds import EVERY_KIND, RELIABLE_ASYNC, ROUNDS, SYNCHRONOUS, sizes

from kasync.errors import UserError
from kasync.timelines.timeline import inconsistency, rows_held, versions_held


def made(kind, size):
    """The timeline, or None where fewer than k clients remained from the start."""
    try:
        return EVERY_KIND[kind](*size)
    except UserError as problem:
        if "at step 0 fewer than k" not in str(problem):
            raise
        return None


@pytest.mark.parametrize("kind", EVERY_KIND)
@given(size=sizes())
@settings(max_examples=15, deadline=None)
def test_a_timeline_is_sound(kind, size):
    timeline = made(kind, size)
    if timeline is None:
        return
    clients, k, steps, _ = size
    assert inconsistency(timeline) == ""
    assert timeline.steps <= steps
    assert timeline.clients.shape == timeline.versions.shape == (timeline.steps, k)
    assert timeline.clients.dtype == timeline.versions.dtype == np.int32
    assert timeline.population == clients
    assert all(len(set(row.tolist())) == k for row in timeline.clients)
    assert (timeline.staleness == np.arange(timeline.steps)[:, None] - timeline.versions).all()


@pytest.mark.parametrize("kind", EVERY_KIND)
@given(size=sizes(12, 25))
@settings(max_examples=8, deadline=None)
def test_what_is_derived_agrees_with_plain_loops(kind, size):
    timeline = made(kind, size)
    if timeline is None:
        return
    visits, previous, following = naive_history(timeline.clients)
    np.testing.assert_array_equal(timeline.visits, visits)
    np.testing.assert_array_equal(timeline.previous_step, previous)
    np.testing.assert_array_equal(timeline.next_step, following)
    first = [next((s for s, row in enumerate(timeline.clients) if c in row), -1) for c in range(timeline.population)]
    np.testing.assert_array_equal(timeline.first_step, first)
    rows, versions = naive_held(timeline)
    np.testing.assert_array_equal(rows_held(timeline), rows)
    np.testing.assert_array_equal(versions_held(timeline), versions)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_seed_decides_everything_and_a_longer_timeline_begins_with_the_shorter(kind):
    long, short = EVERY_KIND[kind](30, 4, 40, 7), EVERY_KIND[kind](30, 4, 25, 7)
    assert long.head(short.steps).fingerprint() == short.fingerprint()
    assert EVERY_KIND[kind](30, 4, 40, 7).fingerprint() == long.fingerprint()


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if "constant" not in kind and "trace" not in kind])
def test_another_seed_is_another_timeline(kind):
    assert EVERY_KIND[kind](30, 4, 40, 7).fingerprint() != EVERY_KIND[kind](30, 4, 40, 8).fingerprint()


@pytest.mark.parametrize("kind", RELIABLE_ASYNC)
@given(size=sizes())
@settings(max_examples=10, deadline=None)
def test_a_client_works_on_the_model_it_got_for_its_last_delivery(kind, size):
    timeline = RELIABLE_ASYNC[kind](*size)
    np.testing.assert_array_equal(timeline.versions, timeline.previous_step + 1)


@pytest.mark.parametrize("kind", SYNCHRONOUS)
def test_synchronous_work_is_never_stale(kind):
    assert not SYNCHRONOUS[kind](20, 3, 30, 0).staleness.any()


@pytest.mark.parametrize("kind", ROUNDS)
@given(size=sizes())
@settings(max_examples=20, deadline=None)
def test_a_client_delivers_once_per_round_and_begins_when_a_round_begins(kind, size):
    clients, k, steps, _ = size
    timeline = ROUNDS[kind](*size)
    length = clients // k
    for first in range(0, steps, length):
        deliverers = timeline.clients[first : first + length].ravel()
        assert len(set(deliverers.tolist())) == len(deliverers)
    rounds_done = timeline.previous_step // length + 1  # -1 // length + 1 = 0 for a first delivery
    np.testing.assert_array_equal(timeline.versions, rounds_done * length)


def test_nothing_can_be_written_into_a_timeline():
    timeline = RELIABLE_ASYNC["uniform"](10, 2, 5, 0)
    for array in (timeline.clients, timeline.versions, timeline.times, timeline.visits, timeline.next_step):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
