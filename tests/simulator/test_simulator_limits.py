"""Under a limit on memory a run finishes, on disk if need be, or is refused before it starts with the numbers."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np, torch
from torch import nn
from kasync import Gradient, LocalSGD, Local, data, rules, simulate, timelines
from kasync.errors import UserError

limit, parameters, clients, k, kind, hold, rule = sys.argv[1:]
parameters, clients, k = int(parameters), int(clients), int(k)
width = max(2, round((parameters / 2) ** 0.5))
rng = np.random.default_rng(0)
held = data.from_arrays(
    rng.normal(size=(clients * 4, width)).astype(np.float32), rng.integers(0, 2, clients * 4),
    rng.normal(size=(4, width)).astype(np.float32), rng.integers(0, 2, 4),
    list(np.arange(clients * 4).reshape(clients, 4)), classes=2,
)
torch.set_num_threads(2)
model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
bound = used + int(limit) * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
adam = Local(4, epochs=1, lr=1e-3, optimizer=torch.optim.AdamW)
works = {"gradient": Gradient(4), "steps": LocalSGD(2, 0.01, 4), "adam": adam}
made = {"fedbuff": rules.fedbuff(0.1), "ca2fl": rules.ca2fl(0.1, clients=clients), "wkafl": rules.wkafl(0.1)}[rule]
timeline = timelines.uniform(clients, k, 3, seed=0)
try:
    run = simulate(model, held, made, timeline, works[kind], hold=hold)
except UserError as refused:
    text = str(refused)
    assert "fit" in text and "iB" in text and "\\n" not in text, text
    print("refused", text)
else:
    *_, last = run
    assert last.step == 3
    print("finished", run.backend, run.memory)
"""

CASES = [  # MiB beyond what the model takes, parameters, clients, k, work, hold, rule
    (400, 100_000, 200, 10, "gradient", "auto", "fedbuff"),
    (400, 1_000_000, 50, 5, "steps", "auto", "wkafl"),
    (600, 10_000_000, 20, 5, "adam", "auto", "fedbuff"),
    (300, 10_000_000, 100, 5, "gradient", "auto", "ca2fl"),
    (500, 100_000_000, 10, 3, "gradient", "auto", "fedbuff"),
]
MORE = [
    (150, 100_000, 2000, 10, "gradient", "gradients", "fedbuff"),
    (400, 100_000, 2000, 10, "steps", "gradients", "ca2fl"),
    (300, 300_000, 300, 20, "adam", "auto", "wkafl"),
    (200, 1_000_000, 100, 10, "gradient", "gradients", "wkafl"),
    (200, 1_000_000, 100, 10, "steps", "versions", "fedbuff"),
    (700, 3_000_000, 60, 10, "adam", "auto", "ca2fl"),
    (250, 3_000_000, 60, 10, "gradient", "auto", "fedbuff"),
    (900, 10_000_000, 30, 5, "steps", "gradients", "wkafl"),
    (1500, 10_000_000, 30, 5, "adam", "versions", "wkafl"),
    (1200, 30_000_000, 20, 4, "gradient", "auto", "fedbuff"),
    (2500, 30_000_000, 20, 4, "adam", "auto", "fedbuff"),
    (3500, 60_000_000, 10, 2, "steps", "auto", "wkafl"),
    (2000, 100_000_000, 8, 2, "gradient", "auto", "fedbuff"),
    (6000, 100_000_000, 8, 2, "gradient", "auto", "fedbuff"),
    (3000, 300_000_000, 4, 1, "gradient", "auto", "fedbuff"),
]


def outcome(case) -> str:
    """How a run in a process of its own ends, under a limit on its private memory."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, case)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_under_a_limit_finishes_or_is_refused_before_it_starts(case):
    assert outcome(case).startswith(("finished", "refused"))


@pytest.mark.long
@pytest.mark.parametrize("case", MORE, ids=str)
def test_more_runs_under_a_limit_finish_or_are_refused_before_they_start(case):
    assert outcome(case).startswith(("finished", "refused"))


@pytest.mark.slow
def test_rows_that_do_not_fit_into_memory_are_held_on_disk():
    assert "(disk)" in outcome((260, 1_000_000, 200, 30, "gradient", "auto", "fedbuff"))
