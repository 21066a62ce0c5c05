"""Algorithm 4 of the paper, for any labels, sizes and seeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kasync.data import partition
from kasync.data.partition.algorithm4 import _stretches
from kasync.data.partition.draws import Purpose, bits, order, rounds_for, shuffled
from kasync.data.partition.lists import apportion
from kasync.errors import UserError

TEN = np.random.default_rng(5).permutation(np.repeat(np.arange(10), 120))  # [1200] ten labels, 120 samples each


@st.composite
def algorithm_four(draw):
    """A way, a number of clients and a seed that TEN can serve."""
    smallest = draw(st.integers(1, 40))
    largest = draw(st.integers(smallest, 100))
    way = partition.labels(draw(st.integers(1, 10)), size=(smallest, largest))
    return way, draw(st.integers(1, 40)), draw(st.integers(-(2**40), 2**40))


@given(algorithm_four())
@settings(deadline=None, max_examples=150)
def test_every_client_has_exactly_its_labels_a_size_in_range_and_no_sample_twice(case):
    way, clients, seed = case
    split = way.over(TEN, clients, seed)
    counts = split.counts(TEN, 10)
    assert split.clients == clients
    assert split.sizes.min() >= way.size[0]
    assert split.sizes.max() <= way.size[1]
    assert ((counts > 0).sum(1)[split.sizes >= way.per_client] == way.per_client).all()
    assert ((counts > 0).sum(1) <= way.per_client).all()
    for client in range(clients):
        assert len(np.unique(split.of(client))) == split.sizes[client]


@given(algorithm_four(), st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_a_client_depends_on_the_seed_and_its_number_alone(case, others):
    way, clients, seed = case
    split, again, larger = (way.over(TEN, count, seed) for count in (clients, clients, clients + others))
    assert np.array_equal(split.indices, again.indices)
    assert np.array_equal(split.offsets, again.offsets)
    assert np.array_equal(split.indices, larger.indices[: len(split.indices)])


def test_another_seed_gives_another_split():
    one, other = (partition.labels(3).over(TEN, 50, seed) for seed in (0, 1))
    assert not np.array_equal(one.sizes, other.sizes)


@given(
    st.lists(st.floats(1e-6, 1 - 1e-6), min_size=1, max_size=12),
    st.integers(0, 500),
)
@settings(deadline=None, max_examples=300)
def test_shares_add_up_and_stay_within_rounding(weights, total):
    row = np.array([weights])
    exact = total * row[0] / row.sum()
    plain = apportion(np.array([total]), row)[0]
    assert plain.sum() == total
    assert (np.abs(plain - exact) < 1 + 1e-6).all()
    each = apportion(np.array([total]), row, least=1)[0]
    assert each.sum() == total
    if total >= len(weights):
        assert each.min() >= 1
        raised = _raised_by_hand(total, row[0])
        assert (np.abs(each - raised) < 1 + 1e-6).all()
    if (exact >= 1).all():
        assert np.array_equal(each, plain)  # Algorithm 4's share itself wherever every label earns a sample


def test_what_rounding_leaves_over_goes_to_the_largest_fraction():
    assert apportion(np.array([10]), np.array([[0.47, 0.33, 0.20]])).tolist() == [[5, 3, 2]]
    assert apportion(np.array([10]), np.array([[0.98, 0.01, 0.01]]), least=1).tolist() == [[8, 1, 1]]
    assert apportion(np.array([2]), np.array([[0.5, 0.2, 0.4]]), least=1).tolist() == [[1, 0, 1]]


def _raised_by_hand(total, weights):
    """Labels below one sample get one, the rest is shared again, until nobody is below one."""
    raised = np.zeros(len(weights), bool)
    while True:
        shares = np.where(raised, 1.0, (total - raised.sum()) * weights / weights[~raised].sum())
        below = ~raised & (shares < 1 - 1e-9)
        if not below.any():
            return shares
        raised |= below


def test_the_sizes_and_labels_of_many_clients_are_evenly_spread():
    split = partition.labels(2, size=(10, 19)).over(TEN, 20_000, 3)
    sizes = np.bincount(split.sizes - 10, minlength=10)
    holders = (split.counts(TEN, 10) > 0).sum(0)
    assert np.abs(sizes / 2000 - 1).max() < 0.1
    assert np.abs(holders / 4000 - 1).max() < 0.1


def test_clients_draw_their_samples_independently():
    split = partition.labels(1, size=(12, 12)).over(TEN, 10_000, 3)
    uses = np.bincount(split.indices, minlength=len(TEN))  # [1200], 100 each on average
    assert uses.min() > 50
    assert uses.max() < 150
    assert len({tuple(np.sort(split.of(client))) for client in range(10_000)}) == 10_000


def test_the_weights_are_those_of_the_algorithm():
    """Two uniform weights: the larger share is 1 - min/(sum), whose mean is log 2 (integrated by hand)."""
    split = partition.labels(2, size=(100, 100)).over(TEN, 20_000, 3)
    assert split.counts(TEN, 10).max(1).mean() / 100 == pytest.approx(np.log(2), abs=0.005)


@pytest.mark.parametrize("count", [2, 3, 5, 6, 30, 255, 256, 400])
@pytest.mark.parametrize("other", ["second", "last"])
def test_samples_are_drawn_evenly_and_so_are_pairs_of_them(count, other):
    """Chi-square of the first and another drawn sample over all ordered pairs, within five standard deviations."""
    draws = 300_000
    keys = bits(1, Purpose.SAMPLES, np.arange(draws), count)
    sizes = np.full(draws, count)
    rounds = rounds_for(count)
    first = shuffled(np.zeros(draws, int), sizes, keys, rounds)
    second = shuffled(np.full(draws, 1 if other == "second" else count - 1), sizes, keys, rounds)
    seen = np.bincount(first * count + second, minlength=count**2).reshape(count, count)[~np.eye(count, dtype=bool)]
    expected = draws / len(seen)
    freedom = len(seen) - 1
    assert ((seen - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom) + 5


@given(st.integers(1, 700), st.integers(0, 2**63))
@settings(deadline=None, max_examples=80)
def test_every_key_gives_a_permutation(count, key):
    keys = np.full(count, key, np.uint64)
    places = shuffled(np.arange(count), np.full(count, count), keys, rounds_for(count))
    assert np.array_equal(np.sort(places), np.arange(count))


@given(st.lists(st.integers(0, 400_000), min_size=1, max_size=30))
def test_stretches_cover_every_client_once(sizes):
    cuts = _stretches(np.concatenate([[0], np.cumsum(sizes)]))
    assert [client for begin, end in cuts for client in range(begin, end)] == list(range(len(sizes)))


def test_cutting_the_work_in_stretches_changes_nothing(monkeypatch):
    whole = partition.labels(3).over(TEN, 100, 7)
    monkeypatch.setattr("kasync.data.partition.algorithm4._SAMPLES_AT_ONCE", 64)
    monkeypatch.setattr("kasync.data.partition.algorithm4._CLIENTS_AT_ONCE", 7)
    assert np.array_equal(whole.indices, partition.labels(3).over(TEN, 100, 7).indices)


def test_labels_that_do_not_occur_are_never_drawn():
    gaps = np.repeat([1, 4, 7], 60)
    split = partition.labels(3).over(gaps, 20, 0)
    assert (split.counts(gaps, 8)[:, [1, 4, 7]] > 0).all()


def test_a_client_can_take_every_sample_of_a_label():
    split = partition.labels(1, size=(120, 120)).over(TEN, 5, 0)
    assert all(len(np.unique(split.of(client))) == 120 for client in range(5))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: partition.labels(0), "per_client is 0"),
        (lambda: partition.labels(1, size=(20, 10)), "size is \\(20, 10\\)"),
        (lambda: partition.labels(1, size=(-1, 10)), "size is"),
        (lambda: partition.labels(11).over(TEN, 3), "only 10 labels occur"),
        (lambda: partition.labels(1, size=(121, 121)).over(TEN, 3), "client 0 to draw 121 samples of label . *"),
        (lambda: partition.labels(1, size=(0, 1)).over(TEN, 99), "without a sample"),
        (lambda: partition.labels(1).over(TEN, None), "clients is not given"),
        (lambda: partition.labels(1).over(TEN, 0), "clients is 0"),
        (lambda: partition.labels(1).over(TEN[:0], 3), "no samples"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


def test_clients_without_samples_are_allowed_when_asked_for():
    split = partition.labels(1, size=(0, 1), allow_empty=True).over(TEN, 99)
    assert split.sizes.min() == 0
    assert split.settings["allow_empty"] is True


def test_a_random_order_holds_everything_once():
    assert np.array_equal(np.sort(order(1000, 3, Purpose.ORDER)), np.arange(1000))


@pytest.mark.slow
def test_a_million_clients_take_under_thirty_seconds():
    from time import perf_counter

    labels = np.repeat(np.arange(10), 5000)
    began = perf_counter()
    split = partition.labels(5).over(labels, 1_000_000, 0)
    assert perf_counter() - began < 30
    assert split.clients == 1_000_000


def test_bare_labels_may_be_words_or_whole_floats_and_nothing_else():
    numbers = np.arange(400) % 3
    words = np.array(["a", "b", "c"])[numbers]
    for way in (partition.dirichlet(1.0), partition.shards(2), partition.labels(1)):
        expected = way.over(numbers, 5)
        for labels in (words, words.tolist(), numbers.astype(float)):
            assert np.array_equal(way.over(labels, 5).indices, expected.indices)
        for labels in (numbers + 0.5, np.stack([numbers, numbers], 1)):
            with pytest.raises(UserError, match="give one class for each sample"):
                way.over(labels, 5)
    assert partition.iid().over(numbers + 0.5, 5).clients == 5
    assert partition.dirichlet(1.0).over(numbers - 1, 5).clients == 5


@pytest.mark.parametrize(
    ("clients", "seed", "sentence"), [(4.0, 0, "clients is 4.0"), ("4", 0, "'4'"), (4, 0.5, "0.5")]
)
def test_clients_and_seed_are_whole_numbers(clients, seed, sentence):
    with pytest.raises(UserError, match=sentence):
        partition.iid().over(np.arange(40) % 2, clients, seed)
