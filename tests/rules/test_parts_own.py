"""Parts own what they remember, say what they depend on, and are refused by name when they return what cannot be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from deliveries import CLIENTS, LENGTH, deliver, generator
from rule_cases import every_rule, make, started

from kasync import Arrivals, Part, Rule, ServerState, Step, optimizers, parts, rules
from kasync.errors import UserError

SETTLED = ("lr", "estimate", "stage")


def run(rule: Rule, steps: int = 5, seed: int = 1, dtype: torch.dtype = torch.float64) -> ServerState:
    return started(rule, steps, dtype, seed)


def test_two_parts_of_one_kind_share_no_vector():
    """Two momenta in one rule are two: the second adds to what the first has made, from a past of its own."""
    two = Rule("two", 0.1, (parts.AddMomentum(0.5, "aggregate"), parts.AddMomentum(0.25, "aggregate")))
    server = run(two)
    names = [name for name in server.memory if name.endswith("momentum")]
    assert names == ["AddMomentum.momentum", "AddMomentum-2.momentum"]
    one = run(Rule("one", 0.1, (parts.AddMomentum(0.75, "aggregate"),)))
    torch.testing.assert_close(server.params, one.params)


def test_calibrate_and_recall_in_one_rule_keep_their_own_tables():
    both = Rule("both", 0.1, (parts.Recall(0.5), parts.Calibrate()), optimizers.Plain, clients=CLIENTS)
    server = run(both)
    assert server.memory["Recall.last"].data_ptr() != server.memory["Calibrate.last"].data_ptr()
    twice = run(Rule("twice", 0.1, (parts.Calibrate(), parts.Calibrate()), clients=CLIENTS))
    plain = run(rules.ca2fl(0.1, CLIENTS))
    assert not torch.allclose(twice.params, plain.params)
    torch.testing.assert_close(twice.memory["Calibrate.mean"], plain.memory["Calibrate.mean"])


@dataclass(frozen=True)
class Tally(Part):
    """counts its steps"""

    clients: int = field(default=0, kw_only=True)

    def memory(self, params):
        return {"number": torch.zeros((), dtype=torch.float64)}

    def __call__(self, step: Step) -> Step:
        return step.keep(number=step.memory["number"] + 1.0)


def test_a_part_that_names_its_memory_like_another_does_not_meet_it():
    rule = Rule(
        "tallies", 0.1, (Tally(), parts.DiscountAgainstUsual(lambda s: torch.ones_like(s)), Tally()), clients=12
    )
    server = run(rule, steps=4)
    assert float(server.memory["Tally.number"]) == float(server.memory["Tally-2.number"]) == 4.0
    assert 4.0 < float(server.memory["DiscountAgainstUsual.number"]) < 16.0  # of deliveries, fading


def test_clients_are_given_once_and_a_contradiction_is_refused():
    rule = rules.recall(0.1, 12)
    assert {part.clients for part in rule.parts} == {rule.clients} == {12}
    with pytest.raises(UserError, match="clients = 3 in Calibrate and 5 in the rule: give one number, to the rule"):
        Rule("two numbers", 0.1, (parts.Calibrate(clients=3),), clients=5)
    with pytest.raises(UserError, match="clients = 3 in Calibrate and 4 in Recall"):
        Rule("two numbers", 0.1, (parts.Calibrate(clients=3), parts.Recall(0.1, clients=4)), optimizers.Plain)
    with pytest.raises(UserError, match="clients = None: Calibrate must know how many there are"):
        Rule("none", 0.1, (parts.Calibrate(),))


@dataclass(frozen=True)
class NeedsAnEstimate(Part):
    after = (parts.EstimateByStaleness,)

    def __call__(self, step: Step) -> Step:
        return step.weighed(step.averaged(step.cosines_to(step.estimate).clamp(min=0)))


def test_a_missing_predecessor_is_refused_when_the_rule_is_made():
    with pytest.raises(UserError, match="NeedsAnEstimate needs EstimateByStaleness before it"):
        Rule("alone", 0.1, (NeedsAnEstimate(),))
    with pytest.raises(UserError, match="NeedsAnEstimate needs EstimateByStaleness before it"):
        Rule("late", 0.1, (NeedsAnEstimate(), parts.EstimateByStaleness()))
    with pytest.raises(UserError, match="NeedsAnEstimate needs"):
        Rule("both", 0.1, (parts.EstimateByStaleness(), NeedsAnEstimate())).without(parts.EstimateByStaleness)


@pytest.mark.parametrize(
    ("chain", "sentence"),
    [
        ((parts.Recall(0.1), parts.KeepWithinReach(0.1)), "Recall reads the lr that KeepWithinReach sets after it"),
        ((parts.SelectConsistent(1.0, 0.0), parts.EstimateByStaleness()), "SelectConsistent reads the estimate"),
        ((parts.ClipToEstimate(1.0), parts.EnterStageTwo(0.1)), "ClipToEstimate reads the stage that EnterStageTwo"),
    ],
)
def test_parts_in_an_order_that_cannot_be_meant_are_refused(chain, sentence):
    with pytest.raises(UserError, match=sentence):
        Rule("upside down", 0.1, chain, optimizers.Plain, clients=3)


def test_recall_asks_for_an_optimiser_whose_steps_it_can_measure():
    with pytest.raises(UserError, match=r"Recall takes every step to be as long as the learning rate"):
        Rule("bare", 0.1, (parts.Recall(0.1),), clients=3)


@every_rule
def test_a_part_sets_only_what_it_declares(case):
    rule, seen = make(case), []

    def watched(part: Part):
        kind = type(part)

        def call(self, step: Step) -> Step:
            after = kind.__call__(self, step)
            before = [getattr(step, name) for name in SETTLED]
            changed = {n for n, old in zip(SETTLED, before, strict=True) if getattr(after, n) is not old}
            derived = {"estimate"} if step.estimate is None and "estimate" in kind.reads else set()
            seen.append((kind.__name__, changed - kind.sets - derived))
            return after

        return type(kind.__name__, (kind,), {"__call__": call})(**{n: getattr(part, n) for n in vars(part)})

    chain = tuple(map(watched, rule.parts))
    run(replace(rule, parts=chain), steps=2)
    assert len(seen) == 2 * len(chain)
    assert not [each for each in seen if each[1]]


class Returns(Part):
    def __init__(self, answer):
        object.__setattr__(self, "answer", answer)

    def __call__(self, step: Step) -> Step:
        return self.answer(step)

    def memory(self, params):
        return {"number": torch.zeros((), dtype=torch.float64), "vector": torch.zeros_like(params)}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda step: None, "Returns returned NoneType: end its formula with the new step"),
        (lambda step: step.weights, "Returns returned Tensor"),
        (lambda step: step.having(weights=step.weights.float()), r"Returns made weights torch.float32 of shape \[4\]"),
        (lambda step: step.weighed(step.weights[:, None]), r"Returns made weights torch.float64 of shape \[4, 4\]"),
        (lambda step: step.having(lr=step.weights), r"Returns made lr torch.float64 of shape \[4\]"),
        (lambda step: step.having(coefficients=step.coefficients[:, :2]), r"Returns made coefficients .* \[4, 2\]"),
        (lambda step: step.having(coeficients=step.weights), "unknown field of a step 'coeficients': did you mean"),
        (
            lambda step: step.keep(nummer=step.lr),
            "unknown name in the memory of Returns 'nummer': did you mean 'number'",
        ),
        (lambda step: step.remember(vektor=step.direction), "unknown name in the memory of Returns 'vektor'"),
        (lambda step: step.keep(number=step.number), "Returns keeps number as torch.int64"),
        (lambda step: step.weighed(step.unit("velocity")[0]), "unknown row of the span 'velocity': known: gradients"),
    ],
)
def test_what_a_part_may_not_return_is_refused_in_one_sentence_that_names_it(answer, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(Rule("wrong", 0.1, (Returns(answer),)), steps=1)


@every_rule
def test_what_is_handed_out_may_be_written_to(case):
    rule, arrivals = make(case), deliver(generator(3))
    server = started(rule)
    expected, _ = rule(server, arrivals)
    after, step = rule(server, arrivals)
    given = [each for each in (*vars(arrivals).values(), *server.memory.values()) if each is not None]
    places = {each.data_ptr() for each in given}
    for value in vars(step).values():
        if isinstance(value, torch.Tensor) and value.dtype == torch.float64 and value is not arrivals.staleness:
            if value.data_ptr() in places:  # what its giver may write to anyway
                continue
            value.mul_(10.0)
    again, _ = rule(server, arrivals)
    torch.testing.assert_close(again.params, expected.params, rtol=0, atol=0)
    torch.testing.assert_close(after.params, expected.params, rtol=0, atol=0)


def test_the_largest_of_negative_values_is_negative_whatever_is_unusable():
    seen = []

    class Look(Part):
        def __call__(self, step: Step) -> Step:
            seen.append((float(step.largest(-1.0 - step.losses)), float(step.least(1.0 + step.losses))))
            return step

    rows = torch.tensor([[1.0], [torch.nan], [2.0]])
    rule = Rule("looks", 0.1, (Look(),))
    rule(ServerState.initial(torch.zeros(1)), Arrivals(rows, [0, 0, 0], losses=[1.0, 9.0, 4.0]))
    assert seen[-1] == (-2.0, 2.0)


def test_the_names_of_a_memory_survive_the_ablation_of_another_part():
    rule = rules.wkafl(0.1)
    kept = rule.without(parts.SelectConsistent)
    names = rule.prepared(ServerState.initial(torch.zeros(LENGTH))).memory.keys()
    assert kept.prepared(ServerState.initial(torch.zeros(LENGTH))).memory.keys() == names


GROWING = {
    "ca2fl": lambda clients: rules.ca2fl(0.1, clients=clients),
    "ace": lambda clients: rules.ace(0.1, clients=clients),
    "aced": lambda clients: rules.ace(0.1, clients=clients, max_staleness=3),
    "rescaled_asgd": lambda clients: rules.rescaled_asgd(0.1, clients=clients),
    "recall": lambda clients: Rule("recall alone", 0.1, (parts.Recall(1.0),), optimizers.Plain, clients=clients),
}


@pytest.mark.parametrize("make", GROWING.values(), ids=GROWING)
def test_a_rule_that_grew_remembers_what_one_that_was_large_from_the_start_does(make):
    small, large = make(4), make(7)
    states = [rule.prepared(ServerState.initial(torch.zeros(5))) for rule in (small, large)]
    draw = torch.Generator().manual_seed(0)

    def delivered(*pairs, clients):
        arrivals = Arrivals(torch.randn(2, 5, generator=draw), [1, 0], [1.0, 1.0], [3, 4], clients)
        return [rule(state, arrivals)[0] for rule, state in pairs]

    for clients in ([0, 1], [2, 3], [1, 3], [0, 2]):
        states = delivered((small, states[0]), (large, states[1]), clients=clients)
    grown, state = small.grown(states[0], 7)
    before = {name: value.clone() for name, value in states[0].memory.items()}
    for clients in (None, [4, 1], [6, 5], [4, 0]):
        if clients is not None:
            state, states[1] = delivered((grown, state), (large, states[1]), clients=clients)
        for name, value in states[1].memory.items():
            torch.testing.assert_close(state.memory[name], value, rtol=1e-6, atol=1e-7, msg=name)
    for name, value in states[0].memory.items():
        assert torch.equal(value, before[name])  # growing changes nothing that it was given


def test_a_client_that_joins_late_stands_for_the_model_of_that_moment():
    rule = rules.area(clients=2)
    state = rule.prepared(ServerState.initial(torch.zeros(3)))
    state, _ = rule(state, Arrivals(-torch.ones(1, 3), [0], [1.0], [1], [0], torch.zeros(1, 3)))
    torch.testing.assert_close(state.params, torch.full((3,), 0.5))
    grown, state = rule.grown(state, 4)
    state, _ = grown(state, Arrivals(torch.zeros(1, 3), [0], [1.0], [1], [0], torch.ones(1, 3)))
    torch.testing.assert_close(state.params, torch.full((3,), 0.5))  # it brought what it had brought before
