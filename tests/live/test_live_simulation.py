"""Flower's simulation engine runs the same strategy file, through Flower's own command line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from loopback import APP, Processes, free_port, wait_for

from kasync import timelines

pytestmark = pytest.mark.slow
RULE = '''"""A rule of the user's own, beside the app's package."""

import kasync
from kasync import parts


def fair(lr: float, longest: float = 10.0) -> kasync.Rule:
    return kasync.Rule("fair", lr, (parts.ClipNorms(longest),))
'''


class Simulated:
    """A SuperLink with Flower's simulation engine, and a copy of the example app to run on it."""

    def __init__(self, processes: Processes) -> None:
        self.processes, folder, port = processes, processes.folder, free_port()
        self.app = folder / "app"
        shutil.copytree(APP, self.app, ignore=shutil.ignore_patterns("__pycache__", "keys"))
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        address = ("--host", "127.0.0.1", "--port", str(port))
        superlink = ("flower-superlink", "--insecure", "--simulation", "--disable-runtime-dependency-installation")
        processes.start("superlink", *superlink, *address)
        wait_for("the SuperLink's start", lambda: "running on http" in processes.said("superlink"), 120)

    def run(self, name: str, settings: str, until: str) -> str:
        """What a run with these settings says; it ends, or is ended, once it has said `until`."""
        size = "num-supernodes=6 client-resources-num-cpus=1"
        flwr = ("flwr", "run", self.app, "local", "--stream", "--federation-config", size, "--run-config", settings)
        self.processes.start(name, *flwr)
        wait_for("the end", lambda: until in self.processes.said(name))
        return self.processes.said(name)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    with Processes(tmp_path_factory.mktemp("simulation")) as processes:
        yield Simulated(processes)


def test_the_example_app_learns_in_flowers_simulation_engine(simulated, tmp_path):
    settings = f"num-server-rounds=50 labels-per-client=6 timeline='{tmp_path / 'timeline.npz'}'"
    said = simulated.run("ours", settings, until="final accuracy")
    (accuracy,) = re.findall(r"final accuracy: ([0-9.]+)", said)
    assert float(accuracy) > 0.4  # guessing has 0.1; who arrives first decides on the rest
    timeline = timelines.load(tmp_path / "timeline.npz")
    assert (timeline.steps, timeline.k, timeline.population) == (50, 2, 6)
    assert timeline.staleness.max() > 0


def test_the_apps_config_names_a_rule_of_the_users_own(simulated):
    (simulated.app / "my_rules.py").write_text(RULE)
    said = simulated.run("own", "num-server-rounds=6 rule='my_rules:fair'", until="final accuracy")
    assert "Starting fair: 6 updates" in said
    assert "update 6:" in said


def test_a_misspelt_rule_of_the_users_own_ends_the_run_with_a_sentence(simulated):
    (simulated.app / "my_rules.py").write_text(RULE)
    said = simulated.run("misspelt", "num-server-rounds=6 rule='my_rules:fare'", until="did you mean")
    assert "did you mean 'fair'?" in said
    assert "update 1:" not in said
