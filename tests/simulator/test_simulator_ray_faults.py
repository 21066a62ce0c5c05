"""Three nodes of Ray through whatever happens to them: the final parameters are those of one machine, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_worlds import CLIENTS, Residual, same_records, vectors

from kasync import Local, rules, simulate, timelines

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

from kasync.simulator import ray as farm  # noqa: E402

STEPS = 30
TIMELINE = timelines.uniform(CLIENTS, 3, STEPS, seed=7)
WORK = Local(4, steps=2, lr=0.05, optimizer=torch.optim.Adam, keep=True)


def added(nodes):
    """One more node. Ray gives it 30 seconds to start, which a busy machine may miss once."""
    for _ in range(2):
        with suppress(Exception):
            return nodes.add_node(num_cpus=1)
    return nodes.add_node(num_cpus=1)


@pytest.fixture(scope="module")
def nodes():
    """A head without processors for the driver, and two nodes that workers go to."""
    from ray.cluster_utils import Cluster

    farm.disconnect()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.others = [added(made) for _ in range(2)]
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def expected():
    return finished()


def settings(work=WORK, model=None):
    return model or Residual(), vectors(), rules.ca2fl(0.1, clients=CLIENTS), TIMELINE, work


def finished(**options):
    simulation = simulate(*settings(), evaluate_every=10, **options)
    return list(simulation), simulation.params


def spread(**options):
    return simulate(*settings(), evaluate_every=10, engine="ray", **options)


def same(simulation, records, expected) -> bool:
    return same_records(records, expected[0]) and torch.equal(simulation.params, expected[1])


def killed_at(step, nodes, cluster_change, expected):
    """A run during which the nodes change, once this step was made."""
    simulation = spread()
    records = []
    for record in simulation:
        records.append(record)
        if record.step == step:
            cluster_change(nodes, simulation)
    assert same(simulation, records, expected)
    return simulation


def lose_a_node(nodes, simulation):
    """The node is gone, with the rows that lie there and the pieces under way."""
    nodes.remove_node(nodes.others.pop(0), allow_graceful=False)


def alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def lose_and_add(nodes, simulation):
    lose_a_node(nodes, simulation)
    nodes.others.append(added(nodes))


def kill_a_worker(nodes, simulation):
    busy = next(worker for worker in simulation.run.crew.workers if worker.ready)
    ray.kill(busy.actor)


def lose_the_rows(nodes, simulation):
    """Workers forget what they were asked: as if their answers were lost on the way."""
    crew = simulation.run.crew
    answered, lost = crew._answered, []

    def forgetful(worker, task, done):
        if not lost:
            lost.append(task)
            done = Future()
            done.set_exception(ray.exceptions.ObjectLostError("00" * 28, None, ""))
        return answered(worker, task, done)

    crew._answered = forgetful


def lose_answers_with_their_node(nodes, simulation):
    """A node dies after its worker answered and before the rows were fetched: nobody hears of these tasks again."""
    crew, place = simulation.run.crew, nodes.others[0].node_id
    answered = crew._answered

    def silent(worker, task, done):
        if worker.place != place:
            return answered(worker, task, done)
        if nodes.others[0].node_id == place:
            lose_a_node(nodes, simulation)

    crew._answered = silent


@pytest.mark.parametrize("change", [kill_a_worker, lose_the_rows, lose_and_add])
def test_whatever_is_lost_is_done_again_and_the_bits_stay(change, nodes, expected):
    simulation = killed_at(10, nodes, change, expected)
    assert simulation.run.crew.redone > 0


def test_answers_that_died_with_their_node_are_made_again_elsewhere(nodes, expected):
    simulation = killed_at(10, nodes, lose_answers_with_their_node, expected)
    assert len(nodes.others) == 1
    nodes.others.append(added(nodes))
    assert simulation.run.crew.redone > 0


def test_a_node_that_is_added_gets_workers_and_nothing_is_done_twice(nodes, expected):
    lose_a_node(nodes, None)
    until = time.monotonic() + 60
    while alive() > 2 and time.monotonic() < until:
        time.sleep(0.1)
    simulation = spread()
    seen, records = [], []
    for record in simulation:
        records.append(record)
        seen.append(len(simulation.run.crew.workers))
        if record.step == 5:
            nodes.others.append(added(nodes))
            nodes.wait_for_nodes()
            until = time.monotonic() + 60
            while len(simulation.run.crew.workers) < 2 and time.monotonic() < until:
                time.sleep(0.1)
    assert seen[0] == 1
    assert seen[-1] == 2
    assert same(simulation, records, expected)
    assert simulation.run.crew.made == STEPS * TIMELINE.k


@pytest.mark.parametrize("at", [pytest.param(range(5, 17, 4)), pytest.param(range(1, 30), marks=pytest.mark.long)])
def test_a_node_killed_in_the_middle_of_each_of_many_runs_changes_no_bit(at, nodes, expected):
    """Three runs; `make soak` makes 29, one for every step at which a node can be lost."""
    for step in at:
        killed_at(step, nodes, lose_and_add, expected)


PROGRAM = """
    import sys, time
    sys.path.insert(0, {tests!r})
    import ray
    ray.init(address={address!r}, logging_level="ERROR", log_to_driver=False)
    from test_simulator_ray_faults import spread
    simulation = spread(checkpoint={place!r}, checkpoint_every=0.0)
    for record in simulation:
        print(record.step, flush=True)
        if record.step == 15:
            time.sleep(600)  # killed here, after the checkpoint of step 10
"""


def test_a_driver_that_is_killed_goes_on_from_its_checkpoint(nodes, expected, tmp_path):
    place = tmp_path / "run"
    tests = str(Path(__file__).parent)
    program = textwrap.dedent(PROGRAM.format(tests=tests, address=nodes.address, place=str(place)))
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tests)
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.strip() == "15":  # Ray speaks here too, of nodes that died before
            break
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert "store" in load_file(place)
    simulation = spread(checkpoint=place)
    assert simulation.done == 10
    assert same(simulation, list(simulation), expected)
    records = list(simulate(*settings(), evaluate_every=10, checkpoint=place, hold="versions"))
    assert same_records(records, expected[0])
