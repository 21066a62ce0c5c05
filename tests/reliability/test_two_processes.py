"""Two processes in one folder: one works, the other names who holds it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from kasync import files, lock
from kasync.errors import UserError
from kasync.experiments.runner import run
from kasync.experiments.settings import Choice, RunSettings

SETTINGS = RunSettings(
    dataset="synthetic",
    clients=20,
    k=4,
    steps=60,
    evaluate_every=4,
    partition=Choice("iid"),
    rule=Choice("wkafl", {"lr": 0.05}),
)
RUNNER = """
import sys, time
from pathlib import Path
from kasync.errors import UserError
from kasync.experiments.runner import Watch, run
from kasync.experiments.settings import RunSettings

settings = RunSettings.read(Path(sys.argv[1])).resolved()
print("ready", flush=True)
sys.stdin.readline()
try:
    run(settings, Path(sys.argv[2]), Watch(tell=lambda record: time.sleep(0.01)))
    print("made")
except UserError as problem:
    print(problem)
"""


def start(settings: Path, folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", RUNNER, str(settings), str(folder)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(files.toml_text(SETTINGS.resolved().table()))
    return path


def test_of_three_that_start_together_one_works_and_the_others_name_it(settings, tmp_path):
    folder = tmp_path / "run"
    processes = [start(settings, folder) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = {process.pid: process.communicate(timeout=120)[0].strip() for process in processes}
    (worker,) = [pid for pid, text in said.items() if text == "made"]
    for pid, text in said.items():
        if pid != worker:
            assert f"in use by process {worker} on " in text
            assert text.endswith("choose another folder with --out.")
    run(SETTINGS, tmp_path / "alone")
    assert (folder / "metrics.csv").read_text() == (tmp_path / "alone" / "metrics.csv").read_text()
    assert not (folder / lock.NAME).exists()


def test_a_killed_holder_holds_nothing_and_leaves_nothing(settings, tmp_path):
    folder = tmp_path / "run"
    process = start(settings, folder)
    process.stdin.write("go\n")
    process.stdin.flush()
    until = time.monotonic() + 120
    while not (folder / "run.toml").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert json.loads((folder / lock.NAME).read_text())["pid"] == process.pid
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (folder / f".metrics.csv.{process.pid}.1.part").write_text("half a fi")
    run(SETTINGS, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.csv", "run.toml", "steps.npz", "summary.json"]


def test_what_a_life_left_that_was_killed_just_before_its_end_is_cleared_away(tmp_path):
    """Found by killing grids: the summary was there, so nobody looked into the folder again."""
    from kasync.experiments import grid

    settings = SETTINGS.resolved()
    folder = tmp_path / "runs" / settings.name
    run(settings, folder)
    left = [lock.NAME, ".summary.json.1.2.part", "checkpoint.safetensors", "checkpoint.safetensors.999999999.tmp"]
    for name in left:
        (folder / name).write_text("left")
    grid.make([settings], tmp_path)
    assert not any((folder / name).exists() for name in left)


def test_a_folder_in_use_is_not_tidied_under_its_user(tmp_path):
    from kasync.experiments.runner import tidy

    run(replace(SETTINGS, steps=4), tmp_path)
    with lock.held(tmp_path):
        (tmp_path / ".metrics.csv.1.2.part").write_text("being written")
        tidy(tmp_path)
        assert (tmp_path / ".metrics.csv.1.2.part").exists()
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()


def test_a_checkpoint_being_written_by_a_living_process_is_not_cleared_away(tmp_path):
    from kasync.checkpoint import Checkpoint

    alive, dead = os.getppid(), 999_999_999
    for pid in (alive, dead, os.getpid()):
        (tmp_path / f"run.ckpt.{pid}.tmp").mkdir()
        (tmp_path / f"run.ckpt.{pid}.tmp" / ".tmpXYZ").write_text("half")
    (tmp_path / "run.ckpt.old.1.tmp").write_text("somebody else's")
    Checkpoint(tmp_path / "run.ckpt", {}).ready()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"run.ckpt.{alive}.tmp", "run.ckpt.old.1.tmp"]


def test_the_deliveries_of_a_run_whose_name_begins_with_ours_are_not_ours(tmp_path):
    import torch

    from kasync import rules
    from kasync.live.deliveries import Delivery
    from kasync.live.journal import Journal
    from kasync.live.loop import Federation
    from kasync.live.terms import Terms

    def founded(name: str) -> Federation:
        terms = Terms(k=2, brings="gradients")
        return Federation(rules.kasync_sgd(1.0), torch.zeros(3), terms, Journal(tmp_path / name, {"run": name}))

    first = founded("state.b")
    first.present([1, 2], 0.0)
    order = first.dispatch(0.0)[0]
    first.collect(order.ticket, order.node, Delivery(torch.ones(3)), 0.0)
    assert founded("state").waiting == []
    assert len(founded("state.b").waiting) == 1


SERVER = """
import sys, torch
from pathlib import Path
from kasync import rules
from kasync.errors import UserError
from kasync.live.journal import Journal
from kasync.live.loop import Federation
from kasync.live.terms import Terms

try:
    Federation(rules.kasync_sgd(1.0), torch.zeros(3), Terms(k=2), Journal(Path(sys.argv[1]), {}))
    print("serving", flush=True)
    sys.stdin.readline()
except UserError as problem:
    print(problem)
"""


def test_a_second_server_on_one_checkpoint_is_told_who_serves_and_a_dead_one_serves_no_more(tmp_path):
    words = [sys.executable, "-c", SERVER, str(tmp_path / "state")]
    first = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "serving\n"
    second = subprocess.run(words, input="\n", capture_output=True, text=True, check=True)
    assert f"state is in use by process {first.pid} on " in second.stdout
    first.send_signal(signal.SIGKILL)
    first.communicate()
    third = subprocess.run(words, input="\n", capture_output=True, text=True, check=True)
    assert third.stdout == "serving\n"
    assert list(tmp_path.iterdir()) == []


def test_one_that_has_just_taken_the_lock_is_named_as_soon_as_it_says_who_it_is(tmp_path):
    path = tmp_path / lock.NAME
    with FileLock(f"{path}{lock.LOCKED}"):
        about = '{"pid": 7, "host": "there", "since": "now"}'
        threading.Timer(0.1, lambda: path.write_text(about)).start()
        with pytest.raises(UserError, match="in use by process 7 on there since now"), lock.held(tmp_path):
            pass
