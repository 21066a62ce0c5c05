"""Flower's simulation engine runs the same strategy file, through Flower's own command line."""

import re

import pytest
from loopback import APP, Processes, free_port, wait_for

from kasync import timelines

pytestmark = pytest.mark.slow


def test_the_example_app_learns_in_flowers_simulation_engine(tmp_path):
    with Processes(tmp_path) as processes:
        port = free_port()
        (tmp_path / "flwr").mkdir()
        (tmp_path / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        address = ("--host", "127.0.0.1", "--port", str(port))
        superlink = ("flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation")
        processes.start("superlink", *superlink, *address)
        wait_for("the SuperLink's start", lambda: "running on http" in processes.said("superlink"), 120)
        settings = f"num-server-rounds=50 labels-per-client=6 timeline='{tmp_path / 'timeline.npz'}'"
        size = "num-supernodes=6 client-resources-num-cpus=1"
        processes.start(
            *("run", "flwr", "run", APP, "local", "--stream"), "--federation-config", size, "--run-config", settings
        )
        wait_for("the end", lambda: "final accuracy" in processes.said("run"))
        said = processes.said("run")
    (accuracy,) = re.findall(r"final accuracy: ([0-9.]+)", said)
    assert float(accuracy) > 0.4  # guessing has 0.1; who arrives first decides on the rest
    timeline = timelines.load(tmp_path / "timeline.npz")
    assert (timeline.steps, timeline.k, timeline.population) == (50, 2, 6)
    assert timeline.staleness.max() > 0
