"""A run becomes a folder that survives interruption at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch

from kasync import files, lock
from kasync.errors import UserError
from kasync.experiments.runner import CHECKPOINT, Stopped, Watch, run
from kasync.experiments.settings import Choice, RunSettings

SAME = ("metrics.csv", "steps.npz")
CLOCKED = ("seconds", "steps_per_second", "memory")  # of a summary: not the run's, the machine's


def numbers(folder):
    """All a run says, but for how long it took."""
    summary = json.loads((folder / "summary.json").read_text())
    told = {name: value for name, value in summary.items() if name not in CLOCKED}
    with np.load(folder / "steps.npz", allow_pickle=False) as arrays:
        return told, (folder / "metrics.csv").read_text(), {name: arrays[name].tolist() for name in arrays}


def test_a_run_leaves_settings_metrics_steps_and_summary_and_nothing_else(small, tmp_path):
    summary = run(small, tmp_path / "run", keep_model=True)
    found = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert found == ["final.npz", "metrics.csv", "run.toml", "steps.npz", "summary.json"]
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 10
    assert summary["evaluations"] == 10
    assert summary["timeline"]["clients"] == 20
    made = tomllib.loads((tmp_path / "run" / "run.toml").read_text())["made"]
    assert made["device"].startswith("CPU")
    assert made["source"].startswith("synthetic")


def test_the_shares_in_steps_npz_add_up(small, tmp_path):
    run(small, tmp_path)
    with np.load(tmp_path / "steps.npz", allow_pickle=False) as arrays:
        assert arrays["staleness_count"].sum() == 40 * 4
        assert arrays["staleness_weight"].sum() == pytest.approx(40, rel=1e-5)
        assert arrays["weight_count"].sum() == 40 * 4
        assert arrays["selected_count"].sum() == arrays["predominant_count"].sum() == 40
        assert arrays["deliveries"].sum() == 40 * 4
        for name in ("label_samples", "label_deliveries", "label_weight"):
            assert arrays[name].sum() == pytest.approx(1, rel=1e-5)


def test_a_finished_run_is_not_made_again(small, tmp_path):
    run(small, tmp_path)
    told = []
    run(small, tmp_path, Watch(tell=told.append))
    assert told == []


def test_the_settings_beside_a_run_repeat_it_exactly(small, tmp_path):
    run(small, tmp_path / "one")
    run(RunSettings.read(tmp_path / "one" / "run.toml"), tmp_path / "two")
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


def test_a_run_that_was_stopped_continues_to_the_same_numbers(small, tmp_path):
    run(small, tmp_path / "whole")
    count = iter(range(1000))
    with pytest.raises(Stopped):
        run(small, tmp_path / "parts", Watch(stop=lambda: next(count) == 20), checkpoint_every=0.0)
    assert (tmp_path / "parts" / CHECKPOINT).exists()
    run(small, tmp_path / "parts")
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "parts")
    assert not (tmp_path / "parts" / CHECKPOINT).exists()


def test_a_folder_of_another_run_is_refused(small, tmp_path):
    run(small, tmp_path)
    with pytest.raises(UserError, match="other settings \\(seed\\)"):
        run(replace(small, seed=1), tmp_path)


def test_a_run_whose_data_are_missing_leaves_no_folder_behind(small, tmp_path):
    nowhere = replace(small, dataset="cifar10", model="lenet", root=str(tmp_path / "nowhere"))
    mine = tmp_path / "mine"
    mine.mkdir()
    for folder in (tmp_path / "new", mine):
        with pytest.raises(UserError, match="cifar10 needs"):
            run(nowhere, folder)
    assert not (tmp_path / "new").exists()
    assert mine.is_dir()


def test_a_checkpoint_of_another_version_is_refused_with_what_to_do(small, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(b"an old format")
    with pytest.raises(UserError, match="delete it to start again"):
        run(small, tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(small, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        run(small, tmp_path / "file" / "run")


def test_a_replayed_timeline_travels_with_the_run(small, tmp_path):
    from kasync import timelines

    timelines.save(timelines.uniform(20, 4, 40, seed=9), tmp_path / "saved.npz")
    settings = replace(small, arrivals=Choice("file", {"path": str(tmp_path / "saved.npz")}))
    run(settings, tmp_path / "one")
    (tmp_path / "saved.npz").unlink()
    run(RunSettings.read(tmp_path / "one" / "run.toml"), tmp_path / "two")
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


def test_without_a_rule_only_the_timeline_is_measured(small, tmp_path):
    summary = run(replace(small, rule=Choice("none")), tmp_path)
    assert summary["bound"] == pytest.approx(3.0)  # (4/40)(1 + 5) 5
    assert summary["held"] >= summary["bound"]
    assert not (tmp_path / "metrics.csv").exists()


PROGRAM = """
import sys
from pathlib import Path
from kasync.experiments.runner import run, Watch
from kasync.experiments.settings import RunSettings
import time
slow = len(sys.argv) > 3
run(RunSettings.read(Path(sys.argv[1])), Path(sys.argv[2]),
    Watch(tell=lambda record: time.sleep(0.02) if slow else None), checkpoint_every=0.0)
