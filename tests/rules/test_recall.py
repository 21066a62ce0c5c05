"""Recall lies between the rules it is made of, forgets as documented, and stays within its reach."""

import math
from dataclasses import replace

import pytest
import torch
from deliveries import CLIENTS, LAYERS, LENGTH, deliver, generator
from hypothesis import given, settings
from hypothesis import strategies as st
from judge import follow
from plain_remembering import Recall

from kasync import Arrivals, ServerState, rules, schedules
from kasync.optimizers import Plain

K = 4
few = settings(max_examples=15, deadline=None)


def plainly(lr, half_distance=1.0, clients=CLIENTS, **more):
    """Recall with plain steps: what memory and weights make of the gradients shows as it is."""
    return rules.recall(lr, clients, half_distance, reach=math.inf, optimizer=Plain, **more)


def everyone_then(seed, steps, half_distance, **more):
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
        plainly(0.1, half_distance, **more),
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
@given(seed=st.integers(0, 10**6), half_distance=st.floats(1e-9, 0.03))
def test_a_memory_that_fades_away_leaves_nothing_behind(seed, half_distance):
    rule, plain, random = plainly(0.1, half_distance, power=0.0), rules.kasync_sgd(0.1), generator(seed)
    server = other = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
    for _ in range(60):
        stale = torch.randint(1, 400, (K,), generator=random).double()  # so old that next to nothing of it is trusted
        arrivals = replace(deliver(random, K), staleness=stale)
        server, other = rule(server, arrivals)[0], plain(other, arrivals)[0]
    torch.testing.assert_close(server.params, other.params, rtol=0.0, atol=0.05)


@few
@given(seed=st.integers(0, 10**6), half_distance=st.sampled_from([0.01, 0.5, 3.0, math.inf]))
def test_where_all_clients_agree_it_goes_their_way(seed, half_distance):
    rule, random = plainly(1.0, half_distance), generator(seed)
    same = torch.randn(LENGTH, generator=random, dtype=torch.float64)
    server = ServerState.initial(torch.zeros_like(same))
    for _ in range(12):
        arrivals = deliver(random, K)
        after, step = rule(server, Arrivals(same.expand(K, -1), arrivals.staleness, clients=arrivals.clients))
        torch.testing.assert_close(server.params - after.params, float(step.weights.sum()) * same)
        server = after


def worth(own, noise, seed=0, k=K, rounds=40):
    """The sums of a measuring rule where each client always delivers its own row, so long, and noise of this length."""
    rule, random = plainly(0.01, half_distance=math.inf, measured=True), generator(seed)
    rows = torch.randn(CLIENTS, LENGTH, generator=random, dtype=torch.float64) * own
    server, found = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64)), []
    for number in range(rounds * CLIENTS // k):
        arrivals = deliver(random, k)
        gradients = rows[arrivals.clients] + noise * torch.randn(k, LENGTH, generator=random, dtype=torch.float64)
        server, _ = rule(server, replace(arrivals, gradients=gradients))
        if number >= rounds * CLIENTS // k // 2:
            found.append(float(server.memory["Recall.found"]) / float(server.memory["Recall.expected"]))
    return sum(found) / len(found)


@pytest.mark.parametrize("k", [1, K, CLIENTS])
def test_memories_are_measured_to_be_worth_the_share_of_a_delivery_that_is_the_clients_own(k):
    shares = [worth(own, noise, k=k) for own, noise in ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0))]
    assert shares == [pytest.approx(1.0), pytest.approx(0.5, abs=0.12), pytest.approx(0.0, abs=0.12)]


@few
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([1e-6, 0.5, 1e6]))
def test_what_memories_are_worth_does_not_depend_on_how_long_gradients_are(seed, factor):
    assert worth(factor, factor, seed, rounds=4) == pytest.approx(worth(1.0, 1.0, seed, rounds=4))


def test_memories_that_are_always_wrong_are_not_subtracted():
    ours, plain = plainly(0.1, math.inf, clients=2, measured=True, power=0.0), rules.kasync_sgd(0.1)
    server = other = ServerState.initial(torch.zeros(2, dtype=torch.float64))
    for number in range(12):  # each client's delivery is the opposite of its last one
        turn, one = -1.0 if number % 4 > 1 else 1.0, number % 2
        row = torch.tensor([[turn, 0.0] if one else [0.0, turn]], dtype=torch.float64)
        arrivals = Arrivals(row, torch.zeros(1), clients=torch.tensor([one]))
        before = server
        server, other = ours(server, arrivals)[0], plain(other, arrivals)[0]
        if number > 3:
            torch.testing.assert_close(server.params - before.params, -0.1 * row[0])


def test_a_measuring_rule_that_is_given_more_clients_keeps_what_it_has_measured():
    rule, random = plainly(0.01, measured=True), generator(0)
    server = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
    for _ in range(3 * CLIENTS // K):
        server, _ = rule(server, deliver(random, K))
    more, grown = rule.grown(server, 2 * CLIENTS)
    assert float(grown.memory["Recall.expected"]) == float(server.memory["Recall.expected"]) > 0
    after, _ = more(grown, deliver(random, K))
    assert bool(after.params.isfinite().all())


@pytest.mark.parametrize("lr", [0.1, 0.7])
def test_a_memory_counts_half_when_the_model_has_gone_the_half_distance(lr):
    rule, one = plainly(lr, half_distance=lr * math.sqrt(6), clients=2), torch.tensor([0])
    server = ServerState.initial(torch.zeros(2, dtype=torch.float64))
    for client, row in ((0, [8.0, 0.0]), (1, [0.0, 0.0])):
        gradients = torch.tensor([row], dtype=torch.float64)
        server, _ = rule(server, Arrivals(gradients, torch.zeros(1), clients=torch.tensor([client])))
    for _ in range(4):  # with the two before, six steps since client 0 was heard
        nothing = torch.zeros(1, 2, dtype=torch.float64)
        server, _ = rule(server, Arrivals(nothing, torch.zeros(1), clients=torch.tensor([1])))
    after, step = rule(server, Arrivals(torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1), clients=one))
    mine, other = 0.5, 0.5 ** (1 / 6)  # client 1 was heard one step ago
    mean = 8.0 * mine / (mine + other)
    assert float(after.params[0] - server.params[0]) == pytest.approx(lr * mine * (8.0 - mean))
    assert int(step.dropped) == 0


