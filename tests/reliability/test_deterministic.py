"""Same seed, same numbers: in another process, on other threads, held differently, interrupted or not.

CPU against GPU: tests/simulator/test_cuda.py, within the tolerances of tests/simulator/agreement.py.
"""

import hashlib
import json
import subprocess
import sys

import pytest
import torch
from small_worlds import CLIENTS, make_rule, mlp, vectors

from kasync import Gradient, LocalSGD, faults, simulate, timelines

WAYS = [
    {"threads": 1, "hold": "gradients"},
    {"threads": 2, "hold": "gradients"},
    {"threads": 3, "hold": "versions"},
    {"threads": 1, "hold": "versions", "evaluate_every": 7},
    {"threads": 2, "hold": "gradients", "stop": 23},
    {"threads": 1, "hold": "versions", "stop": 30},
]
RUNS = {"wkafl": Gradient(4), "ca2fl": LocalSGD(2, 0.05, 4), "fadas": Gradient(2)}


def numbers(name: str, folder, threads: int, hold: str, evaluate_every: int = 10, stop: int = 0) -> str:
    """A digest of every loss, weight and staleness, and of the model at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    spoilt = [faults.FlipSign(0.2), faults.SendNaN(0.2, chance=0.3)]
    wrong = [*spoilt, faults.Stall(0.3, delay=3), faults.DeliverTwice(0.2)]
    data = vectors()

    def run():
        return simulate(
            mlp(),
            data,
            make_rule(name, mlp(), data),
            timelines.uniform(CLIENTS, 3, 40, seed=4),
            RUNS[name],
            seed=9,
            hold=hold,
            evaluate_every=evaluate_every,
            faults=wrong,
            checkpoint=folder / f"{name}-{hold}-{threads}" if stop else None,
            checkpoint_every=0.0,
        )

    for record in run():
        if record.step == stop:
            break
    digest, simulation = hashlib.sha256(), run()
    for record in simulation:
        digest.update(json.dumps([record.loss, record.lr, record.dropped, record.staleness.tolist()]).encode())
        digest.update(record.weights.tobytes())
    digest.update(simulation.params.numpy().tobytes())
    torch.set_num_threads(before)
    return digest.hexdigest()


@pytest.mark.parametrize("name", RUNS)
def test_threads_holds_evaluations_and_interruptions_change_no_bit(name, tmp_path):
    digests = {json.dumps(way): numbers(name, tmp_path, **way) for way in WAYS}
    assert len(set(digests.values())) == 1, digests


def test_another_process_with_another_hash_seed_gives_the_same_bits(tmp_path):
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from test_deterministic import numbers\n"
        "print(numbers('wkafl', Path(sys.argv[1]), threads=2, hold='gradients'))"
    )
    words = [sys.executable, "-c", program, str(tmp_path), *sys.path]
    environment = {"PYTHONHASHSEED": "1", "HOME": "/"}
    other = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    mine = numbers("wkafl", tmp_path, threads=1, hold="versions")
    assert other.stdout.strip() == mine


def test_another_seed_gives_other_numbers(tmp_path):
    data = vectors()

    def end(seed):
        rule = make_rule("wkafl", mlp(), data)
        simulation = simulate(mlp(), data, rule, timelines.uniform(CLIENTS, 3, 20, seed=4), Gradient(2), seed=seed)
        list(simulation)
        return simulation.params

    assert not torch.equal(end(0), end(1))
