"""Properties that hold for a rule whatever is delivered."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from deliveries import LENGTH, deliver, generator, own_gradient, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_cases import CASES, make

from kasync import Arrivals, Rule, ServerState, Step, parts, rules

seeds = st.integers(0, 10**6)
CENTER = "CenterAndClip.center"
counts = st.integers(1, 12)
few = settings(max_examples=12, deadline=None)

SCALE_FREE = {
    case: make(case)
    for case, (name, _, _) in CASES.items()
    if name
    in {"kasync_sgd", "twafl", "sasgd", "fedbuff", "delay_adaptive", "ringmaster", "gsgm", "ca2fl", "ace", "krum"}
    | {"ringleader"}
} | {"wkafl unclipped": make("wkafl").without(parts.ClipNorms)}
MEANS = ("kasync_sgd", "twafl", "gsgm", "krum", "geometric_median", "centered_clip")
NORMALISED = ("wkafl", *MEANS, "ca2fl", "recall", "fadas")


def at_rest(dtype: torch.dtype = torch.float64) -> ServerState:
    return ServerState.initial(torch.zeros(LENGTH, dtype=dtype))


def moves(rule: Rule, deliveries: list[Arrivals]) -> list[torch.Tensor]:
    """[D] for each step, how far the server went."""
    server, moved = at_rest(), []
    for arrivals in deliveries:
        after, _ = rule(server, arrivals)
        moved.append(after.params - server.params)
        server = after
    return moved


def stepped(rule: Rule, arrivals: Arrivals) -> tuple[torch.Tensor, Step]:
    server, step = rule(at_rest(), arrivals)
    return -server.params / step.lr, step


@pytest.mark.parametrize("case", SCALE_FREE)
@few
@given(seed=seeds, k=counts, factor=st.sampled_from([1e-6, 0.5, 3.0, 1e6]))
def test_gradients_twice_as_long_move_the_server_twice_as_far(case, seed, k, factor):
    deliveries = [deliver(generator(seed + i), k) for i in range(3)]
    longer = [replace(one, gradients=factor * one.gradients) for one in deliveries]
    for usual, far in zip(moves(SCALE_FREE[case], deliveries), moves(SCALE_FREE[case], longer), strict=True):
        torch.testing.assert_close(far, factor * usual, rtol=1e-7, atol=1e-9 * factor)


@pytest.mark.parametrize("case", NORMALISED)
@few
@given(seed=seeds, k=counts)
def test_weights_sum_to_one(case, seed, k):
    _, step = stepped(make(case), deliver(generator(seed), k, oldest=1e6))
    assert float(step.weights.sum()) == pytest.approx(1.0)
    assert bool((step.weights >= 0).all())


@pytest.mark.parametrize("name", ["sasgd", "fedbuff", "delay_adaptive"])
@few
@given(seed=seeds, k=counts, later=st.integers(1, 1000))
def test_what_is_staler_never_weighs_more(name, seed, k, later):
    arrivals = deliver(generator(seed), k)
    _, now = stepped(make(name), arrivals)
    _, then = stepped(make(name), replace(arrivals, staleness=arrivals.staleness + later))
    assert bool((then.weights <= now.weights).all())


@pytest.mark.parametrize("later", [1, 1000, 10**6])
@few
@given(seed=seeds, k=counts)
def test_twafl_and_the_estimate_of_wkafl_heed_only_differences_in_staleness(later, seed, k):
    arrivals = deliver(generator(seed), k)
    for case in ("twafl", "wkafl"):
        _, now = stepped(make(case), arrivals)
        _, then = stepped(make(case), replace(arrivals, staleness=arrivals.staleness + later))
        torch.testing.assert_close(then.weights, now.weights, rtol=1e-6, atol=1e-12)


@few
@given(seed=seeds, k=counts, max_norm=st.floats(0.01, 10))
def test_wkafl_never_moves_further_than_the_clip_allows(seed, k, max_norm):
    rule = rules.wkafl(1.0, max_norm=max_norm, lr_decay=0.0)
    for move in moves(rule, [deliver(generator(seed + i), k, norms=(1e-8, 1e8)) for i in range(3)]):
        assert float(move.norm()) <= max_norm * (1 + 1e-9)


@few
@given(seed=seeds, k=counts, ratio=st.floats(0.1, 10))
def test_in_stage_two_nothing_is_longer_than_the_estimate_allows(seed, k, ratio):
    arrivals = replace(deliver(generator(seed), k), losses=[0.0] * k)
    direction, step = stepped(rules.wkafl(1.0, ratio=ratio, loss_threshold=0.0), arrivals)
    assert int(step.stage) == 2
    assert float(direction.norm()) <= max(ratio, 1.0) * float(step.norms(step.estimate)) * (1 + 1e-9)


@few
@given(seed=seeds, k=counts, threshold=st.floats(-1, 1))
def test_only_gradients_that_agree_weigh_unless_none_does(seed, k, threshold):
    _, step = stepped(rules.wkafl(1.0, threshold=threshold), deliver(generator(seed), k, agreement=0.3))
    passes = step.similarities >= threshold
    if passes.any():
        assert torch.equal(step.weights > 0, passes)
        order = step.similarities.argsort()
        assert bool((step.weights[order].diff() >= 0).all())  # the more alike, the heavier


@few
@given(seed=seeds, k=st.integers(5, 12), size=st.sampled_from([1e3, 1e5, 1e7]), place=st.integers(0, 4))
def test_one_huge_outlier_changes_neither_krum_nor_much_of_the_median(seed, k, size, place):
    good = deliver(generator(seed), k, norms=(1.0, 2.0), agreement=3.0)
    good = replace(good, batch_sizes=torch.ones(k))
    rows = good.gradients.clone()
    rows[place] = size * torch.ones(LENGTH, dtype=torch.float64)
    bad, others = replace(good, gradients=rows), [i for i in range(k) if i != place]

    chosen, step = stepped(make("krum"), bad)
    assert float(step.weights[place]) == 0.0
    assert any(torch.allclose(chosen, good.gradients[i]) for i in others)
    median, _ = stepped(make("geometric_median"), bad)
    mean = taken(good, torch.tensor(others)).gradients.mean(0)
    assert float((median - mean).norm()) < 4.0  # the others lie within 2 of the origin
    assert float((rows.mean(0) - mean).norm()) > 100.0  # the plain mean is lost


@few
@given(seed=seeds, k=counts, radius=st.floats(0.01, 5))
def test_centered_clipping_moves_its_center_by_at_most_the_radius(seed, k, radius):
    rule, server = rules.centered_clip(1.0, radius), at_rest()
    for i in range(3):
        before = server.memory.get(CENTER, torch.zeros(LENGTH, dtype=torch.float64))
        server, _ = rule(server, deliver(generator(seed + i), k, norms=(1e-3, 1e6)))
        assert float((server.memory[CENTER] - before).norm()) <= radius * (1 + 1e-6)


@few
@given(seed=seeds, k=counts)
def test_fltrust_never_goes_further_than_the_servers_own_gradient_nor_against_it(seed, k):
    own = own_gradient(torch.zeros(LENGTH, dtype=torch.float64))
    direction, _ = stepped(make("fltrust"), deliver(generator(seed), k, norms=(1e-8, 1e8), agreement=0.0))
    assert float(direction.norm()) <= float(own.norm()) * (1 + 1e-9)
    assert float(direction @ own) >= -1e-9


@few
@given(seed=seeds, k=counts)
def test_with_equal_staleness_and_batches_twafl_fedbuff_and_kasync_agree_in_direction(seed, k):
    arrivals = replace(deliver(generator(seed), k), staleness=[0.0] * k, batch_sizes=[3.0] * k)
    expected, _ = stepped(make("kasync_sgd"), arrivals)
    for case in ("twafl", "twafl as printed", "fedbuff", "sasgd", "delay_adaptive", "ringmaster"):
        torch.testing.assert_close(stepped(make(case), arrivals)[0], expected, rtol=1e-9, atol=1e-12)
