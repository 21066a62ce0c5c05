"""CIFAR-10 in each of its official forms gives the same samples, and a pickle never runs."""

import os
import pickle
import struct

import numpy as np
import pytest
from official_files import BATCHES, binary, cifar_batches, pickled, python2_pickle, tar, write_cifar

from kasync.data import load
from kasync.data.cifar10 import read_pickle
from kasync.errors import UserError

PICKLERS = {
    "python 2": python2_pickle,
    **{f"protocol {p}": lambda x, y, p=p: pickled(x, y, p) for p in (3, 4)},
}


def check(dataset, batches):
    pixels = np.concatenate([batches[name][0] for name in BATCHES[:5]]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(dataset.train.inputs, pixels)
    assert dataset.train.labels.tolist() == [label for name in BATCHES[:5] for label in batches[name][1]]
    np.testing.assert_array_equal(dataset.test.inputs.reshape(-1, 3072), batches["test_batch"][0])
    assert dataset.classes == 10


def write_pickles(folder, batches, pickler):
    folder.mkdir(parents=True)
    for name, batch in batches.items():
        (folder / name).write_bytes(pickler(*batch))


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10"])
def test_binary_batches_are_read_from_any_of_the_usual_folders(tmp_path, folder):
    batches = cifar_batches()
    write_cifar(tmp_path / folder, batches)
    check(load("cifar10", tmp_path), batches)


@pytest.mark.parametrize("form", PICKLERS)
def test_python_batches_are_read_whichever_python_wrote_them(tmp_path, form):
    batches = cifar_batches()
    write_pickles(tmp_path / "cifar-10-batches-py", batches, PICKLERS[form])
    dataset = load("cifar10", tmp_path)
    check(dataset, batches)
    assert dataset.source == "CIFAR-10 (python batches)"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("form", ["binary", "python"])
def test_archives_are_read_without_unpacking_them(tmp_path, form, packed):
    batches = cifar_batches()
    if form == "binary":
        members = {f"cifar-10-batches-bin/{name}.bin": binary(*batch) for name, batch in batches.items()}
    else:
        members = {f"cifar-10-batches-py/{name}": python2_pickle(*batch) for name, batch in batches.items()}
    archive = tmp_path / f"cifar-10-{form}.tar{'.gz' if packed else ''}"
    archive.write_bytes(tar({"readme.html": b"hello", **members}, packed))
    check(load("cifar10", tmp_path), batches)
    assert list(tmp_path.iterdir()) == [archive]


def test_our_python_2_pickle_is_one_that_python_reads_too():
    pixels, labels = cifar_batches()["test_batch"]
    batch = pickle.loads(python2_pickle(pixels, labels), encoding="bytes")
    np.testing.assert_array_equal(batch[b"data"], pixels)
    assert batch[b"labels"] == labels


def test_a_batch_cut_between_two_pictures_is_noticed(tmp_path):
    write_cifar(tmp_path, cifar_batches())
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:3073])
    with pytest.raises(UserError, match=r"data_batch_3.bin is not a batch of 4 pictures.*it has 1"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "it has 0 bytes"), (bytes(3072), "it has 3072 bytes"), (b"\x0b" * 3073 * 4, "labels up to 11")],
)
def test_a_wrong_binary_batch_is_named(tmp_path, content, says):
    write_cifar(tmp_path, cifar_batches())
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(UserError, match=rf"test_batch.bin is not .*{says}"):
        load("cifar10", tmp_path)


def test_a_missing_batch_is_named_in_a_folder_and_in_an_archive(tmp_path):
    write_cifar(tmp_path / "a", cifar_batches())
    (tmp_path / "a" / "data_batch_2.bin").unlink()
    with pytest.raises(UserError, match=r"data_batch_2.bin beside the other batches"):
        load("cifar10", tmp_path / "a")
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(tar({"data_batch_1.bin": bytes(3073)}))
    with pytest.raises(UserError, match="data_batch_2 is not in it"):
        load("cifar10", tmp_path)


class Evil:
    """Pickles to a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_a_command_is_refused_and_does_not_run_it(tmp_path, protocol):
    batches = cifar_batches()
    write_pickles(tmp_path / "cifar-10-batches-py", batches, pickled)
    mark = tmp_path / "it ran"
    evil = pickle.dumps({b"data": Evil(f"touch '{mark}'"), b"labels": [1]}, protocol)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").write_bytes(evil)
    with pytest.raises(UserError, match="data_batch_4 is not a pickled CIFAR-10 batch"):
        load("cifar10", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a function of numpy", b"cnumpy\nload\n(U\x01xtR."),
        ("a builtin", b"cbuiltins\neval\n(U\x011tR."),
        ("an instance", b"(ios\nsystem\n."),
        ("a memo with a billion places", b"\x80\x02}r\xff\xff\xff\x7f."),
        ("bytes that are not there", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"."),
        ("a deep nest of tuples as a key", b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."),
        ("an array that is not there", b"\x80\x02}(U\x06labels](K\x01eu."),
        ("a number", b"K\x01."),
        ("nothing", b""),
    ],
)
def test_a_pickle_of_something_else_is_refused(name, content):
    with pytest.raises(UserError, match="batch is not a pickled CIFAR-10 batch"):
        read_pickle(content, "batch")


def test_arrays_of_another_kind_or_size_are_refused():
    labels = [1, 2]
    for wrong in (
        np.zeros((2, 3072)),
        np.zeros((2, 3071), np.uint8),
        np.zeros((3072, 2), np.uint8).T,
        np.zeros(3, np.uint8),
    ):
        with pytest.raises(UserError, match="not a pickled CIFAR-10 batch"):
            read_pickle(pickled(wrong, labels), "batch")


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("kasync.data.cifar10.LARGEST_ARCHIVE", 1 << 20)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(tar({"padding": bytes(4 << 20)}))
    with pytest.raises(UserError, match="unpacks to more than 1 MB"):
        load("cifar10", tmp_path)
