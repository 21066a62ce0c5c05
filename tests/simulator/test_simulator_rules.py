"""The simulator equals the naive one, for every rule, both ways to hold staleness and both kinds of work."""

import pytest
import torch
from agreement import agree
from small_worlds import CLIENTS, SETTINGS, finished, mlp, pictures, vectors

from kasync import Gradient, LocalSGD, models, rules, timelines

STEPS = 200
TIMELINE = timelines.uniform(CLIENTS, 3, STEPS, seed=7)
# LeNet compares millions of activations with 0 and with each other; where two are equal but for rounding, autograd
# itself is 3e-4 off the float64 gradient. A small step keeps that below the bound.
GENTLE = {"lr": 0.001}


def test_every_rule_of_the_table_is_tested_here():
    assert SETTINGS.keys() == rules.RULES.keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_rule_gives_what_the_naive_simulator_gives_after_200_steps(name):
    agree(mlp(), vectors(), name, TIMELINE, Gradient(4))


@pytest.mark.parametrize("name", ["kasync_sgd", "wkafl", "fedasync", "ca2fl"])
def test_local_steps_give_what_the_naive_simulator_gives(name):
    agree(mlp(), vectors(), name, TIMELINE.head(50), LocalSGD(3, 0.05, 4))


@pytest.mark.parametrize("name", ["kasync_sgd", "wkafl"])
def test_lenet_gives_what_the_naive_simulator_gives(name):
    agree(models.lenet(), pictures(), name, timelines.uniform(6, 2, 40, seed=2), Gradient(3), more=GENTLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kasync_sgd", "wkafl", "twafl", "sasgd", "fedbuff"])
def test_lenet_gives_what_the_naive_simulator_gives_after_200_steps(name):
    agree(models.lenet(), pictures(), name, timelines.uniform(6, 2, STEPS, seed=2), Gradient(3), more=GENTLE)


def test_lenet_with_local_steps_gives_what_the_naive_simulator_gives():
    agree(models.lenet(), pictures(), "fedasync", timelines.uniform(6, 2, 20, seed=2), LocalSGD(2, 0.01, 3))


def test_every_seed_draws_its_own_batches():
    params = [
        finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE.head(10), seed=seed)[1].params for seed in (0, 1)
    ]
    assert (params[0] - params[1]).abs().max() > 1e-4


def test_the_model_that_was_given_is_left_as_it_was():
    model = mlp()
    before = torch.nn.utils.parameters_to_vector(model.parameters()).clone()
    _, simulation = finished(model, vectors(), rules.kasync_sgd(0.1), TIMELINE.head(20))
    assert torch.equal(torch.nn.utils.parameters_to_vector(model.parameters()), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.equal(simulation.params, before)


def test_the_trained_parameters_can_be_loaded_into_a_model():
    _, simulation = finished(mlp(), vectors(), rules.kasync_sgd(0.1), TIMELINE.head(20))
    loaded = simulation.load_into(mlp(seed=9))
    assert torch.equal(torch.nn.utils.parameters_to_vector(loaded.parameters()), simulation.params)
