"""A program that is killed again and again ends like one that was not, nothing lost, doubled or left over."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loopback import Processes

pytest.importorskip("flwr")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
PROGRAMS = ["simulate", "simulate, dropout", "reproduce", "tune", "flower, all", "flower, two of three"]
HUNTER = str(Path(__file__).with_name("killing.py"))


def hunted(kills: int, folder: Path, programs: list[str], **environment: str) -> dict[str, dict]:
    """What the hunter saw of each program; it is a process of its own, since it forks."""
    words = [sys.executable, HUNTER, str(kills), str(folder), *programs]
    everything = {**os.environ, **environment}
    done = subprocess.run(words, capture_output=True, text=True, timeout=3000, check=False, env=everything)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row.pop("program"): row for row in rows}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return hunted(2, tmp_path_factory.mktemp("killed"), PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_a_few_times_it_ends_as_if_nothing_had_happened(program, few):
    assert few[program]["wrong"] == []
    assert few[program]["kills"] >= 2


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_sixty_times_it_ends_as_if_nothing_had_happened(program, tmp_path, capsys):
    told = hunted(60, tmp_path, [program])[program]
    with capsys.disabled():
        print(f"\n{program}: {told['kills']} kills in {told['campaigns']} campaigns, {told['seconds']} s")
    assert told["wrong"] == []
    assert told["kills"] >= 60


@pytest.fixture
def cluster(tmp_path):
    """The address of a Ray cluster with three clients; afterwards nothing of it is left."""
    pytest.importorskip("ray")
    processes = Processes(tmp_path)
    here = str(Path(__file__).parent)
    words = [sys.executable, str(Path(here) / "ray_clients.py")]
    environment = {**processes.environment, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    keeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    yield keeper.stdout.readline().strip()
    keeper.communicate(timeout=120)
    until = time.monotonic() + 120
    while left := processes.all():
        if time.monotonic() > until:
            processes.kill(left)
            pytest.fail(f"{len(left)} processes of the cluster were left")
        time.sleep(0.2)


@pytest.mark.long
def test_a_ray_server_killed_fifty_times_ends_as_if_nothing_had_happened(cluster, tmp_path, capsys):
    told = hunted(50, tmp_path, ["ray"], KASYNC_RAY=cluster)["ray"]
    with capsys.disabled():
        print(f"\nray: {told['kills']} kills in {told['campaigns']} campaigns, {told['seconds']} s")
    assert told["wrong"] == []
    assert told["kills"] >= 50


DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from ray_clients import SIZE, Marking
from kasync import rules
from kasync.live.ray import RayFederation, WarmClients

with WarmClients([Marking(number) for number in range(3)]) as clients:
    federation = RayFederation(rules.kasync_sgd(1.0), torch.zeros(SIZE), 3, clients, checkpoint=sys.argv[2])
    for update in federation.run(30):
        print(update.number, flush=True)
"""


@pytest.mark.long
def test_a_killed_ray_server_that_started_its_own_clients_leaves_no_process(tmp_path):
    pytest.importorskip("ray")
    processes = Processes(tmp_path)
    here = str(Path(__file__).parent)
    environment = {**processes.environment, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    words = [sys.executable, "-c", DRIVER, here, str(tmp_path / "state")]
    for upto in (3, 11):
        driver = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        while int(driver.stdout.readline()) < upto:
            pass
        driver.kill()
        driver.communicate()
        until = time.monotonic() + 180  # Ray looks for its driver now and then
        while processes.all():
            assert time.monotonic() < until, "processes were left"
            time.sleep(0.2)
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == "30"
    assert int(done.stdout.splitlines()[0]) >= 11
