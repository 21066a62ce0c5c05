"""A new rule is as short as documented and gets everything that the others have."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from deliveries import deliver, generator

from kasync import ServerState, parts

EXAMPLE = Path(__file__).parents[2] / "examples" / "new_rule.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("new_rule", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_new_rule_is_under_fifteen_lines():
    body = {node.name: node for node in ast.parse(EXAMPLE.read_text()).body if hasattr(node, "name")}
    part, rule = body["FavourTheStruggling"], body["fair"]
    decorator = 1
    lines = decorator + sum(node.end_lineno - node.lineno + 1 for node in (part, rule))
    assert lines < 15


def test_the_example_runs_and_the_new_rule_does_what_it_is_for():
    ran = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    mean, fair = (line.split() for line in ran.stdout.splitlines())
    assert float(fair[4]) < 0.8 * float(mean[4])  # the worst client is better off


def test_a_new_rule_can_be_ablated_resumed_and_given_an_optimiser(example):
    rule = example.fair(0.1)
    assert type(rule.without(parts.ClipNorms).parts[0]) is example.FavourTheStruggling
    adam = example.Rule(rule.name, rule.lr, rule.parts, optimizer=partial(torch.optim.Adam, betas=(0.8, 0.9)))
    server, arrivals = ServerState.initial(torch.zeros(24)), deliver(generator(1), dtype=torch.float32)
    after, _ = adam(server, arrivals)
    again, _ = adam(ServerState.from_state_dict(after.state_dict()), arrivals)
    assert torch.equal(again.params, adam(after, arrivals)[0].params)
