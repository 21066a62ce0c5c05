"""A fingerprint tells runs apart that differ in anything that makes their numbers, and nothing else."""

import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from kasync import fingerprint, rules
from kasync.errors import UserError

SCALE = 2.0


def scaled_loss(scale):
    return lambda outputs, labels: scale * functional.cross_entropy(outputs, labels, reduction="none")


def reads_a_constant(x):
    return SCALE * x


def network(activation=nn.ReLU, frozen=False, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(not frozen)
    return model


class Mine(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope, self.layer = slope, nn.Identity()

    def forward(self, x):
        return self.slope * self.layer(x)


@dataclass(frozen=True)
class Setting:
    rate: float
    steps: int


class Empty:
    pass


DIFFERENT = [
    (scaled_loss(0.0), scaled_loss(1.0)),
    (partial(functional.cross_entropy, label_smoothing=0.1), partial(functional.cross_entropy, label_smoothing=0.9)),
    (network(nn.ReLU), network(nn.Tanh)),
    (network(), network(frozen=True)),
    (network(seed=0), network(seed=1)),
    (Mine(1.0), Mine(2.0)),
    (nn.Dropout(0.1), nn.Dropout(0.2)),
    (Setting(0.1, 5), Setting(0.1, 6)),
    (1, 1.0),
    ("1", 1),
    (np.arange(3), np.arange(3.0)),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
    (rules.wkafl(0.1), rules.wkafl(0.2)),
    (rules.fedbuff(0.1), rules.kasync_sgd(0.1)),
    (lambda x: x + 1, lambda x: x + 2),
    (lambda x, a=1: x + a, lambda x, a=2: x + a),
    ({"a": 1}, {"a": 2}),
    ([1, [2]], [[1], 2]),
]


@pytest.mark.parametrize("pair", DIFFERENT, ids=range(len(DIFFERENT)))
def test_what_makes_other_numbers_has_another_fingerprint(pair):
    assert fingerprint.of(pair[0]) != fingerprint.of(pair[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: scaled_loss(0.5),
        network,
        lambda: Mine(1.0),
        lambda: Setting(0.1, 5),
        lambda: {"b": 1, "a": {1, 2, 3}},
        lambda: rules.recall(0.1, clients=3),
        lambda: partial(torch.optim.AdamW, lr=0.1),
        Empty,
    ],
)
def test_what_is_made_twice_alike_has_one_fingerprint(make):
    assert fingerprint.of(make()) == fingerprint.of(make())


def test_tied_weights_are_another_model_than_equal_ones():
    tied, equal = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), None
    equal = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    equal.load_state_dict(tied.state_dict())
    equal[1].load_state_dict(equal[0].state_dict())
    tied[1] = tied[0]
    assert fingerprint.of(tied) != fingerprint.of(equal)


def test_a_global_that_a_function_reads_is_part_of_it(monkeypatch):
    before = fingerprint.of(reads_a_constant)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint.of(reads_a_constant) != before


def test_a_function_that_calls_itself_has_a_fingerprint():
    def down(n):
        return down(n - 1) if n else 0

    assert fingerprint.of(down) == fingerprint.of(down)


def test_it_is_the_same_in_another_process():
    program = (
        "import functools, torch; from kasync import fingerprint, rules\n"
        "def factory(scale):\n    return lambda a, b: scale * (a - b)\n"
        "settings = functools.partial(torch.optim.SGD, lr=.1), {'x', 'y', 'z'}\n"
        "print(fingerprint.of(factory(.5), rules.wkafl(.1), settings))"
    )
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in "12"]
    assert runs[0].stdout == runs[1].stdout != ""


def test_a_thing_without_content_to_read_is_refused_with_the_remedy():
    with pytest.raises(UserError, match="__fingerprint__"):
        fingerprint.of(iter(np.nditer(np.arange(3))))


def test_a_class_may_say_itself_what_matters():
    class Tokenizer:
        def __init__(self, name):
            self.name, self.handle = name, object()

        def __fingerprint__(self):
            return self.name

    assert fingerprint.of(Tokenizer("a")) == fingerprint.of(Tokenizer("a")) != fingerprint.of(Tokenizer("b"))


def test_a_generator_is_what_it_will_draw():
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    assert fingerprint.of(one) == fingerprint.of(other) != fingerprint.of(torch.Generator().manual_seed(2))
    before = fingerprint.of(one)
    torch.rand(1, generator=one)
    assert fingerprint.of(one) != before
