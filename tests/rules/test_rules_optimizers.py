"""A rule with an optimiser does what that optimiser does with its direction; schedules do what they promise."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from deliveries import LAYERS, LENGTH, deliver, generator
from rule_cases import every_rule, make

from kasync import ServerState, rules, schedules
from kasync.optimizers import NAMED, Muon, Plain, takes_layers, wants_arrays

OPTIMIZERS = {
    "Adam": torch.optim.Adam,
    "Adam, other betas": partial(torch.optim.Adam, betas=(0.5, 0.9), amsgrad=True),
    "SGD": torch.optim.SGD,
    "SGD with momentum": partial(torch.optim.SGD, momentum=0.9),
    "SGD with Nesterov's momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "SGD with dampening": partial(torch.optim.SGD, momentum=0.9, dampening=0.5),
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
    "NAdam": torch.optim.NAdam,
    "Adamax": torch.optim.Adamax,
    "AdamW, decaying": partial(torch.optim.AdamW, weight_decay=0.1),
    "SGD with a penalty": partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1),
    "Yogi": NAMED["yogi"],
    "Muon": Muon,
}
EVERYWHERE = ("Adam", "SGD with momentum", "SGD with Nesterov's momentum", "Yogi", "Muon")


def follows(case: str, optimizer) -> None:
    """Take the bare rule's direction at every step, and let the optimiser follow it beside the rule."""
    rule, bare, random = make(case, optimizer=optimizer), replace(make(case), optimizer=Plain), generator(1)
    server = alone = ServerState.initial(torch.randn(LENGTH, generator=random, dtype=torch.float64))
    place = server.params.clone().requires_grad_()
    judge = optimizer([place], lr=1.0, **({"layers": LAYERS} if takes_layers(optimizer) else {}))
    for _ in range(6):
        arrivals = deliver(random)
        alone, step = bare(replace(alone, params=place.detach().clone()), arrivals)
        place.grad = (place.detach() - alone.params) / step.lr
        judge.param_groups[0]["lr"] = float(step.lr)
        judge.step()
        server, _ = rule(server, arrivals)
        torch.testing.assert_close(server.params, place.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", EVERYWHERE)
@every_rule
def test_a_rule_with_an_optimiser_moves_as_that_optimiser_on_its_direction(case, name):
    follows(case, OPTIMIZERS[name])


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in EVERYWHERE])
@pytest.mark.parametrize("case", ["wkafl", "ca2fl"])
def test_every_optimiser_follows_a_rule(case, name):
    follows(case, OPTIMIZERS[name])


@pytest.mark.parametrize("name", EVERYWHERE)
@every_rule
def test_resuming_with_an_optimiser_changes_nothing(case, name):
    rule, random = make(case, optimizer=OPTIMIZERS[name]), generator(2)
    whole = resumed = ServerState.initial(torch.zeros(LENGTH))
    for _ in range(4):
        arrivals = deliver(random, dtype=torch.float32)
        whole, _ = rule(whole, arrivals)
        stored = {name: value.clone() for name, value in resumed.state_dict().items()}
        before = {name: value.clone() for name, value in stored.items()}
        resumed, _ = rule(ServerState.from_state_dict(stored), arrivals)
        assert all(torch.equal(stored[name], before[name]) for name in before)  # nothing given was written into
    assert torch.equal(whole.params, resumed.params)
    assert whole.state_dict().keys() == resumed.state_dict().keys()


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        (partial(torch.optim.Adam, lr=0.1), "lr = 0.1: give it to the rule"),
        (torch.optim.LBFGS, "cannot follow a direction"),
        (torch.optim.SparseAdam, "cannot follow a direction"),
        ("adam", "optimizer = 'adam'"),
    ],
)
def test_an_optimiser_that_cannot_serve_is_refused_when_the_rule_is_made(optimizer, sentence):
    with pytest.raises(ValueError, match=sentence):
        rules.wkafl(0.1, optimizer=optimizer)


@pytest.mark.parametrize("lr", [0.01, 0.9])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_adafactor_gets_the_models_arrays_by_whose_size_it_scales_its_move_and_the_rate(lr, size):
    """As torch's on the arrays: it factors a matrix, measures each array, and takes at most 1/sqrt(t) for the rate."""
    start = size * torch.randn(LENGTH, generator=generator(5), dtype=torch.float64)
    sizes = [math.prod(shape) for shape in LAYERS]
    rule = rules.kasync_sgd(lr, optimizer=torch.optim.Adafactor).shaped(LAYERS)
    server = ServerState.initial(start)
    arrays = [part.view(shape).clone() for part, shape in zip(torch.split(start, sizes), LAYERS, strict=True)]
    judge = torch.optim.Adafactor(arrays, lr=lr)
    for number in range(5):
        arrivals = deliver(generator(number))
        for array, part in zip(arrays, torch.split(arrivals.gradients.mean(0), sizes), strict=True):
            array.grad = part.view(array.shape)
        judge.step()
        resumed = ServerState.from_state_dict({name: value.clone() for name, value in server.state_dict().items()})
        server, _ = rule(resumed, arrivals)
        torch.testing.assert_close(server.params, torch.cat([array.flatten() for array in arrays]))
    assert server.memory["optimizer.0.row_var"].shape != server.memory["optimizer.2.variance"].shape


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_who_looks_at_whole_arrays_or_at_the_rate_gets_them(name):
    assert not wants_arrays(OPTIMIZERS[name])
    assert wants_arrays(torch.optim.Adafactor)


