"""Runs repeated with a witness: it changes nothing, sees what is true, and the theorems are held against it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kasync.errors import UserError
from kasync.experiments.build import chapters, constants_at_start, ready
from kasync.experiments.settings import Choice, RunSettings
from kasync.rules import build
from kasync.simulator import simulate
from kasync.theory import Selection
from kasync.theory.along_runs import Witness, whole_gradient
from kasync.work.loop import flat_parameters
from kasync.work.objective import default_loss

SMALL = RunSettings(
    dataset="synthetic",
    model="logistic",
    clients=20,
    k=4,
    steps=120,
    partition=Choice("iid"),
    rule=Choice("wkafl", {"lr": 0.001, "loss_threshold": 2.2}),
)


@pytest.fixture(scope="module")
def parts():
    return ready(SMALL.resolved())


@pytest.fixture(scope="module")
def stages():
    return chapters(SMALL, looks=40)


def test_the_whole_gradient_is_the_mean_of_the_clients_gradients(parts):
    gradient = whole_gradient(parts.model, parts.data, default_loss(parts.data))
    tensors, rows = parts.data.tensors(), []
    for client in range(parts.data.clients):
        mine = tensors.indices[tensors.offsets[client] : tensors.offsets[client + 1]]
        loss = torch.nn.functional.cross_entropy(parts.model(tensors.inputs[mine].float()), tensors.labels[mine])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(parts.model.parameters()))]))
    assert torch.allclose(gradient(flat_parameters(parts.model)), torch.stack(rows).mean(0), atol=1e-5)


def test_a_witness_changes_nothing(parts):
    witness = Witness(whole_gradient(parts.model, parts.data, default_loss(parts.data)), every=7)
    watched = replace(parts.rule, parts=(*parts.rule.parts, witness))
    ended = []
    for rule in (parts.rule, watched):
        run = simulate(parts.model, parts.data, rule, parts.timeline, parts.work, evaluate_every=120)
        assert len(list(run)) == 120
        ended.append(run.params)
    assert torch.allclose(*ended, atol=1e-6)
    assert sorted(witness.seen) == list(range(0, 120, 7))


def test_a_witness_reads_off_inner_products_what_vectors_would_say():
    from kasync.arrivals import Arrivals
    from kasync.core import ServerState

    torch.manual_seed(0)
    truth, rows = torch.randn(30), torch.randn(5, 30)
    witness = Witness(lambda params: truth, every=1)
    rule = build("kasync_sgd", lr=0.1)
    rule = replace(rule, parts=(*rule.parts, witness))
    rule(ServerState.initial(torch.zeros(30)), Arrivals(rows, torch.zeros(5)))
    told = Selection(np.full(5, 0.2), rows.double().numpy(), rows.double().mean(0).numpy(), truth.double().numpy())
    seen = witness.seen[0]
    assert seen.squared_norm == pytest.approx(float(truth.double().square().sum()))
    for name in ("spread", "squared_length", "ratio", "error"):
        assert getattr(seen, name) == pytest.approx(getattr(told, name), rel=1e-5), name


def test_each_stage_is_held_against_its_own_theorem(stages):
    assert [stage.stage for stage in stages] == [1, 2]
    for stage, theorem in zip(stages, ("Theorem 1", "Theorem 2"), strict=True):
        assert stage.bound.theorem.startswith(theorem)
        assert len(stage.norms) == stage.constants.steps
        if stage.bound.holds:
            assert stage.bound.looseness(stage.norms) >= 1
    assert stages[1].bound.holds


def test_the_bound_after_all_steps_is_the_bound(stages):
    for stage in stages:
        assert stage.after(stage.constants.steps).total == stage.bound.total
        assert stage.after(5).terms["initial_gap"] > stage.bound.terms["initial_gap"]


def test_constants_at_the_start_are_those_of_the_task():
    found = constants_at_start(SMALL)
    assert found.momentum == 0.1
    assert found.batch_size == 8
    assert 1.0 < found.initial_gap < 10.0
    assert found.smoothness > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"optimizer": "adam"}, "plain steps"),
        ({"work": Choice("local_sgd", {"steps": 2, "lr": 0.1, "batch_size": 4})}, "one gradient"),
        ({"rule": Choice("none")}, "trained nothing"),
        ({"rule": Choice("ca2fl", {"lr": 0.01})}, "remembers of clients"),
    ],
)
def test_runs_that_no_theorem_is_about_are_refused(change, sentence):
    with pytest.raises(UserError, match=sentence):
        chapters(replace(SMALL, **change))
