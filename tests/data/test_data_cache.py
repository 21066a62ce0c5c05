"""A dataset is decoded once per content, and a cache file is whole or not there."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kasync.data import Dataset, Samples
from kasync.data.cache import appearing_whole, cached, content_key

pytestmark = pytest.mark.usefixtures("own_cache")
OLD = time.time() - 3600


def dataset(value: int = 3, groups: bool = True) -> Dataset:
    labels = np.array([0, 1])
    samples = Samples(np.full((2, 1, 2, 2), value, np.uint8), labels, labels + 5 if groups else None)
    return Dataset("toy", samples, samples, 2, "made up, for a test")


def counting(value: int = 3):
    calls = []

    def decode() -> Dataset:
        calls.append(value)
        return dataset(value)

    return decode, calls


def test_the_second_load_comes_from_the_cache_with_everything_in_place(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    decode, calls = counting()
    first, second = cached("toy", [source], decode), cached("toy", [source], decode)
    assert calls == [3]
    assert (second.name, second.classes, second.source) == (first.name, 2, "made up, for a test")
    for part in ("train", "test"):
        for field in ("inputs", "labels", "groups"):
            np.testing.assert_array_equal(getattr(getattr(second, part), field), getattr(getattr(first, part), field))
    assert second.train.inputs.dtype == np.uint8
    assert second.train.inputs.flags.writeable


def test_samples_without_groups_come_back_without_groups(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    for _ in range(2):
        assert cached("toy", [source], lambda: dataset(groups=False)).train.groups is None


def test_other_bytes_of_the_same_size_are_decoded_anew_even_if_their_time_is_put_back(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    os.utime(source, (OLD, OLD))
    decode, calls = counting()
    cached("toy", [source], decode)
    source.write_bytes(b"abd")
    os.utime(source, (OLD, OLD))
    cached("toy", [source], decode)
    assert len(calls) == 2


def test_the_same_content_elsewhere_is_not_decoded_again(tmp_path):
    decode, calls = counting()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "source").write_bytes(b"abc")
        cached("toy", [tmp_path / folder / "source"], decode)
    assert len(calls) == 1


def test_a_file_that_has_been_still_is_not_read_again_to_know_its_key(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    monkeypatch.setattr("kasync.data.cache.STILL_NS", -(10**18))  # as if it had lain there for long
    key = content_key("toy", [source], tmp_path / "stamps")
    monkeypatch.setattr("kasync.data.cache.hashlib.file_digest", lambda *_: pytest.fail("read again"))
    assert content_key("toy", [source], tmp_path / "stamps") == key


def test_a_file_written_just_now_is_not_remembered_by_its_time(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    content_key("toy", [source], tmp_path / "stamps")
    assert not (tmp_path / "stamps").exists()


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\xff" * len(b)])
def test_a_damaged_cache_file_is_decoded_and_written_again(tmp_path, own_cache, damage):
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    decode, calls = counting()
    cached("toy", [source], decode)
    (entry,) = own_cache.glob("toy-*.safetensors")
    entry.write_bytes(damage(entry.read_bytes()))
    assert cached("toy", [source], decode).train.inputs[0, 0, 0, 0] == 3
    cached("toy", [source], decode)
    assert len(calls) == 2


def test_a_source_that_cannot_be_decoded_leaves_nothing_in_the_cache(tmp_path, own_cache):
    source = tmp_path / "source"
    source.write_bytes(b"abc")

    def fail() -> Dataset:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached("toy", [source], fail)
    assert not list(own_cache.rglob("toy*"))


def test_a_cache_that_cannot_be_written_is_a_warning_and_not_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"in the way")
    monkeypatch.setenv("KASYNC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="toy is not cached"):
        assert cached("toy", [tmp_path / "file"], dataset).classes == 2


def test_a_writer_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "kept"
    path.write_text("old")

    def fail_half_way() -> None:
        with appearing_whole(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_is_killed_leaves_the_old_file_whole_and_its_rest_is_swept_away_later(tmp_path):
    path = tmp_path / "kept"
    path.write_text("old")
    code = (
        "import os, signal, sys; from pathlib import Path; from kasync.data.cache import appearing_whole\n"
        "with appearing_whole(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert path.read_text() == "old"
    (left,) = (file for file in tmp_path.iterdir() if file != path)
    os.utime(left, (OLD - 10**6, OLD - 10**6))
    with appearing_whole(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_cache_is_in_the_home_folder_unless_named(monkeypatch):
    from kasync.data.cache import cache_folder

    monkeypatch.delenv("KASYNC_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "kasync"