def test_weights_decay_in_proportion_to_the_rate_whatever_is_delivered():
    rule = rules.kasync_sgd(0.5, optimizer=partial(torch.optim.AdamW, weight_decay=0.2))
    arrivals = deliver(generator(6), dtype=torch.float32)
    still = replace(arrivals, gradients=torch.zeros_like(arrivals.gradients))
    server, _ = rule(ServerState.initial(torch.ones(LENGTH)), still)
    torch.testing.assert_close(server.params, torch.full((LENGTH,), 0.9))


@pytest.mark.parametrize("name", [name for name, each in NAMED.items() if each is not None])
def test_every_named_optimiser_can_follow_every_dtype(name):
    for dtype in (torch.float32, torch.float64):
        server = ServerState.initial(torch.ones(LENGTH, dtype=dtype))
        for number in range(3):
            server, _ = rules.kasync_sgd(0.01, optimizer=NAMED[name])(server, deliver(generator(number), dtype=dtype))
        assert server.params.dtype == dtype
        assert bool(server.params.isfinite().all())


def test_a_ready_made_weight_decay_is_left_off():
    plain = rules.kasync_sgd(0.1, optimizer=torch.optim.Adam)
    decaying = rules.kasync_sgd(0.1, optimizer=torch.optim.AdamW)  # decays by default
    server, arrivals = ServerState.initial(torch.ones(LENGTH)), deliver(generator(3), dtype=torch.float32)
    torch.testing.assert_close(decaying(server, arrivals)[0].params, plain(server, arrivals)[0].params)


FACTORS = {  # schedule, and its factor at steps 0, 5, 10 and 25
    "constant": (schedules.Constant(), [1.0, 1.0, 1.0, 1.0]),
    "linear": (schedules.Linear(10, final=0.2), [1.0, 0.6, 0.2, 0.2]),
    "cosine": (schedules.Cosine(10), [1.0, 0.5, 0.0, 0.0]),
    "cosine to a tenth": (schedules.Cosine(20, final=0.1), [1.0, 0.1 + 0.45 * (1 + math.cos(math.pi / 4)), 0.55, 0.1]),
    "step": (schedules.Steps(5, factor=0.5), [1.0, 0.5, 0.25, 0.03125]),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_schedule_is_the_factor_it_says(name):
    schedule, factors = FACTORS[name]
    assert [float(schedule(torch.tensor(step))) for step in (0, 5, 10, 25)] == pytest.approx(factors)


@pytest.mark.parametrize("name", FACTORS)
@every_rule
def test_every_rule_heeds_its_schedule(case, name):
    schedule, factors = FACTORS[name]
    arrivals = replace(deliver(generator(4)), staleness=[0.0, 1, 2, 1])
    for number, factor in zip((0, 5, 10, 25), factors, strict=True):
        server = replace(ServerState.initial(torch.ones(LENGTH, dtype=torch.float64)), step=torch.tensor(number))
        scheduled, step = make(case, schedule=schedule)(server, arrivals)
        constant, usual = make(case)(server, arrivals)
        assert float(step.lr) == pytest.approx(factor * float(usual.lr))
        torch.testing.assert_close(scheduled.params - 1.0, factor * (constant.params - 1.0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "step"])
def test_a_schedule_has_a_name(name):
    last, first = schedules.named(name, 90)(torch.tensor(89)), schedules.named(name, 90)(torch.tensor(0))
    assert float(first) == 1.0
    assert (float(last) == 1.0) == (name == "constant")


def test_a_misspelt_schedule_is_an_error_that_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        schedules.named("cosin", 10)


def test_a_schedule_of_ones_own_may_return_a_plain_number_and_what_is_none_is_refused():
    given, server = deliver(generator(3), 4), ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
    halved, _ = rules.kasync_sgd(1.0, schedule=lambda step: 0.5)(server, given)
    plain, _ = rules.kasync_sgd(0.5)(server, given)
    assert torch.equal(halved.params, plain.params)
    with pytest.raises(ValueError, match="schedule = 'cosine': must be a function"):
        rules.kasync_sgd(1.0, schedule="cosine")
