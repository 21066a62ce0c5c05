"""Does our own rule lie between the rules it is made of, forget as it says, and stay within its reach?"""

import math
from dataclasses import replace

import pytest
import torch
from deliveries import CLIENTS, LENGTH, deliver, generator
from hypothesis import given, settings
from hypothesis import strategies as st
from judge import follow
from plain_remembering import Recall

from kasync import Arrivals, ServerState, rules, schedules

K = 4
few = settings(max_examples=15, deadline=None)


def everyone_then(seed, steps, half_life, **more):
    """The moves of a rule after each client has delivered once, and those of CA2FL and of K-async SGD."""
    random = generator(seed)
    first = torch.randperm(CLIENTS, generator=random).split(K)
    known = [
        Arrivals(
            torch.randn(len(some), LENGTH, generator=random, dtype=torch.float64), torch.zeros(len(some)), clients=some
        )
        for some in first
    ]
    later = [deliver(random, K) for _ in range(steps)]
    moved = []
    for rule in (
        rules.recall(0.1, CLIENTS, half_life, reach=math.inf, **more),
        rules.ca2fl(0.1, CLIENTS),
        rules.kasync_sgd(0.1),
    ):
        server = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
        for arrivals in known:
            server, _ = rule(server, arrivals)
        start = server.params
        for arrivals in later:
            server, _ = rule(server, arrivals)
        moved.append(server.params - start)
    return moved


@few
@given(seed=st.integers(0, 10**6))
def test_without_fading_and_with_equal_weights_it_is_ca2fl_once_everybody_is_known(seed):
    ours, ca2fl, _ = everyone_then(seed, 5, math.inf, power=0.0)
    torch.testing.assert_close(ours, ca2fl)


@few
@given(seed=st.integers(0, 10**6))
def test_with_nothing_but_fading_it_is_kasync_sgd(seed):
    ours, _, kasync_sgd = everyone_then(seed, 5, 1e-9, power=0.0)
    torch.testing.assert_close(ours, kasync_sgd)


@few
@given(seed=st.integers(0, 10**6), half_life=st.sampled_from([0.01, 0.5, 3.0, math.inf]))
def test_where_all_clients_agree_it_goes_their_way(seed, half_life):
    rule, random = rules.recall(1.0, CLIENTS, half_life, reach=math.inf), generator(seed)
    same = torch.randn(LENGTH, generator=random, dtype=torch.float64)
    server = ServerState.initial(torch.zeros_like(same))
    for _ in range(12):
        arrivals = deliver(random, K)
        after, step = rule(server, Arrivals(same.expand(K, -1), arrivals.staleness, clients=arrivals.clients))
        torch.testing.assert_close(server.params - after.params, float(step.weights.sum()) * same)
        server = after


def test_a_memory_one_half_life_old_counts_half():
    rule, one = rules.recall(1.0, clients=2, half_life=3.0, reach=math.inf), torch.tensor([0])
    server = ServerState.initial(torch.zeros(2, dtype=torch.float64))
    for client, row in ((0, [8.0, 0.0]), (1, [0.0, 0.0])):
        gradients = torch.tensor([row], dtype=torch.float64)
        server, _ = rule(server, Arrivals(gradients, torch.zeros(1), clients=torch.tensor([client])))
    for _ in range(4):  # two rounds of two clients pass, so client 0 was heard three rounds ago
        nothing = torch.zeros(1, 2, dtype=torch.float64)
        server, _ = rule(server, Arrivals(nothing, torch.zeros(1), clients=torch.tensor([1])))
    after, step = rule(server, Arrivals(torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1), clients=one))
    mine, other = 0.5, 0.5 ** (0.5 / 3.0)  # client 1 was heard half a round ago
    mean = 8.0 * mine / (mine + other)
    assert float(after.params[0] - server.params[0]) == pytest.approx(mine * (8.0 - mean))
    assert int(step.dropped) == 0


@few
@given(seed=st.integers(0, 10**6), age=st.integers(1, 1000))
def test_a_step_of_gradients_staler_than_usual_is_shorter_and_a_fresh_one_longer(seed, age):
    rule, random = rules.recall(0.1, CLIENTS), generator(seed)
    server, sums = ServerState.initial(torch.randn(LENGTH, generator=random, dtype=torch.float64)), []
    for staleness in (age, age, 2 * age, 0):
        server, step = rule(server, replace(deliver(random, K), staleness=torch.full((K,), float(staleness))))
        sums.append(float(step.weights.sum()))
    assert sums[:2] == pytest.approx([1.0, 1.0])
    assert sums[2] < 1.0 < sums[3]


def limits(rule, server, arrivals):
    """How long the step was, and how long it would have been."""
    free = replace(rule, parts=rule.parts[:-1])
    return [float((each(server, arrivals)[0].params - server.params).norm()) for each in (rule, free)]


