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

limit, parameters, clients, k, kind, hold, rule, network = sys.argv[1:]
parameters, clients, k = int(parameters), int(clients), int(k)
rng = np.random.default_rng(0)
torch.set_num_threads(2)
if network == "dense":
    width, classes = max(2, round((parameters / 2) ** 0.5)), 2
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
    make = lambda n: (rng.normal(size=(n, width)).astype(np.float32), rng.integers(0, 2, n))
elif network == "tokens":  # few parameters, large outputs
    classes = parameters // 128
    model = nn.Sequential(nn.Embedding(classes, 64), nn.Linear(64, classes))
    make = lambda n: (rng.integers(0, classes, (n, 32)), rng.integers(0, classes, (n, 32)))
else:  # a chain of convolutions: large activations
    width, classes = max(2, round((parameters / 18) ** 0.5)), 2
    layers = [nn.Conv2d(before, width, 3, padding=1) for before in (3, width, width)]
    model = nn.Sequential(
        *(part for layer in layers for part in (layer, nn.ReLU(), nn.MaxPool2d(2))), nn.Flatten(),
        nn.Linear(width * 64, 2),
    )
    make = lambda n: (rng.integers(0, 256, (n, 3, 64, 64), dtype=np.uint8), rng.integers(0, 2, n))
held = data.from_arrays(
    *make(clients * 4), *make(300 if network == "tokens" else 4),
    list(np.arange(clients * 4).reshape(clients, 4)), classes=classes,
)
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

CASES = [  # MiB beyond what the model takes, parameters, clients, k, work, hold, rule, network (dense)
    (400, 100_000, 200, 10, "gradient", "auto", "fedbuff"),
    (400, 1_000_000, 50, 5, "steps", "auto", "wkafl"),
    (600, 10_000_000, 20, 5, "adam", "auto", "fedbuff"),
    (300, 10_000_000, 100, 5, "gradient", "auto", "ca2fl"),
    (500, 100_000_000, 10, 3, "gradient", "auto", "fedbuff"),
    (900, 4_000_000, 20, 4, "gradient", "auto", "fedbuff", "tokens"),
    (300, 300_000, 40, 10, "gradient", "auto", "fedbuff", "pictures"),
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
    (8000, 300_000_000, 4, 1, "gradient", "auto", "fedbuff"),
    (1500, 8_000_000, 20, 4, "adam", "auto", "fedbuff", "tokens"),
    (500, 8_000_000, 20, 4, "steps", "auto", "wkafl", "tokens"),
    (800, 1_000_000, 100, 10, "gradient", "auto", "wkafl", "pictures"),
    (150, 1_000_000, 100, 10, "steps", "auto", "fedbuff", "pictures"),
]


def outcome(case) -> str:
    """How a run in a process of its own ends, under a limit on its private memory."""
    words = map(str, (*case, "dense")[:8])
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    print(case, ran.stdout, end="")
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
