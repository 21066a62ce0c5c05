"""Without room or permission to write: one sentence, exit code 2, earlier results intact."""

from __future__ import annotations

import os
import resource
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kasync import files, rules, timelines
from kasync.errors import UserError
from kasync.live.deliveries import Delivery
from kasync.live.journal import Journal
from kasync.live.loop import Federation
from kasync.live.terms import Terms

SMALL = ["--dataset", "synthetic", "--clients", "20", "-k", "4", "--partition", "iid", "--steps", "30", "--lr", "0.05"]
MINE = """
title = "mine"
shows = "that a full disk is a sentence"
command = "kasync reproduce mine.toml"
rules = ["wkafl", "fresh"]
seeds = { quick = 1 }
[[quick]]
name = "tiny"
problem = "digits"
run = { dataset = "synthetic", model = "logistic", clients = 20, k = 4, steps = 30, partition = { kind = "iid" } }
"""
COMMANDS = {
    "run": lambda disk, mine: ["run", *SMALL, "--seed", "1", "--out", disk / "other"],
    "compare": lambda disk, mine: ["compare", "--rules", "wkafl", *SMALL[:-2], "--out", disk / "compared"],
    "reproduce": lambda disk, mine: ["reproduce", mine, "--out", disk / "reproduced"],
    "tune": lambda disk, mine: ["tune", mine, "--budget", "1", "--out", disk / "tuned"],
    "report": lambda disk, mine: ["report", disk / "earlier", "--out", disk / "report"],
    "plan": lambda disk, mine: ["plan", "--clients", "50", "-k", "1,5", "--picture", disk / "plan.png"],
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def earlier(disk, kasync, tmp_path):
    """A finished run on the disk, and everything in it."""
    (tmp_path / "mine.toml").write_text(MINE)
    assert kasync("run", *SMALL, "--out", disk.place / "earlier")[0] == 0
    return contents(disk.place / "earlier")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("room", [0, 9000], ids=["no room", "little room"])
def test_a_full_disk_is_a_sentence_and_leaves_earlier_results_alone(command, room, disk, earlier, kasync, tmp_path):
    disk.fill(but=room)
    code, _, told = kasync(*COMMANDS[command](disk.place, tmp_path / "mine.toml"))
    assert code in (1, 2), told  # 1: a grid whose runs failed
    assert "No space left on device" in told
    assert "Traceback" not in told
    assert contents(disk.place / "earlier") == earlier
    left = [path.name for path in disk.place.rglob("*") if path.name.endswith((".part", ".tmp", ".partial"))]
    assert left == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_read_only_folder_is_a_sentence(command, disk, earlier, kasync, tmp_path):
    disk.make_read_only()
    code, _, told = kasync(*COMMANDS[command](disk.place, tmp_path / "mine.toml"))
    assert code == 2, told
    assert "Read-only file system" in told
    assert "Traceback" not in told
    assert contents(disk.place / "earlier") == earlier


def test_once_there_is_room_the_same_command_goes_on(disk, earlier, kasync, tmp_path):
    words = ["run", *SMALL, "--seed", "1", "--out", disk.place / "other"]
    disk.fill(but=9000)
    assert kasync(*words)[0] == 2
    (disk.place / "filler").unlink()
    assert kasync(*words)[0] == 0
    kasync("run", *SMALL, "--seed", "1", "--out", tmp_path / "elsewhere")
    here, there = ((folder / "metrics.csv").read_bytes() for folder in (disk.place / "other", tmp_path / "elsewhere"))
    assert here == there


def founded(path: Path) -> Federation:
    terms = Terms(k=2, brings="gradients")
    return Federation(rules.kasync_sgd(1.0), torch.zeros(3), terms, Journal(path, {"rule": "test"}))


def deliver(federation: Federation, rounds: int) -> None:
    federation.present([1, 2, 3], 0.0)
    for _ in range(rounds):
        for order in federation.dispatch(0.0):
            federation.collect(order.ticket, order.node, Delivery(torch.ones(3)), 0.0)
        while federation.step(0.0):
            pass


def test_a_live_server_on_a_full_disk_stops_with_a_sentence_and_goes_on_later(disk):
    deliver(founded(disk.place / "state"), 3)
    before = founded(disk.place / "state")
    disk.fill()
    with pytest.raises(UserError, match=r"state.* cannot be written"):
        deliver(founded(disk.place / "state"), 1)
    (disk.place / "filler").unlink()
    again = founded(disk.place / "state")
    assert again.updates == before.updates
    assert torch.equal(again.server.params, before.server.params)
    deliver(again, 2)
    assert again.tally["accepted"] == again.tally["used"] + len(again.waiting)


def test_a_timeline_that_does_not_fit_leaves_the_old_one_whole(disk):
    place = disk.place / "timeline.npz"
    timelines.save(timelines.uniform(6, 2, 5), place)
    before = place.read_bytes()
    disk.fill()
    with pytest.raises(UserError, match=r"timeline.npz cannot be written \(No space left on device\)"):
        timelines.save(timelines.uniform(1000, 10, 5000), place)
    assert place.read_bytes() == before
    assert sorted(path.name for path in disk.place.iterdir()) == ["filler", "timeline.npz"]


def test_data_that_cannot_be_kept_is_used_all_the_same(disk, monkeypatch):
    from kasync.data.cache import cached
    from kasync.data.synthetic import load

    disk.fill()
    monkeypatch.setenv("KASYNC_CACHE", str(disk.place / "cache"))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert len(cached("synthetic", [], load).train) > 0
    assert any("is not cached" in str(each.message) for each in heard)


@contextmanager
def small_files():
    """No file can grow beyond 64 bytes meanwhile, be it this process' own output; works without the right to mount."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_may_not_grow_is_a_sentence_too(tmp_path):
    timeline = timelines.uniform(100, 10, 500)
    with small_files(), pytest.raises(UserError, match="cannot be written"):
        files.write(tmp_path / "metrics.csv", "x" * 1000)
    with small_files(), pytest.raises(UserError, match="cannot be written"):
        timelines.save(timeline, tmp_path / "timeline.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_always_full_is_a_sentence(tmp_path):
    os.symlink("/dev/full", tmp_path / "state")
    with pytest.raises(UserError, match="state"):
        deliver(founded(tmp_path / "state" / "below"), 1)
