"""The other partitions use every sample once; they are measured, drawn and refused as documented."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kasync.data import partition
from kasync.data.dataset import Dataset, Samples
from kasync.data.partition.measures import draw, measure
from kasync.errors import UserError

WAYS = [
    partition.iid(allow_empty=True),
    partition.shards(1, allow_empty=True),
    partition.shards(3, allow_empty=True),
    partition.dirichlet(0.01, allow_empty=True),
    partition.dirichlet(1e-5, allow_empty=True),
    partition.dirichlet(100.0, allow_empty=True),
    partition.quantity(allow_empty=True),
    partition.quantity("power", 0.5, allow_empty=True),
    partition.quantity("dirichlet", 0.1, allow_empty=True),
]
SKEWED = np.random.default_rng(0).permutation(np.repeat(np.arange(6), [300, 200, 50, 30, 15, 5]))  # [600]


@pytest.mark.parametrize("way", WAYS, ids=repr)
@given(
    labels=st.lists(st.integers(0, 7), min_size=1, max_size=80),
    clients=st.integers(1, 100),
    seed=st.integers(-9, 2**62),
)
@settings(deadline=None, max_examples=25)
def test_every_sample_goes_to_exactly_one_client(way, labels, clients, seed):
    split = way.over(np.array(labels), clients, seed)
    assert split.clients == clients
    assert np.array_equal(np.sort(split.indices), np.arange(len(labels)))
    assert np.array_equal(split.indices, way.over(np.array(labels), clients, seed).indices)


def test_iid_clients_are_equal_to_within_one_and_hold_every_label():
    split = partition.iid().over(SKEWED, 7, 0)
    assert split.sizes.max() - split.sizes.min() <= 1
    assert (split.counts(SKEWED, 6)[:, :3] > 0).all()


def test_shards_give_a_client_few_labels_and_equal_sizes():
    balanced = np.repeat(np.arange(10), 100)
    split = partition.shards(2).over(balanced, 50, 4)
    assert set(split.sizes) == {20}
    assert ((split.counts(balanced, 10) > 0).sum(1) <= 2).all()


@given(seed=st.integers(0, 99), least=st.integers(1, 6))
@settings(deadline=None, max_examples=25)
def test_with_a_least_number_every_client_has_it_and_the_others_keep_almost_all(seed, least):
    without = partition.dirichlet(0.05, allow_empty=True).over(SKEWED, 90, seed)
    split = partition.dirichlet(0.05, least=least).over(SKEWED, 90, seed)
    assert split.sizes.min() >= least
    assert np.array_equal(np.sort(split.indices), np.arange(len(SKEWED)))
    lacking = np.maximum(least - without.sizes, 0).sum()
    assert np.abs(split.sizes - without.sizes).sum() == 2 * lacking
    with pytest.raises(UserError, match="lower it"):
        partition.dirichlet(0.05, least=7).over(SKEWED, 90, seed)


def test_a_small_alpha_concentrates_labels_and_a_large_one_spreads_them():
    distances = [
        partition.dirichlet(alpha, allow_empty=True).over(SKEWED, 20, 1).measures(SKEWED, 6).movers_distance
        for alpha in (0.05, 0.5, 5.0, 500.0)
    ]
    assert distances == sorted(distances, reverse=True)


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    """The share of one client of n has variance (n - 1) / (n^2 (n alpha + 1))."""
    way = partition.dirichlet(0.5, allow_empty=True)
    one_label = np.zeros(20_000, int)
    shares = np.concatenate([way.over(one_label, 4, seed).sizes for seed in range(400)]) / 20_000
    assert shares.var() == pytest.approx(3 / (16 * 3), rel=0.1)


@pytest.mark.parametrize("law", ["lognormal", "power", "dirichlet"])
def test_quantity_gives_everybody_a_sample_and_somebody_many(law):
    split = partition.quantity(law, 1.0).over(SKEWED, 100, 2)
    assert split.sizes.min() >= 1
    assert split.sizes.max() > 4 * np.median(split.sizes)


@pytest.mark.parametrize("way", [partition.iid(), partition.shards(), partition.dirichlet(0.001), partition.quantity()])
def test_a_client_without_a_sample_is_an_error_unless_asked_for(way):
    clients = 400 if way.kind == "dirichlet" else 601
    with pytest.raises(UserError, match=r"without a sample .*allow_empty=True"):
        way.over(SKEWED, clients, 0)
    allowed = type(way)(**{**way.__dict__, "allow_empty": True})
    assert allowed.over(SKEWED, clients, 0).sizes.min() == 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: partition.dirichlet(0), "alpha is 0"),
        (lambda: partition.dirichlet(float("nan")), "alpha is nan"),
        (lambda: partition.shards(0), "per_client is 0"),
        (lambda: partition.quantity("lognormall"), "did you mean 'lognormal'"),
        (lambda: partition.quantity(shape=-1), "shape is -1"),
        (lambda: partition.natural("larges"), "did you mean 'largest'"),
        (lambda: partition.natural().over(SKEWED, None), "who made each sample"),
        (lambda: partition.natural().over(SKEWED, 4, 0, SKEWED % 3), "only 3 groups"),
        (lambda: partition.build("dirichlett", alpha=1), "did you mean 'dirichlet'"),
        (lambda: partition.build("dirichlet", alhpa=1), "did you mean 'alpha'"),
        (lambda: partition.build("dirichlet"), "needs alpha"),
        (lambda: partition.iid().over(SKEWED, 5).of(5), "client is 5"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


def test_a_file_of_settings_can_name_every_way():
    assert partition.build("labels", per_client=2, size=[5, 9]) == partition.labels(2, size=(5, 9))
    assert partition.names() == ["dirichlet", "iid", "labels", "natural", "quantity", "shards"]
    assert {partition.build(name).kind for name in ("iid", "natural", "quantity", "shards")} <= set(partition.names())


def writers() -> Dataset:
    groups = np.array([7, 3, 7, 7, 9, 3, 9, 9, 9, 1], np.int64)
    samples = Samples(np.zeros((10, 4), np.float32), np.arange(10, dtype=np.int64) % 2, groups)
    return Dataset("written", samples, samples, 2, "by hand")


def test_natural_gives_each_writer_a_client_in_the_order_of_their_numbers():
    split = partition.natural()(writers())
    assert [split.of(client).tolist() for client in range(4)] == [[9], [1, 5], [0, 2, 3], [4, 6, 7, 8]]


def test_natural_takes_the_largest_the_first_or_random_writers():
    assert partition.natural()(writers(), 2).sizes.tolist() == [3, 4]
    assert partition.natural("first")(writers(), 2).sizes.tolist() == [1, 2]
    seen = {tuple(partition.natural("random")(writers(), 2, seed).sizes) for seed in range(40)}
    assert len(seen) == 6


@given(st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=12).filter(any))
@settings(deadline=None)
def test_counts_and_measures_agree_with_plain_loops(held):
    labels = np.array([label for part in held for label in part])
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in held])])
    split = partition.Partition(np.arange(len(labels)), offsets)
    counts = [[part.count(label) for label in range(5)] for part in held]
    assert split.counts(labels, 5).tolist() == counts

    filled = [part for part in held if part]
    entropies, distances = [], []
    for part in filled:
        shares = [part.count(label) / len(part) for label in range(5)]
        entropies.append(-sum(share * np.log(share) for share in shares if share > 0))
        distances.append(sum(abs(share - np.mean(labels == label)) for label, share in enumerate(shares)) / 2)
    jaccards = [1 - len(set(a) & set(b)) / len(set(a) | set(b)) for a, b in combinations(filled, 2)]
    found = split.measures(labels, 5)
    assert found.entropy == pytest.approx(np.mean(entropies), abs=1e-12)
    assert found.movers_distance == pytest.approx(np.mean(distances), abs=1e-12)
    assert found.jaccard == pytest.approx(np.mean(jaccards) if jaccards else 0.0, abs=1e-12)


def test_sampled_pairs_estimate_the_mean_over_all_pairs(monkeypatch):
    split = partition.dirichlet(0.1, allow_empty=True).over(SKEWED, 60, 0)
    counts, overall = split.counts(SKEWED, 6), np.bincount(SKEWED)
    exact = measure(counts, overall).jaccard
    monkeypatch.setattr("kasync.data.partition.measures._ALL_PAIRS_UP_TO", 1)
    assert measure(counts, overall).jaccard == pytest.approx(exact, abs=0.005)


def test_counting_in_stretches_changes_nothing(monkeypatch):
    split = partition.labels(2, size=(1, 5)).over(SKEWED, 50, 0)
    whole = split.counts(SKEWED, 6)
    monkeypatch.setattr("kasync.data.partition.lists._CLIENTS_AT_ONCE", 7)
    assert np.array_equal(whole, split.counts(SKEWED, 6))


def test_the_three_levels_of_the_paper_fit_in_one_picture(tmp_path):
    labels = np.repeat(np.arange(10), 100)
    levels = {f"L_num = {level}": partition.labels(level).over(labels, 3000, 0) for level in (1, 5, 10)}
    draw(tmp_path / "levels.png", levels, labels, show=24)
    assert (tmp_path / "levels.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("clients", [1, 2, 40])
def test_a_partition_draws_itself_even_with_empty_clients(tmp_path, clients):
    split = partition.dirichlet(0.01, allow_empty=True).over(SKEWED, clients, 0)
    split.picture(tmp_path / "one.png", SKEWED)
    assert (tmp_path / "one.png").stat().st_size > 5000


def test_a_partition_says_what_it_is():
    assert repr(partition.labels(1).over(SKEWED % 2, 3, 0)).startswith(
        "Partition(labels(per_client=1, size=(10, 49)): 3 cl"
    )