@few
@given(seed=st.integers(0, 10**6), lr=st.sampled_from([1e-6, 1.0, 1e6]), age=st.integers(0, 30))
def test_while_a_client_works_the_model_moves_no_further_than_its_reach(seed, lr, age):
    reach, random = 0.7, generator(seed)
    rule = rules.recall(lr, CLIENTS, reach=reach)
    server = ServerState.initial(torch.randn(LENGTH, generator=random, dtype=torch.float64))
    for _ in range(15 * CLIENTS // K):  # until what was assumed before the first delivery is forgotten
        arrivals = replace(deliver(random, K), staleness=torch.full((K,), float(age)))
        took, wanted = limits(rule, server, arrivals)
        length = float(server.params.norm())
        server, _ = rule(server, arrivals)
    assert took == pytest.approx(min(wanted, reach * length / (1 + age)), rel=1e-6)


@few
@given(seed=st.integers(0, 10**6))
def test_the_reach_shrinks_with_the_schedule(seed):
    random, ends = generator(seed), []
    server = ServerState.initial(torch.randn(LENGTH, generator=random, dtype=torch.float64))
    for schedule in (schedules.Constant(), schedules.Linear(10)):
        rule, now, lengths = rules.build("recall", lr=1e6, clients=CLIENTS, schedule=schedule), server, []
        for number in range(10):
            arrivals = deliver(generator(seed + number), K)
            lengths.append(limits(rule, now, arrivals)[0] / float(now.params.norm()))
            now, _ = rule(now, arrivals)
        ends.append(lengths)
    for number, (always, falling) in enumerate(zip(*ends, strict=True)):
        assert falling == pytest.approx((1.0 - number / 10) * always)


@few
@given(seed=st.integers(0, 10**6), k=st.integers(1, CLIENTS))
def test_what_is_held_back_goes_as_far_as_the_plain_loop_says(seed, k):
    random, params = generator(seed), torch.randn(LENGTH, generator=generator(seed), dtype=torch.float64)
    steps = follow(rules.recall(30.0, CLIENTS), Recall(30.0, CLIENTS), [deliver(random, k) for _ in range(9)], params)
    assert max(float(step.lr) for step in steps) < 30.0


def test_a_few_very_slow_clients_do_not_shorten_the_steps_of_all():
    rule, random = rules.recall(1e6, CLIENTS), generator(0)
    start, took = ServerState.initial(torch.randn(LENGTH, generator=random, dtype=torch.float64)), []
    for slow in (4.0, 4.0e6):
        server = start
        for _ in range(10 * CLIENTS // K):
            arrivals = replace(deliver(random, K), staleness=torch.tensor([4.0] * (K - 1) + [slow]))
            length = float(server.params.norm())
            step, _ = limits(rule, server, arrivals)
            server, _ = rule(server, arrivals)
        took.append(step / length)
    assert took[1] > took[0] / 100  # the mean staleness is 200,000 times as large


def test_a_model_that_begins_at_zero_can_leave_it():
    server, step = rules.recall(0.1, CLIENTS)(
        ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64)), deliver(generator(0), K)
    )
    assert float(step.lr) == 0.1
    assert float(server.params.norm()) > 0.0


@few
@given(seed=st.integers(0, 10**6))
def test_half_precision_costs_a_hundredth_of_a_step_and_half_the_memory(seed):
    full, half = (rules.recall(0.1, CLIENTS, reach=math.inf, memory_precision=kind) for kind in ("full", "half"))
    random, ends = generator(seed), []
    deliveries = [deliver(random, K, dtype=torch.float32) for _ in range(30)]
    for rule in (full, half):
        server = ServerState.initial(torch.zeros(LENGTH))
        for arrivals in deliveries:
            server, _ = rule(server, arrivals)
        ends.append(server)
    assert ends[1].memory["last"].element_size() == 2
    path = sum(0.1 * float(arrivals.gradients.norm(dim=1).mean()) for arrivals in deliveries)
    assert float((ends[0].params - ends[1].params).norm()) < 0.01 * path


def test_a_gradient_too_long_for_half_precision_spoils_nothing():
    rule = rules.recall(0.1, CLIENTS, memory_precision="half")
    server, random = ServerState.initial(torch.zeros(LENGTH)), generator(0)
    for scale in (1e30, 1.0, 1.0):
        arrivals = deliver(random, K, dtype=torch.float32)
        huge = Arrivals(arrivals.gradients * scale / 1e20, arrivals.staleness, clients=arrivals.clients)
        server, step = rule(server, huge)
        assert bool(server.params.isfinite().all())
        assert int(step.dropped) == 0
