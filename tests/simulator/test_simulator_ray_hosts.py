"""A run spread over hosts that are 20 ms apart, one of which is lost: the bits of one machine.

`make soak` runs it; it takes minutes and root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
import hosts

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hosts.possible(), reason="needs root, /dev/net/tun and ip netns"),
]
PORT, DELAY = 6390, 0.02  # seconds each way
PROGRAM = """
    import json, sys, time
    sys.path.insert(0, {tests!r})
    import torch
    from test_simulator_ray_faults import settings
    from kasync import fingerprint, models, simulate
    from small_worlds import FEATURES, CLASSES
    torch.manual_seed(0)
    model = models.mlp(FEATURES, (2000, 500), CLASSES)  # a row of 4 MB
    options = {options!r}
    simulation = simulate(*settings(model=model), evaluate_every=10, backend="loop", **options)
    began, story = time.monotonic(), []
    for record in simulation:
        story.append(record.loss)
        print("step", record.step, flush=True)
    crew = getattr(simulation.run, "crew", None)
    told = dict(params=fingerprint.of(simulation.params), story=story, seconds=time.monotonic() - began)
    print("end", json.dumps(told | dict(redone=crew.redone if crew else 0)), flush=True)
"""


def program(**options) -> list[str]:
    tests = str(Path(__file__).parent)
    return [sys.executable, "-c", textwrap.dedent(PROGRAM.format(tests=tests, options=options))]


def end_of(text: str) -> dict:
    return json.loads(next(line[4:] for line in text.splitlines() if line.startswith("end ")))


def test_hosts_that_are_far_from_each_other_make_the_bits_of_one_machine_though_one_is_lost(tmp_path):
    here = subprocess.run(program(hold="versions"), capture_output=True, text=True, check=True)
    expected = end_of(here.stdout)
    begun: list[subprocess.Popen] = []

    def start(host: str, *words: str) -> subprocess.Popen:
        command = ["ip", "netns", "exec", host, str(Path(sys.executable).parent / "ray"), "start", *words, "--block"]
        log = open(tmp_path / f"{host}.log", "w")  # noqa: SIM115
        begun.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        return begun[-1]

    def up(host: str, *words: str) -> subprocess.Popen:
        """A node that has started. Ray gives it 30 seconds, which a busy machine may miss."""
        for _ in range(3):
            node = start(host, *words)
            while node.poll() is None:
                if "Ray runtime started" in (tmp_path / f"{host}.log").read_text():
                    return node
                time.sleep(0.2)
        raise AssertionError((tmp_path / f"{host}.log").read_text())

    with hosts.Network(3, delay=DELAY, loss=0.0) as network:
        addresses, names = network.addresses, network.names
        where = f"{addresses[0]}:{PORT}"
        try:
            up(
                names[0], "--head", f"--port={PORT}", f"--node-ip-address={addresses[0]}", "--num-cpus=0",
                "--include-dashboard=false", f"--temp-dir=/tmp/kasync{os.getpid()}",
            )  # fmt: skip
            nodes = [
                up(names[number], f"--address={where}", f"--node-ip-address={addresses[number]}", "--num-cpus=1")
                for number in (1, 2)
            ]
            told = []
            for lost in (False, True):
                command = ["ip", "netns", "exec", names[0], *program(engine="ray", address=where)]
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
                driver = subprocess.Popen(command, **pipes, start_new_session=True)
                begun.append(driver)
                text = ""
                assert driver.stdout is not None
                for line in driver.stdout:
                    text += line
                    if lost and line.strip() == "step 10":
                        os.killpg(nodes[0].pid, signal.SIGKILL)
                assert driver.wait(600) == 0, text
                told.append(end_of(text))
        finally:
            for one in begun:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
                    one.wait()
    for found in told:
        assert found["params"] == expected["params"]
        assert found["story"] == expected["story"]
    assert told[0]["redone"] == 0
    print(f"\none machine {expected['seconds']:.1f} s, hosts 20 ms apart {told[0]['seconds']:.1f} s")
