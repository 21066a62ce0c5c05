"""A broken delivery is dropped and counted; the step is that of the valid ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from deliveries import CLIENTS, LENGTH, deliver, generator, taken
from rule_cases import CASES, equal, every_rule, make, started
from torch import Tensor

from kasync import Arrivals, Rule, ServerState, rules

with_tables = pytest.mark.parametrize("case", [case for case in CASES if make(case).table_clients])
ROUND = "AddRoundMomentum.delivered"
SOUND = torch.tensor([0, 2, 3])  # the second of four deliveries is the broken one


def spoiled(values: Tensor, value: float, place: tuple[int, ...] = (1,)) -> Tensor:
    values = values.clone()
    values[place] = value
    return values


def break_one(arrivals: Arrivals, how: str) -> Arrivals:
    """The arrivals, the second of them broken in one way."""
    rows = arrivals.gradients
    if how == "short gradient":
        return replace(arrivals, gradients=[rows[0], rows[1][:-1], rows[2], rows[3]])
    if how == "gradient of two dimensions":
        return replace(arrivals, gradients=[rows[0], rows[1][None], rows[2], rows[3]])
    field, value = {
        "NaN in the gradient": ("gradients", torch.nan),
        "infinity in the gradient": ("gradients", torch.inf),
        "negative infinity": ("gradients", -torch.inf),
        "negative staleness": ("staleness", -1.0),
        "NaN staleness": ("staleness", torch.nan),
        "infinite staleness": ("staleness", torch.inf),
        "NaN loss": ("losses", torch.nan),
        "infinite loss": ("losses", torch.inf),
        "empty batch": ("batch_sizes", 0.0),
        "negative batch": ("batch_sizes", -2.0),
        "NaN batch": ("batch_sizes", torch.nan),
    }[how]
    place = (1, 5) if field == "gradients" else (1,)
    return replace(arrivals, **{field: spoiled(getattr(arrivals, field), value, place)})


HOW = [
    "NaN in the gradient",
    "infinity in the gradient",
    "negative infinity",
    "short gradient",
    "gradient of two dimensions",
    "negative staleness",
    "NaN staleness",
    "infinite staleness",
    "NaN loss",
    "infinite loss",
    "empty batch",
    "negative batch",
    "NaN batch",
]


def unhurried(case: str) -> Rule:
    """The rule, for GSGM with a round that does not end: how many delivered, soundly or not, decides when it does."""
    return rules.gsgm(0.1, 0.5, clients=1000) if CASES[case][0] == "gsgm" else make(case)


def only_sound_counts(rule: Rule, server: ServerState, broken: Arrivals, sound: Arrivals) -> None:
    after, step = rule(server, broken)
    expected, _ = rule(server, sound)
    assert int(step.dropped) == len(broken) - len(sound)
    assert not step.skipped
    assert float(step.weights[1]) == 0.0
    if rule.name == "gsgm":
        expected = replace(expected, memory={**expected.memory, ROUND: after.memory[ROUND]})
    equal(after, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("how", HOW)
@every_rule
def test_a_broken_delivery_is_dropped_and_counted(case, how):
    rule, arrivals = unhurried(case), deliver(generator(7))
    only_sound_counts(rule, started(rule), break_one(arrivals, how), taken(arrivals, SOUND))


@every_rule
def test_many_things_broken_at_once_are_all_dropped(case):
    rule, good = unhurried(case), deliver(generator(8), 8)
    broken = replace(
        good,
        gradients=spoiled(spoiled(good.gradients, torch.nan, (1, 0)), torch.inf, (6, 3)),
        staleness=spoiled(good.staleness, -3.0, (4,)),
        losses=spoiled(good.losses, torch.nan, (5,)),
    )
    only_sound_counts(rule, started(rule), broken, taken(good, torch.tensor([0, 2, 3, 7])))


@pytest.mark.parametrize("client", [-1, CLIENTS, 10**9])
@with_tables
def test_a_client_that_does_not_exist_is_dropped(case, client):
    rule, arrivals = make(case), deliver(generator(9))
    broken = replace(arrivals, clients=spoiled(arrivals.clients, client))
    only_sound_counts(rule, started(rule), broken, taken(arrivals, SOUND))


@with_tables
def test_a_client_that_delivers_twice_in_a_step_counts_once(case):
    rule, arrivals = make(case), deliver(generator(10))
    twice = replace(arrivals, clients=spoiled(arrivals.clients, int(arrivals.clients[0])))
    only_sound_counts(rule, started(rule), twice, taken(arrivals, SOUND))


@with_tables
def test_a_client_whose_first_delivery_is_broken_still_counts_with_its_second(case):
    rule, arrivals = make(case), deliver(generator(11))
    clients = spoiled(arrivals.clients, int(arrivals.clients[2]))  # the second and the third are one client's
    broken = replace(break_one(arrivals, "NaN in the gradient"), clients=clients)
    only_sound_counts(rule, started(rule), broken, taken(arrivals, SOUND))


@with_tables
def test_a_rule_with_a_table_must_be_told_who_delivered(case):
    with pytest.raises(ValueError, match="clients is missing"):
        make(case)(ServerState.initial(torch.zeros(LENGTH)), replace(deliver(generator(1)), clients=None))


@pytest.mark.parametrize("case", [case for case in CASES if not make(case).table_clients])
def test_a_rule_without_a_table_does_not_ask_who_delivered(case):
    rule, arrivals = make(case), deliver(generator(1))
    anonymous, _ = rule(started(rule), replace(arrivals, clients=None))
    equal(anonymous, rule(started(rule), replace(arrivals, clients=[0, 0, -5, 10**9]))[0])


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("optimizer", [None, torch.optim.NAdam])
@every_rule
def test_with_nothing_usable_the_step_changes_nothing_and_says_so(case, optimizer, steps):
    rule, good = make(case, optimizer=optimizer), deliver(generator(12))
    server = rule.prepared(started(rule, steps))
    for broken in (
        replace(good, gradients=torch.full_like(good.gradients, torch.nan)),
        replace(good, gradients=good.gradients[:, :-1]),
        replace(good, staleness=[-1.0] * 4),
    ):
        after, step = rule(server, broken)
        assert bool(step.skipped)
        assert int(step.dropped) == 4
        assert not step.weights.any()
        equal(after, server)
        owned = ServerState.from_state_dict({name: value.clone() for name, value in server.state_dict().items()})
        equal(rule.advance(owned, broken)[0], server)
    equal(rule(after, good)[0], rule(server, good)[0])


def test_a_broken_delivery_cannot_pass_for_one_that_agrees():
    """With momentum, what is left of a gradient that is not a number points along the past."""
    rule = rules.wkafl(1.0, momentum=0.1, threshold=0.9)
    past = torch.tensor([10.0, 0.0, 0.0], dtype=torch.float64)
    server = replace(ServerState.initial(torch.zeros(3, dtype=torch.float64)), memory={"AddMomentum.momentum": past})
    rows = torch.tensor([[0.0, 8.0, 0.0], [torch.nan, 0.0, 0.0], [0.0, -4.0, 7.0], [0.0, -4.0, -7.0]]).double()
    arrivals = Arrivals(rows, torch.zeros(4))
    only_sound_counts(rule, server, arrivals, taken(arrivals, SOUND))


@pytest.mark.parametrize("case", ["zeno", "fltrust", "aflguard"])
def test_a_server_gradient_that_is_not_a_number_skips_the_step(case):
    name, settings, _ = CASES[case]
    rule = rules.RULES[name](**settings | {"server_gradient": lambda params: params * torch.nan})
    server = rule.prepared(ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64)))
    after, step = rule(server, deliver(generator(13)))
    assert bool(step.skipped)
    equal(after, server)


def test_a_server_gradient_of_another_length_is_refused():
    rule = rules.fltrust(0.1, lambda params: params[:-1])
    with pytest.raises(ValueError, match=r"server_gradient returned shape \[23\]"):
        rule(ServerState.initial(torch.zeros(LENGTH)), deliver(generator(14), dtype=torch.float32))


def test_starts_of_another_length_are_refused():
    arrivals = deliver(generator(15), dtype=torch.float32)
    with pytest.raises(ValueError, match="starts"):
        rules.fedasync(0.5)(ServerState.initial(torch.zeros(LENGTH)), replace(arrivals, starts=arrivals.starts[:, 1:]))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"gradients": torch.zeros(0, 3), "staleness": []}, "k = 0"),
        ({"gradients": [], "staleness": []}, "k = 0"),
        ({"gradients": torch.zeros(3), "staleness": [0, 0, 0]}, r"gradients must be rows \[k, D\]"),
        ({"gradients": torch.zeros(2, 3), "staleness": [0]}, "staleness has 1 entries for 2"),
        ({"gradients": torch.zeros(2, 3), "staleness": [0, 0], "clients": [1]}, "clients has 1 entries for 2"),
    ],
)
def test_arrivals_that_do_not_fit_together_are_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Arrivals(**fields)


@pytest.mark.parametrize(
    ("params", "sentence"), [(torch.zeros(2, 3), "one flat vector"), (torch.zeros(3, dtype=torch.int64), "torch.int64")]
)
def test_parameters_no_rule_can_work_with_are_refused(params, sentence):
    with pytest.raises(ValueError, match=sentence):
        ServerState.initial(params)