def test_nothing_is_forgotten_while_the_model_stands_still():
    rule, random = plainly(1.0, half_distance=0.5, schedule=schedules.Linear(3)), generator(0)
    server = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
    server, _ = rule(server, deliver(random, CLIENTS))
    trust = []
    for _ in range(6):  # the schedule ends after two more
        server, _ = rule(server, deliver(random, 1))
        trust.append(float(server.memory["Recall.halvings"]))
    assert trust[0] < trust[1] == trust[2] == trust[-1]


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


@few
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([1e-6, 0.5, 1e6]))
def test_how_long_gradients_are_decides_nothing(seed, factor):
    moved = []
    for scale in (1.0, factor):
        server = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
        for number in range(5):
            arrivals = deliver(generator(seed + number), K)
            server, _ = rules.recall(0.1, CLIENTS).shaped(LAYERS)(
                server, replace(arrivals, gradients=scale * arrivals.gradients)
            )
        moved.append(server.params)
    torch.testing.assert_close(*moved)


def rates(rule, ages, seed=0):
    """The rates of steps in which everybody delivers work of these ages, one after the other."""
    server, found = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64)), []
    random = generator(seed)
    for age in ages:
        server, step = rule(server, replace(deliver(random, K), staleness=torch.full((K,), float(age))))
        found.append(float(step.lr))
    return found


LONG = 15 * CLIENTS // K  # steps after which what was assumed before the first delivery is forgotten


@pytest.mark.parametrize("lr", [1e-6, 0.05, 1.0, 1e6])
@pytest.mark.parametrize("age", [0, 3, 30])
def test_while_a_client_works_the_model_goes_no_further_than_its_reach(lr, age):
    rule = rules.recall(lr, CLIENTS, reach=0.3)
    assert rates(rule, [age] * LONG)[-1] == pytest.approx(min(lr, 0.3 / math.sqrt(1 + age)), rel=1e-6)


@few
@given(seed=st.integers(0, 10**6), lr=st.sampled_from([1e-3, 1e6]))
def test_the_reach_shrinks_with_the_schedule(seed, lr):
    ages = torch.randint(0, 30, (10,), generator=generator(seed)).tolist()
    always, falling = (
        rates(rules.recall(lr, CLIENTS, schedule=schedule), ages, seed)
        for schedule in (schedules.Constant(), schedules.Linear(10))
    )
    assert falling == pytest.approx([(1.0 - number / 10) * rate for number, rate in enumerate(always)])


def test_a_rule_that_joins_in_the_middle_of_a_schedule_has_the_reach_of_one_that_was_there():
    rule = rules.recall(1e6, CLIENTS, schedule=schedules.Linear(100))
    begun, joining = (
        replace(ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64)), step=torch.tensor(number))
        for number in (0, 50)
    )
    arrivals = deliver(generator(0), K)
    assert float(rule(joining, arrivals)[1].lr) == pytest.approx(0.5 * float(rule(begun, arrivals)[1].lr))


@few
@given(seed=st.integers(0, 10**6), k=st.integers(1, CLIENTS))
def test_what_is_held_back_goes_as_far_as_the_plain_loop_says(seed, k):
    random, params = generator(seed), torch.randn(LENGTH, generator=generator(seed), dtype=torch.float64)
    rule = rules.recall(30.0, CLIENTS).shaped(LAYERS)
    steps = follow(rule, Recall(30.0, CLIENTS), [deliver(random, k) for _ in range(9)], params)
    assert max(float(step.lr) for step in steps) < 30.0


def test_a_few_very_slow_clients_do_not_shorten_the_steps_of_all():
    rule, last = rules.recall(1e6, CLIENTS), []
    for slow in (4.0, 4.0e6):
        server, random = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64)), generator(0)
        for _ in range(LONG):
            arrivals = replace(deliver(random, K), staleness=torch.tensor([4.0] * (K - 1) + [slow]))
            server, step = rule(server, arrivals)
        last.append(float(step.lr))
    assert last[1] > last[0] / 10  # the mean staleness is 200,000 times as large


@few
@given(seed=st.integers(0, 10**6))
def test_half_precision_costs_a_hundredth_of_a_step_and_half_the_memory(seed):
    full, half = (plainly(0.1, memory_precision=kind) for kind in ("full", "half"))
    random, ends = generator(seed), []
    deliveries = [deliver(random, K, dtype=torch.float32) for _ in range(30)]
    for rule in (full, half):
        server = ServerState.initial(torch.zeros(LENGTH))
        for arrivals in deliveries:
            server, _ = rule(server, arrivals)
        ends.append(server)
    assert ends[1].memory["Recall.last"].element_size() == 2
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
