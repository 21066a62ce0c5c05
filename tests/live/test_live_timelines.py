"""The live server with clients that sleep, against the clock with the same durations."""

import heapq

import numpy as np
import pytest
import torch

from kasync import rules, timelines
from kasync.live.deliveries import Delivery
from kasync.live.loop import Federation
from kasync.live.terms import Terms
from kasync.timelines import durations

CLIENTS, K, STEPS = 40, 3, 400


def lived(times, concurrency, restart, seed=1, select="uniform"):
    """The timeline of a server whose clients sleep in virtual time: the n-th piece of work of c takes times(c, n)."""
    terms = Terms(k=K, least=CLIENTS, concurrency=concurrency, restart=restart, select=select, deadline=1e9, slack=1e9)
    federation = Federation(rules.kasync_sgd(1.0), torch.zeros(2), terms)
    federation.present(range(CLIENTS), 0.0)
    asleep, pieces, now = [], [0] * CLIENTS, 0.0
    while federation.updates < STEPS:
        for order in federation.dispatch(now):
            number = pieces[order.client]
            pieces[order.client] += 1
            seconds = float(times.seconds(seed, np.array([order.client]), np.array([number]))[0])
            heapq.heappush(asleep, (now + seconds, order.ticket, order.node))
        now, ticket, node = heapq.heappop(asleep)
        assert federation.collect(ticket, node, Delivery(torch.ones(2)), now) == "accepted"
        federation.step(now)
    return federation.timeline()


@pytest.mark.parametrize("times", [durations.exponential(1.0), durations.log_normal(1.0, 1.0), durations.ace()])
def test_with_all_clients_at_work_every_delivery_is_the_clocks(times):
    """Which client has which number is the server's affair: it gives them in the order in which they came."""
    live, clock = lived(times, None, "update"), timelines.clock(CLIENTS, K, STEPS, times, 1)
    np.testing.assert_array_equal(live.clients, clock.clients)
    np.testing.assert_array_equal(live.versions, clock.versions)
    np.testing.assert_allclose(live.times, clock.times, rtol=1e-12)


@pytest.mark.parametrize("times", [durations.exponential(1.0), durations.ace()])
@pytest.mark.parametrize(("restart", "theory"), [("arrival", (12 - 1) / K), ("update", 12 / K - 1)])
def test_with_some_at_work_mean_staleness_is_the_clocks(times, restart, theory):
    live = lived(times, 12, restart)
    clock = timelines.clock(CLIENTS, K, STEPS, times, 1, concurrency=12, restart=restart)
    assert live.staleness[50:].mean() == pytest.approx(clock.staleness[50:].mean(), rel=0.06)
    assert live.staleness[50:].mean() == pytest.approx(theory, rel=0.06)


@pytest.mark.parametrize("select", ["in_turn", "least_heard"])
@pytest.mark.parametrize("restart", ["arrival", "update"])
def test_selections_of_one_name_hear_the_clients_as_often_and_as_stale_as_the_clocks(select, restart):
    live = lived(durations.exponential(1.0), 12, restart, select=select)
    clock = timelines.clock(
        CLIENTS, K, STEPS, durations.exponential(1.0), 1, concurrency=12, restart=restart, select=select
    )
    heard, there = (np.bincount(each.clients.ravel(), minlength=CLIENTS) for each in (live, clock))
    assert heard.max() - heard.min() <= there.max() - there.min() + 1
    assert there.max() - there.min() <= heard.max() - heard.min() + 1
    assert live.staleness[50:].mean() == pytest.approx(clock.staleness[50:].mean(), rel=0.06)


def test_turns_go_round_while_chance_does_not():
    """The spread of how often clients are heard tells the selections apart, so that the test above means something."""
    spread = {}
    for select in ("uniform", "in_turn", "least_heard"):
        heard = np.bincount(lived(durations.exponential(1.0), 12, "update", select=select).clients.ravel())
        spread[select] = heard.max() - heard.min()
    assert spread["in_turn"] < spread["uniform"] / 2
    assert spread["least_heard"] < spread["uniform"] / 2
