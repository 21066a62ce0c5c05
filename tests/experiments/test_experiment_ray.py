"""A grid on Ray goes on whatever one run raises, and what another node wrote on its own disk comes back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kasync.experiments import ray_engine
from kasync.experiments.display import Display
from kasync.experiments.runner import run

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

FAULTY = """
import os

def model(seed, data):
    raise RuntimeError("no model today")

def dying(seed, data):
    os._exit(1)
"""


@pytest.fixture
def faulty(tmp_path):
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    return path


def test_a_run_that_raises_anything_or_loses_its_process_is_marked_and_the_grid_goes_on(small, faulty, tmp_path):
    table = {
        "sound": small,
        "raises": replace(small, model=f"{faulty}:model"),
        "dies": replace(small, model=f"{faulty}:dying"),
        "also sound": replace(small, seed=1),
    }
    runs = {name: settings.resolved() for name, settings in table.items()}
    failed = dict(ray_engine.make_all(runs, tmp_path, Display(), 1, None))
    assert set(failed) == {"raises", "dies"}
    assert failed["raises"].startswith("RuntimeError: no model today (see ")
    assert "no model today" in (tmp_path / "runs" / "raises" / "error.txt").read_text()
    assert "WorkerCrashedError" in failed["dies"]
    assert all((tmp_path / "runs" / name / "summary.json").exists() for name in ("sound", "also sound"))
    assert not list((tmp_path / "runs").glob(".seen-*"))


def another_disk(folder: Path, address: str) -> subprocess.Popen[bytes]:
    """A node of its own that sees another disk at this folder."""
    start = f"mount -t tmpfs none '{folder}' && exec ray start --address={address} --num-cpus=1 --block"
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    return subprocess.Popen(["unshare", "--mount", "sh", "-c", start], env={**os.environ, "PATH": paths}, **quiet)


def can_unshare() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs root and mount namespaces")
def test_results_on_another_nodes_disk_come_back_and_a_begun_run_goes_on_there(small, faulty, tmp_path):
    from ray.cluster_utils import Cluster

    out = tmp_path / "out"
    out.mkdir()
    sound = replace(small, faults=()).resolved()
    begun = replace(small, seed=3).resolved()
    folder = out / "runs" / "begun"
    expected = {name: run(settings, tmp_path / name) for name, settings in (("sound", sound), ("begun", begun))}
    shutil.copytree(tmp_path / "begun", folder)
    for name in ("summary.json", "metrics.csv", "steps.npz"):
        (folder / name).unlink()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node = another_disk(out, made.address)
    try:
        ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
        until = time.monotonic() + 120
        while ray.cluster_resources().get("CPU", 0) < 1 and time.monotonic() < until:
            time.sleep(0.2)
        elsewhere = replace(small, model=f"{faulty}:model").resolved()
        runs = {"sound": sound, "begun": begun, "raises": elsewhere}
        failed = dict(ray_engine.make_all(runs, out, Display(), 1, made.address))
    finally:
        ray.shutdown()
        os.killpg(node.pid, 9)
        node.wait()
        made.shutdown()
    assert list(failed) == ["raises"]
    assert str(out / "runs" / "raises" / "error.txt") in failed["raises"]
    assert "no model today" in (out / "runs" / "raises" / "error.txt").read_text()
    for name in ("sound", "begun"):
        assert (out / "runs" / name / "metrics.csv").read_text() == (tmp_path / name / "metrics.csv").read_text()
        with np.load(out / "runs" / name / "steps.npz") as ours, np.load(tmp_path / name / "steps.npz") as theirs:
            assert all(np.array_equal(ours[each], theirs[each], equal_nan=True) for each in theirs)
        assert expected[name]["final_accuracy"] is not None
