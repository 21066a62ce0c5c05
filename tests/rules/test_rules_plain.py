"""Every compared rule equals its paper's formula, written as a plain loop."""

from __future__ import annotations

import copy
from dataclasses import replace

import plain_weighing as weighing
import pytest
import torch
from deliveries import LENGTH, deliver, generator
from judge import Plain, follow
from rule_cases import CASES, make

from kasync import Arrivals, ServerState, rules

GAPS = ("asyncfeded", "port", "gap_aware", "dc_asgd")  # how far the model has moved
READS_PARAMS = ("fedasync", "zeno", "fltrust", "aflguard", "area", "fedfa", *GAPS)


def test_every_rule_has_a_plain_loop_to_be_judged_by():
    assert {name for name, _, _ in CASES.values()} == set(rules.RULES)


def again(plain: Plain) -> Plain:
    """A plain loop with no past: every test starts from a copy."""
    return copy.deepcopy(plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("k", "steps"), [(1, 60), (5, 30), (10, 20)])
@pytest.mark.parametrize("case", CASES)
def test_a_rule_equals_its_plain_loop(case, k, steps, dtype):
    random, reads_params = generator(k), CASES[case][0] in READS_PARAMS
    params = torch.randn(LENGTH, generator=random, dtype=torch.float64).to(dtype) * reads_params
    deliveries = [deliver(random, k, dtype=dtype) for _ in range(steps)]
    follow(make(case), again(CASES[case][2]), deliveries, params, moving=reads_params)


@pytest.mark.parametrize("case", CASES)
def test_a_rule_equals_its_plain_loop_when_norms_and_staleness_span_everything(case):
    if case == "momentum_approximation":
        pytest.skip("counts ages of a thousand steps and more as one")
    name, settings, plain = CASES[case]
    random, clients = generator(9), settings.get("clients", 50)
    counts = (1, clients // 8, clients // 2, clients) if name != "gsgm" else (7,)  # gsgm's rounds want the same k
    deliveries = [deliver(random, k, norms=(1e-8, 1e8), oldest=1e6, clients=clients) for k in counts * 10]
    follow(make(case), again(plain), deliveries, torch.zeros(LENGTH, dtype=torch.float64))


@pytest.mark.parametrize("case", ["zeno", "zeno, other samples in every step", "aflguard"])
@pytest.mark.parametrize("k", [1, 5])
def test_the_random_deliveries_are_both_accepted_and_refused(case, k):
    random, judge = generator(k), again(CASES[case][2])
    params = torch.randn(LENGTH, generator=random, dtype=torch.float64)
    follow(make(case), judge, [deliver(random, k) for _ in range(60)], params, moving=True)
    assert {True, False} == set(judge.decisions)


def test_helocos_layers_are_kept_shrunk_and_turned_in_the_random_deliveries():
    random, judge = generator(1), again(CASES["heloco"][2])
    follow(make("heloco"), judge, [deliver(random, 1) for _ in range(60)], torch.zeros(LENGTH, dtype=torch.float64))
    assert judge.branches == {"kept", "shrunk", "turned"}


def test_clients_that_start_from_ahead_start_where_the_models_momentum_points():
    """The model that moves by the formula, and the one that is sent, lr momentum m further on, in every step."""
    random = generator(2)
    w = sent = ServerState.initial(torch.zeros(LENGTH, dtype=torch.float64))
    plain, ahead = rules.momentum_look_ahead(0.1, 0.8), rules.momentum_look_ahead(0.1, 0.8, ahead=True)
    for _ in range(20):
        arrivals = deliver(random)
        (w, _), (sent, _) = plain(w, arrivals), ahead(sent, arrivals)
        torch.testing.assert_close(sent.params, w.params - 0.1 * 0.8 * w.memory["optimizer.mean"])


def test_fedasync_without_starts_takes_every_client_to_have_started_from_the_servers_model():
    random = generator(3)
    deliveries = [replace(deliver(random), starts=None) for _ in range(5)]
    params = torch.randn(LENGTH, generator=random, dtype=torch.float64)
    follow(rules.fedasync(0.6), weighing.FedAsync(0.6, weighing.polynomial), deliveries, params)


def test_gsgm_counts_a_broken_delivery_as_delivered_and_leaves_it_out_of_the_mean():
    rule, server = rules.gsgm(1.0, momentum=1.0, clients=4), ServerState.initial(torch.zeros(1))
    server, _ = rule(server, Arrivals(torch.tensor([[1.0], [torch.nan]]), [0, 0]))
    server, _ = rule(server, Arrivals(torch.tensor([[2.0], [6.0]]), [0, 0]))  # all four have delivered
    assert float(server.memory["AddRoundMomentum.mean"]) == 3.0  # of 1, 2 and 6
    before = server.params
    server, _ = rule(server, Arrivals(torch.tensor([[1.0], [1.0]]), [0, 0]))
    assert float(before - server.params) == 4.0
