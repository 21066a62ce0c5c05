"""The real files, where a person has them: counts, histograms, channel means, writers and celebrities."""

import time

import numpy as np
import pytest

from kasync.data import load
from kasync.errors import UserError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real")]


def real(name):
    try:
        return load(name)
    except UserError as refused:
        if f"kasync data get {name}" not in str(refused):
            raise
        pytest.skip(f"{name} is not in the folder of real data")


def test_mnist_is_the_60000_and_10000_digits_everybody_knows_by_539_and_297_writers():
    mnist = real("mnist")
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.train.labels).tolist() == train
    assert np.bincount(mnist.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.train.inputs.mean() == pytest.approx(33.3184, abs=1e-3)
    if mnist.train.groups is None:
        pytest.skip("QMNIST's labels are not there")
    writers = set(mnist.train.groups), set(mnist.test.groups)
    assert (len(writers[0]), len(writers[1]), len(writers[0] & writers[1])) == (539, 297, 0)


def test_the_embedded_digits_are_mnist_digits():
    mnist, digits = real("mnist"), load("digits")
    known = {(picture.tobytes(), label) for picture, label in zip(mnist.train.inputs, mnist.train.labels, strict=True)}
    known |= {(picture.tobytes(), label) for picture, label in zip(mnist.test.inputs, mnist.test.labels, strict=True)}
    ours = {(picture.tobytes(), label) for picture, label in zip(digits.test.inputs, digits.test.labels, strict=True)}
    assert ours <= known


def test_cifar10_has_its_channel_means_and_its_second_load_takes_less_than_a_second():
    cifar = real("cifar10")
    assert np.bincount(cifar.train.labels).tolist() == [5000] * 10
    assert np.bincount(cifar.test.labels).tolist() == [1000] * 10
    means = cifar.train.inputs.mean(axis=(0, 2, 3), dtype=np.float64)
    np.testing.assert_allclose(means, [125.307, 122.950, 113.865], atol=1e-3)
    begun = time.perf_counter()
    assert len(load("cifar10").train) == 50_000
    assert time.perf_counter() - begun < 1.0


def test_celeba_gives_every_celebrity_training_and_test_pictures():
    celeba = real("celeba")
    pictures, celebrities = len(celeba.train) + len(celeba.test), len(set(celeba.train.groups))
    assert set(celeba.test.groups) == set(celeba.train.groups)
    assert celeba.shape == (3, 84, 84)
    assert 0.4 < celeba.train.labels.mean() < 0.6
    if pictures == 10_000:  # the subset of 2,000 celebrities with five pictures each
        assert celebrities == 2_000
        assert np.bincount(np.bincount(celeba.train.groups)).tolist()[4] == 2_000
    else:
        assert (pictures > 195_000, celebrities) == (True, 9_343)


def test_shakespeare_has_its_roles_and_its_alphabet():
    plays = real("shakespeare")
    assert set(plays.test.groups) <= set(plays.train.groups)
    assert plays.train.group_names is not None
    words = plays.vocabulary.decode(plays.train.inputs[:2000])
    assert words.count(" the ") > 500
    if plays.source.startswith("Shakespeare by role (by_role"):  # 84 characters, and the end of a line
        assert (plays.classes, len(plays.train.group_names)) == (85, 1258)


def test_newsgroups_have_their_groups_and_prolific_authors():
    try:
        news, more = load("newsgroups"), load("newsgroups", fewest=5)
    except UserError as refused:
        if "newsgroups_by_author" not in str(refused):
            raise
        pytest.skip("newsgroups is not in the folder of real data")
    assert (news.classes, len(set(news.train.groups)), len(news.train) + len(news.test)) == (20, 272, 4992)
    assert (len(set(more.train.groups)), len(more.train) + len(more.test)) == (758, 8065)
    assert "sci.space" in news.class_names
