"""A client draws only its own samples, each at most once in a batch, whoever else draws."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kasync import Gradient, Local, LocalSGD
from kasync.data.federated import from_arrays
from kasync.work.batches import Batches


def held_by(sizes):
    """Data in which client c holds sizes[c] samples, scattered."""
    total = max(sum(sizes), 1)
    order = np.random.default_rng(len(sizes)).permutation(total)
    bounds = np.cumsum([0, *sizes])
    parts = [order[a:b] for a, b in pairwise(bounds)]
    inputs = np.zeros((total, 1), np.float32)
    return from_arrays(inputs, np.zeros(total, int), inputs[:1], np.zeros(1, int), parts)


works = st.one_of(
    st.builds(Gradient, st.integers(1, 9)),
    st.builds(LocalSGD, st.integers(1, 3), st.just(0.1), st.integers(1, 9)),
)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=8), work=works, seed=st.integers(0, 2**63), data=st.data()
)
def test_every_batch_holds_different_samples_of_the_client_with_equal_weights(sizes, work, seed, data):
    world = held_by(sizes)
    n = data.draw(st.integers(1, 10))
    clients = np.array([data.draw(st.integers(0, len(sizes) - 1)) for _ in range(n)], dtype=np.int32)
    visits = np.array([data.draw(st.integers(0, 10**6)) for _ in range(n)], dtype=np.int32)
    batches = Batches.of(world, work, seed)
    samples, weights = batches.draw(clients, visits)
    assert samples.shape == weights.shape == (n, work.steps, work.batch_size)
    assert samples.dtype == np.int64
    assert weights.dtype == np.float32
    for client, its_samples, its_weights in zip(clients, samples, weights, strict=True):
        count = min(sizes[client], work.batch_size)
        for drawn, share in zip(its_samples, its_weights, strict=True):
            used = drawn[share > 0]
            assert len(used) == count == len(set(used.tolist()))
            assert set(drawn.tolist()) <= set(world.of(client).tolist()), "padding, too, is the client's own"
            np.testing.assert_allclose(share[share > 0], 1 / count, rtol=1e-6)
            if sizes[client] <= work.batch_size:
                assert set(used.tolist()) == set(world.of(client).tolist())
    order = data.draw(st.permutations(range(n)))
    again, shares = batches.draw(clients[order], visits[order])
    np.testing.assert_array_equal(again, samples[order])
    np.testing.assert_array_equal(shares, weights[order])
    alone, _ = batches.draw(clients[:1], visits[:1])
    np.testing.assert_array_equal(alone, samples[:1])
    for steps in (0, work.steps, 12):  # a visit by itself draws the same, in plain Python or by numpy
        by_itself = batches.visit(int(clients[0]), int(visits[0]), steps)
        assert len(by_itself) == steps
        for drawn, first, share in zip(by_itself, samples[0], weights[0], strict=False):
            np.testing.assert_array_equal(drawn, first[share > 0])


@pytest.mark.parametrize("size", [7, 8, 20])
def test_every_sample_and_every_pair_is_about_equally_likely(size):
    visits = np.arange(20_000)
    samples, _ = Batches.of(held_by([3, size]), Gradient(5), 0).draw(np.ones_like(visits), visits)
    own = held_by([3, size]).of(1)
    place = np.searchsorted(np.sort(own), samples[:, 0])  # [visits, 5] as 0 .. size - 1
    counts = np.bincount(place.ravel(), minlength=size)
    expected = len(visits) * 5 / size
    assert ((counts - expected) ** 2 / expected).sum() < size + 6 * np.sqrt(2 * size)
    first = np.bincount(place[:, 0] * size + place[:, 4], minlength=size**2).reshape(size, size)
    pairs = len(visits) / (size * (size - 1))
    chi = ((first - pairs) ** 2 / pairs)[~np.eye(size, dtype=bool)].sum()
    assert chi < size**2 + 6 * np.sqrt(2 * size**2)
    assert first.trace() == 0


def test_seeds_visits_and_batches_of_one_visit_draw_differently():
    world, one = held_by([1000]), np.zeros(1, int)
    draws = [
        Batches.of(world, LocalSGD(2, 0.1, 5), seed).draw(one, one + visit)[0] for seed in (0, 1) for visit in (0, 1)
    ]
    seen = {tuple(batch) for draw in draws for batch in draw[0].tolist()}
    assert len(seen) == 8


def test_a_longer_piece_of_work_begins_with_the_batches_of_a_shorter_one():
    world, three = held_by([50, 60]), np.array([0, 1])
    short, _ = Batches.of(world, LocalSGD(2, 0.1, 5), 3).draw(three, three)
    long, _ = Batches.of(world, LocalSGD(4, 0.1, 5), 3).draw(three, three)
    np.testing.assert_array_equal(long[:, :2], short)


@pytest.mark.parametrize("size", [1, 5, 12, 13])
def test_an_epoch_goes_through_all_samples_of_a_client_once_in_an_order_of_its_own(size):
    batches = Batches.of(held_by([3, size]), Local(4, epochs=2, lr=0.1), 7)
    mine = sorted(batches.indices[3:].tolist())
    seen = set()
    for visit in range(3):
        drawn = batches.visit(1, visit)
        assert [len(rows) for rows in drawn[: len(drawn) // 2]] == [4] * (size // 4) + [size % 4] * (size % 4 > 0)
        for epoch in (drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]):
            order = np.concatenate(epoch).tolist()
            assert sorted(order) == mine
            seen.add(tuple(order))
    assert len(seen) == (6 if size >= 5 else 1)  # two epochs of three visits, none in the order of another
    assert np.array_equal(np.concatenate(batches.visit(1, 0, 1)), batches.visit(1, 0)[0])  # fewer steps: the first ones


def test_a_client_that_is_told_how_many_steps_it_does_begins_with_the_same_ones():
    batches = Batches.of(held_by([3, 9]), LocalSGD(2, 0.1, 4), 7)
    short, long = batches.visit(1, 5, 2), batches.visit(1, 5, 5)
    assert len(long) == 5
    assert all(np.array_equal(a, b) for a, b in zip(short, long, strict=False))
    samples, weights = batches.draw(np.array([1]), np.array([5]))
    assert np.array_equal(samples[0][0][weights[0][0] > 0], short[0])


@pytest.mark.parametrize("work", [Gradient(10**12), LocalSGD(steps=9, lr=0.1, batch_size=10**12)])
def test_a_batch_may_be_far_larger_than_what_anybody_has(work):
    indices, offsets = np.arange(300), np.array([0, 5, 300])
    batches = Batches(indices, offsets, work, 0)
    samples, weights = batches.draw(np.array([0, 1]), np.array([0, 0]))
    assert samples.shape == weights.shape == (2, work.steps, 295)
    assert sorted(samples[0, 0][weights[0, 0] > 0].tolist()) == list(range(5))
    assert sorted(samples[1, 0].tolist()) == list(range(5, 300))
    assert samples[1, -1].tolist() == batches.visit(1, 0)[-1].tolist()
    assert weights.sum(2) == pytest.approx(1.0, abs=1e-5)
