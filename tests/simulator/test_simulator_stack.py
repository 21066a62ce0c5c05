"""Runs made together give what each gives alone."""

import pytest
import torch
from small_worlds import CLIENTS, SETTINGS, make_rule, mlp, pictures, vectors
from torch import nn
from torch.nn.functional import cross_entropy

from kasync import Gradient, LocalSGD, models, rules, schedules, simulate, timelines
from kasync.errors import UserError
from kasync.simulator import stackable, together
from kasync.timelines import durations
from kasync.work.layers import Chain
from kasync.work.stacks import StackedChain

STEPS = 40
STACKABLE = [name for name in SETTINGS if rules.facts(name).stackable]


def run(name="wkafl", lr=0.05, seed=0, timeline=None, staleness="true", model=None, data=None, **options):
    model, data = model or mlp(), data or vectors()
    rule = make_rule(name, model, data, lambda *given: None)
    rule = type(rule)(rule.name, lr, rule.parts, rule.optimizer, schedules.Linear(STEPS))
    timeline = timeline or timelines.uniform(CLIENTS, 3, STEPS, seed)
    options = {"evaluate_every": 25, "hold": "gradients", **options}
    return simulate(model, data, rule, timeline, Gradient(4), seed=seed, staleness=staleness, **options)


VARIETY = [
    {"lr": 0.05},
    {"lr": 0.1},
    {"lr": 0.05, "seed": 1},
    {"lr": 0.02, "seed": 1, "staleness": "published-code"},
    {"lr": 0.02, "seed": 2, "staleness": "none"},
    {"lr": 0.05, "timeline": timelines.clock(CLIENTS, 3, STEPS, durations.log_normal(1.0, 1.0), 5)},
    {"lr": 0.05, "timeline": timelines.once_per_round(CLIENTS, 3, STEPS, 5)},
]


def finished(simulation):
    return list(simulation), simulation.params


@pytest.mark.parametrize("name", STACKABLE)
def test_a_stack_gives_what_each_run_gives_alone(name):
    alone = [finished(run(name, **each)) for each in VARIETY]
    stack = [run(name, **each) for each in VARIETY]
    *_, done = together(stack)
    assert done == STEPS
    for (records, params), simulation in zip(alone, stack, strict=True):
        told, stacked = finished(simulation)
        assert (params - stacked).abs().max() < 1e-5 * max(1.0, params.abs().max())
        assert [r.accuracy for r in told] == [r.accuracy for r in records]
        assert [r.loss for r in told] == pytest.approx([r.loss for r in records], abs=1e-5)
        assert [r.staleness.tolist() for r in told] == [r.staleness.tolist() for r in records]
        assert [r.weights.tolist() for r in told] == [pytest.approx(r.weights.tolist(), abs=1e-4) for r in records]


def test_a_network_with_convolutions_is_stacked_too():
    timeline = timelines.uniform(6, 2, 20, seed=2)
    ways = [
        {"lr": 0.001, "seed": seed, "timeline": timeline, "data": pictures(), "model": models.lenet()}
        for seed in (0, 1)
    ]
    alone = [finished(run(**way)) for way in ways]
    stack = [run(**way) for way in ways]
    assert list(together(stack))[-1] == 20
    for (_, params), simulation in zip(alone, stack, strict=True):
        assert (params - simulation.params).abs().max() < 1e-5


NETWORKS = {
    "lenet": lambda: models.lenet(),
    "strides and padding": lambda: nn.Sequential(
        nn.Conv2d(3, 4, (3, 5), stride=(2, 1), padding=(1, 2)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, stride=2, padding=1, bias=False),
        nn.Flatten(),
        nn.Linear(5 * 4 * 8, 10),
    ),
    "many channels": lambda: nn.Sequential(
        nn.Conv2d(3, 40, 5), nn.Conv2d(40, 50, 3), nn.Flatten(), nn.Linear(50 * 26 * 26, 10)
    ),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 20, bias=False), nn.ReLU(), nn.Linear(20, 10)),
}


def several(name, runs=3):
    """Networks of a kind, and their parameters [R, D]."""
    torch.manual_seed(0)
    networks = [NETWORKS[name]() for _ in range(runs)]
    return networks, torch.stack([nn.utils.parameters_to_vector(net.parameters()).detach() for net in networks])


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_at_several_parameters_are_those_at_each(name):
    runs, clients, samples = 3, 2, 4
    networks, params = several(name, runs)
    x, labels = torch.rand(runs * clients * samples, 3, 32, 32), torch.randint(10, (runs * clients * samples,))
    weights = torch.full((len(x),), 1 / samples)

    def loss(outputs, wanted):
        return cross_entropy(outputs, wanted, reduction="none")

    out = params.new_empty(runs * clients, params.shape[1])
    losses = StackedChain(Chain.of(networks[0])).gradients(params, x, labels, weights, loss, out)
    for place in range(runs * clients):
        part = slice(place * samples, (place + 1) * samples)
        net = networks[place // clients]
        value = loss(net(x[part]), labels[part]).mean()
        want = nn.utils.parameters_to_vector(torch.autograd.grad(value, list(net.parameters())))
        assert losses[place].item() == pytest.approx(value.item(), rel=1e-5)
        assert (out[place] - want).abs().max() < 1e-5 * want.abs().max()


@pytest.mark.parametrize("name", NETWORKS)
def test_what_several_networks_make_of_the_same_pictures_is_what_each_makes(name):
    networks, params = several(name)
    x = torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        outputs = StackedChain(Chain.of(networks[0])).outputs(params, x).view(len(networks), len(x), -1)
        for net, told in zip(networks, outputs, strict=True):
            torch.testing.assert_close(told, net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("at_once", [20_000, 22])
def test_each_run_of_a_stack_is_judged_by_its_own_test_set(monkeypatch, at_once):
    monkeypatch.setattr("kasync.simulator.evaluate.STACKED", at_once)  # 22: the 30 samples in two parts
    worlds = [vectors(seed=number) for number in (0, 1, 0)]
    alone = [finished(run(data=world)) for world in worlds]
    stack = [run(data=world) for world in worlds]
    list(together(stack))
    told = [[record.accuracy for record in finished(simulation)[0]] for simulation in stack]
    assert told == [[record.accuracy for record in records] for records, _ in alone]
    assert told[0] == told[2] != told[1]


def test_runs_that_differ_in_more_than_what_arrives_are_refused():
    for other in (run("kasync_sgd"), run(evaluate_every=30), run(timeline=timelines.uniform(CLIENTS, 2, STEPS, 0))):
        with pytest.raises(UserError, match="cannot be stacked"):
            list(together([run(), other]))


def test_losses_of_one_factory_are_not_mixed_in_a_stack():
    def scaled(factor):
        return lambda outputs, labels: factor * nn.functional.cross_entropy(outputs, labels, reduction="none")

    with pytest.raises(UserError, match="cannot be stacked"):
        list(together([run(loss=scaled(0.0)), run(loss=scaled(1.0))]))
    alike = [run(loss=scaled(0.5)), run(loss=scaled(0.5))]
    list(together(alike))
    assert torch.equal(alike[0].params, alike[1].params)


def test_what_needs_more_than_what_arrives_is_made_alone():
    local = simulate(mlp(), vectors(), rules.wkafl(0.1), timelines.uniform(CLIENTS, 3, STEPS, 0), LocalSGD(2, 0.1, 4))
    assert stackable(local) is None
    assert stackable(run(hold="versions")) is None
    assert stackable(run()) is not None
