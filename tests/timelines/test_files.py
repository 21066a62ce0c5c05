"""Timelines on disk: what is saved is loaded, what is damaged is refused."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
from timeline_kinds import EVERY_KIND

from kasync.errors import UserError
from kasync.timelines import Timeline, clock, durations, load, save, uniform


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_is_saved_is_loaded(tmp_path, kind):
    timeline = EVERY_KIND[kind](20, 3, 30, 1)
    save(timeline, tmp_path / "timeline.npz")
    again = load(tmp_path / "timeline.npz")
    assert again.fingerprint() == timeline.fingerprint()
    assert (again.kind, again.population, again.settings) == (timeline.kind, 20, timeline.settings)
    assert [file.name for file in tmp_path.iterdir()] == ["timeline.npz"]


def test_a_file_cut_off_anywhere_is_refused_by_name(tmp_path):
    file = tmp_path / "timeline.npz"
    save(uniform(50, 5, 20), file)
    whole = file.read_bytes()
    for length in [0, 1, 10, *range(50, len(whole), 97), len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"timeline\.npz"):
            load(file)


def test_a_damaged_byte_never_gives_another_timeline(tmp_path):
    file, timeline = tmp_path / "timeline.npz", uniform(50, 5, 20)
    save(timeline, file)
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with contextlib.suppress(UserError):  # refused, or a byte that nobody reads
            assert load(file).fingerprint() == timeline.fingerprint()


@pytest.mark.parametrize("foreign", [b"hello", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x04N."])
def test_a_foreign_file_is_refused_by_name(tmp_path, foreign):
    file = tmp_path / "other.npz"
    file.write_bytes(foreign)
    with pytest.raises(UserError, match=r"other\.npz"):
        load(file)


def test_a_pickle_is_never_opened(tmp_path):
    file = tmp_path / "pickle.npz"
    np.savez(file, about=np.array([{"format": "kasync timeline"}], dtype=object))
    with pytest.raises(UserError, match=r"pickle\.npz"):
        load(file)


def test_another_format_version_is_refused(tmp_path):
    file = tmp_path / "future.npz"
    timeline = uniform(5, 1, 3)
    about = np.frombuffer(json.dumps({"format": "kasync timeline", "version": 99}).encode(), dtype=np.uint8)
    np.savez(file, about=about, clients=timeline.clients, versions=timeline.versions, times=timeline.times)
    with pytest.raises(UserError, match=r"future\.npz is not a timeline of format 1"):
        load(file)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (([[0, 0]], [[0, 0]], [1.0], 3), "twice"),
        (([[0, 3]], [[0, 0]], [1.0], 3), "outside 0 to 2"),
        (([[0, -1]], [[0, 0]], [1.0], 3), "outside"),
        (([[0], [1]], [[0], [2]], [1.0, 2.0], 3), "newer than its step"),
        (([[0], [1]], [[0], [-1]], [1.0, 2.0], 3), "negative"),
        (([[0], [0]], [[0], [0]], [1.0, 2.0], 3), "older than its last delivery"),
        (([[0], [1]], [[0], [0]], [2.0, 1.0], 3), "times do not increase"),
        (([[0]], [[0]], [float("nan")], 3), "times do not increase"),
    ],
)
def test_an_inconsistent_timeline_is_refused(tmp_path, arrays, sentence):
    file = tmp_path / "wrong.npz"
    clients, versions, times, population = arrays
    save(Timeline(np.array(clients), np.array(versions), np.array(times), population), file)
    with pytest.raises(UserError, match=rf"wrong\.npz is inconsistent \(.*{sentence}"):
        load(file)


def test_missing_files_and_folders_are_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=r"gone\.npz does not exist"):
        load(tmp_path / "gone.npz")
    with pytest.raises(UserError, match="choose a folder that exists"):
        save(uniform(5, 1, 3), tmp_path / "nowhere" / "timeline.npz")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "timeline.npz"
    save(uniform(5, 1, 3), file)
    before = file.read_bytes()
    with pytest.raises(TypeError):
        save(Timeline(np.zeros((1, 1)), np.zeros((1, 1)), np.ones(1), 1, settings={"seed": object()}), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_picture_is_drawn(tmp_path):
    for name, timeline in {
        "plain": clock(100, 5, 200, durations.log_normal(1.0, 1.0)),
        "smallest": uniform(1, 1, 1),
        "fresh": clock(20, 5, 30, durations.exponential(), mode="sync"),
    }.items():
        timeline.picture(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_timelines_import_neither_torch_nor_matplotlib():
    """Their own modules, that is: loaded here without whatever the package's front page brings along."""
    script = (
        "import sys, types, importlib.util as u;"
        "spec = u.find_spec('kasync');"
        "front = types.ModuleType('kasync'); front.__path__ = list(spec.submodule_search_locations);"
        "sys.modules['kasync'] = front;"
        "import kasync.timelines as t; t.uniform(10, 2, 5).summary();"
        "print([m for m in ('torch', 'matplotlib', 'pandas', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