"""


def start(settings_file, folder, *more):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(settings_file), str(folder), *more])


def wait_for(path, seconds=60.0):
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.01)


@pytest.fixture
def written(small, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(files.toml_text(replace(small, steps=400).resolved().table()))
    return path


def test_killed_twice_a_run_still_gives_the_same_numbers(written, tmp_path):
    run(RunSettings.read(written), tmp_path / "whole")
    folder = tmp_path / "killed"
    for _ in range(2):
        process = start(written, folder, "slow")
        wait_for(folder / CHECKPOINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / CHECKPOINT).exists(), "the run was over before it was killed"
        assert not (folder / "summary.json").exists()
    run(RunSettings.read(written), folder)
    assert numbers(folder) == numbers(tmp_path / "whole")


def test_a_second_process_is_told_who_works_in_the_folder(written, tmp_path):
    folder = tmp_path / "shared"
    process = start(written, folder, "slow")
    try:
        wait_for(folder / CHECKPOINT)
        with pytest.raises(UserError, match=f"in use by process {process.pid} on"):
            run(RunSettings.read(written), folder)
    finally:
        process.kill()
        process.wait()
    with lock.held(folder):  # the dead one's lock is no lock
        assert json.loads((folder / lock.NAME).read_text())["pid"] == os.getpid()


def test_a_full_disk_is_a_sentence_and_leaves_no_half_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        files.write(tmp_path / "metrics.csv", "step")
    assert list(tmp_path.iterdir()) == []


def test_a_run_ends_at_the_first_evaluation_with_enough_accepted_steps(small, tmp_path):
    settings = replace(small, rule=Choice("zeno", {"lr": 0.05, "slack": 1.0, "server_batch": 10}), k=1, steps=400)
    whole = run(replace(settings, accepted=0), tmp_path / "whole")
    assert 0 < whole["accepted"]["steps"] < 400
    assert whole["accepted"]["share"] == whole["accepted"]["steps"] / 400
    half = whole["accepted"]["steps"] // 2
    summary = run(replace(settings, accepted=half), tmp_path / "half")
    steps = summary["timeline"]["steps"]
    assert half <= summary["accepted"]["steps"] <= half + 4
    assert steps < 400
    ours, all_of_it = ((tmp_path / name / "metrics.csv").read_text() for name in ("half", "whole"))
    assert all_of_it.startswith(ours)
    assert summary["evaluations"] == steps // 4


def test_the_record_says_the_precision_that_was_asked_for_whatever_another_thread_does(small, tmp_path, monkeypatch):
    from kasync.experiments import runner

    real = runner.ready

    def ready(settings):  # another thread's rule, somewhere between opening and describing the run
        torch.set_float32_matmul_precision("high")
        return real(settings)

    monkeypatch.setattr(runner, "ready", ready)
    try:
        run(small, tmp_path)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert tomllib.loads((tmp_path / "run.toml").read_text())["precision"] == "float32"
