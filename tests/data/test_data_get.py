"""A dataset that came over the network is read like one that was put there by hand."""

import builtins
import socket

import numpy as np
import pytest
from PIL import Image

from kasync.data import get as getting
from kasync.data import load, write
from kasync.data.get import BY_HAND, HUBS, get
from kasync.errors import UserError

RNG = np.random.default_rng(8)


def table(columns, images):
    """A datasets.Dataset in memory whose named columns hold pictures."""
    datasets = pytest.importorskip("datasets")
    made = {
        name: [Image.fromarray(p) for p in values] if name == images else values for name, values in columns.items()
    }
    return datasets.Dataset.from_dict(made).cast_column(images, datasets.Image())


def pixels(count, *shape):
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def test_every_dataset_that_can_be_fetched_can_also_be_put_there_by_hand():
    assert set(HUBS) == set(BY_HAND)


def test_mnist_from_the_hub_is_read_as_mnist(tmp_path):
    parts = {part: (pixels(6, 28, 28), [0, 1, 2, 3, 9, 5]) for part in ("train", "test")}
    write.mnist({p: table({"image": x, "label": y}, "image") for p, (x, y) in parts.items()}, tmp_path / "mnist")
    mnist = load("mnist", tmp_path)
    np.testing.assert_array_equal(mnist.train.inputs[:, 0], parts["train"][0])
    assert mnist.test.labels.tolist() == parts["test"][1]


def test_cifar10_from_the_hub_is_read_as_cifar10(tmp_path):
    parts = {"train": (pixels(10, 32, 32, 3), list(range(10))), "test": (pixels(2, 32, 32, 3), [7, 8])}
    write.cifar10({p: table({"img": x, "label": y}, "img") for p, (x, y) in parts.items()}, tmp_path / "cifar10")
    cifar = load("cifar10", tmp_path)
    np.testing.assert_array_equal(cifar.train.inputs, parts["train"][0].transpose(0, 3, 1, 2))
    assert cifar.test.labels.tolist() == [7, 8]


def test_celeba_from_the_hub_is_read_as_celeba_without_loss(tmp_path):
    people = {"train": [1] * 5, "valid": [2] * 3, "test": [2] * 2}
    pictures = {part: pixels(len(ids), 84, 84, 3) for part, ids in people.items()}
    tables = {
        part: table(
            {"image": pictures[part], "celeb_id": ids, "Smiling": [i % 2 == 0 for i in range(len(ids))]}, "image"
        )
        for part, ids in people.items()
    }
    write.celeba(tables, tmp_path / "celeba")
    celeba = load("celeba", tmp_path)
    assert celeba.train.groups.tolist() == [1] * 4 + [2] * 4
    assert celeba.train.labels.tolist() == [1, 0, 1, 0, 1, 0, 1, 1]
    np.testing.assert_array_equal(celeba.train.inputs[:4], pictures["train"][:4].transpose(0, 3, 1, 2))


def test_femnist_from_the_hub_is_read_as_femnist_with_every_shade(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "CLIENTS_PER_FILE", 2)
    shades = pixels(18, 28, 28)
    shades[0].ravel()[:256] = np.arange(256)
    writers = ["f2", "f1", "f3"] * 6
    characters = [int(x) for x in RNG.integers(0, 62, 18)]
    rows = table({"image": shades, "writer_id": writers, "character": characters}, "image")
    write.femnist({"train": rows}, tmp_path / "femnist")
    assert len(list((tmp_path / "femnist" / "train").iterdir())) == 2
    femnist = load("femnist", tmp_path)
    assert np.bincount(femnist.train.groups).tolist() == [5, 5, 5]
    assert np.bincount(femnist.test.groups).tolist() == [1, 1, 1]
    own = [row for row in range(18) if writers[row] == "f2"]
    trained = [row for place, row in enumerate(own) if place != 4]
    np.testing.assert_array_equal(femnist.train.inputs[femnist.train.groups == 1, 0], shades[trained])
    assert femnist.train.labels[femnist.train.groups == 1].tolist() == [characters[row] for row in trained]


def test_emnist_from_the_hub_are_the_official_files_themselves(tmp_path, monkeypatch):
    from official_files import write_mnist

    names = ("emnist-byclass-train", "emnist-byclass-test")
    made = write_mnist(tmp_path / "hub", names=names, classes=62)
    monkeypatch.setattr(getting, "_check_network", lambda *_: None)
    monkeypatch.setattr(getting, "_file", lambda name, repository, file, folder: tmp_path / "hub" / file)
    assert get("emnist-byclass", tmp_path / "data") == tmp_path / "data" / "emnist-byclass"
    emnist = load("emnist-byclass", tmp_path / "data")
    np.testing.assert_array_equal(emnist.test.labels, made[names[1]][1])


def test_a_hub_that_has_changed_its_splits_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="no split 'train'"):
        write.mnist({"training": []}, tmp_path)


def no_network(*_, **__):
    raise socket.gaierror("no such host")


@pytest.mark.parametrize("name", HUBS)
def test_without_a_network_one_sentence_says_what_to_put_where(tmp_path, monkeypatch, name):
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(getting, "getproxies", dict)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(UserError) as refused:
        get(name, tmp_path)
    sentence = str(refused.value)
    assert f"put {BY_HAND[name]} in {tmp_path / name}" in sentence
    assert "\n" not in sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mnist", "emnist-mnist"])
def test_without_the_extra_one_sentence_says_how_to_install_it(tmp_path, monkeypatch, name):
    ordinary = builtins.__import__

    def without(module, *rest):
        if module.split(".")[0] in ("datasets", "huggingface_hub"):
            raise ImportError(module)
        return ordinary(module, *rest)

    monkeypatch.setattr(getting, "_check_network", lambda *_: None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'kasync\[data\]'"):
        get(name, tmp_path)


def test_names_that_need_no_download_or_do_not_exist_are_told_apart(tmp_path):
    with pytest.raises(UserError, match="digits needs no download"):
        get("digits", tmp_path)
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        get("cifar", tmp_path)
    with pytest.raises(UserError, match="no folder to put mnist in"):
        get("mnist")
