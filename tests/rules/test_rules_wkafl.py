"""WKAFL equals the paper, and each of its ablations the paper with one thing left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from deliveries import deliver, generator
from judge import RELATIVE, follow
from plain_wkafl import PlainWkafl

from kasync import Arrivals, ServerState, parts, rules

SETTINGS = {
    "lr": 0.05,
    "momentum": 0.1,
    "max_norm": 70.0,
    "sharpness": 20.0,
    "threshold": 0.3,
    "ratio": 1.5,
    "loss_threshold": 0.6,
    "lr_decay": 0.1,
}
ABLATIONS = {
    "No Grad-Sel": ((parts.SelectConsistent,), {"selects": False}),
    "No Staleness": ((parts.EstimateByStaleness, parts.SlowWhenAllStale), {"heeds_staleness": False}),
    "No Non-IIDness": ((parts.AddMomentum,), {"heeds_non_iidness": False}),
}


def wild(seed: int, dtype: torch.dtype, steps: int = 200) -> list[Arrivals]:
    """K from 1 to 50, norms from 1e-8 to 1e8, staleness to 10^6; losses low enough for stage two in step 80 only."""
    random, deliveries = generator(seed), []
    for number in range(steps):
        k = int(torch.randint(1, 51, (), generator=random))
        agreement = float(2.0 * torch.rand((), generator=random))
        arrivals = deliver(random, k, dtype=dtype, norms=(1e-8, 1e8), oldest=1e6, clients=50, agreement=agreement)
        deliveries.append(replace(arrivals, losses=torch.full((k,), 0.5 if number == 80 else 0.7)))
    return deliveries


def like(seed: int, dtype: torch.dtype) -> list[Arrivals]:
    """Gradients of about one length that disagree, so that in some steps none passes; stage two from step 30 on."""
    random, deliveries = generator(seed), []
    for number, k in enumerate((1, 2, 5, 10, 30, 50) * 10):
        arrivals = deliver(random, k, dtype=dtype, norms=(50, 100), oldest=3, clients=50, agreement=0.0)
        deliveries.append(replace(arrivals, losses=torch.full((k,), 0.9 if number < 30 else 0.5)))
    return deliveries


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("remember", ["estimate", "aggregate"])
def test_wkafl_equals_the_paper_over_two_hundred_wild_steps_and_both_stages(remember, dtype):
    plain = PlainWkafl(**SETTINGS, remember=remember)
    rule = rules.wkafl(**SETTINGS, remember=remember)
    steps = follow(rule, plain, wild(1, dtype), torch.zeros(24, dtype=dtype), strict=True)
    assert [int(step.stage) for step in steps] == [1] * 80 + [2] * 120


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("remember", ["estimate", "aggregate"])
def test_wkafl_equals_the_paper_where_gradients_disagree(remember, dtype):
    settings = SETTINGS | {"threshold": 0.5}
    plain, rule = PlainWkafl(**settings, remember=remember), rules.wkafl(**settings, remember=remember)
    steps = follow(rule, plain, like(2, dtype), torch.zeros(24, dtype=dtype), strict=True)
    nobody = [not bool((step.similarities >= 0.5).any()) for step in steps]
    assert 0 < sum(nobody) < len(steps)  # both cases were met
    assert {int(step.stage) for step in steps} == {1, 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("remember", ["estimate", "aggregate"])
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablation_leaves_out_one_thing_and_changes_nothing_else(ablation, remember, dtype):
    left_out, flags = ABLATIONS[ablation]
    rule = rules.wkafl(**SETTINGS, remember=remember).without(*left_out)
    for deliveries in (wild(3, dtype, steps=100)[60:], like(4, dtype)[::2]):
        plain = PlainWkafl(**SETTINGS, remember=remember, **flags)
        follow(rule, plain, deliveries, torch.zeros(24, dtype=dtype), strict=True)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablation_is_not_the_whole_rule(ablation):
    left_out, _ = ABLATIONS[ablation]
    rule, server = rules.wkafl(**SETTINGS), ServerState.initial(torch.zeros(24, dtype=torch.float64))
    random = generator(5)
    first, second = (replace(deliver(random, 6), staleness=[2.0, 3, 4, 5, 6, 7]) for _ in range(2))
    whole, _ = rule(rule(server, first)[0], second)
    less, _ = rule.without(*left_out)(rule.without(*left_out)(server, first)[0], second)
    assert not torch.allclose(whole.params, less.params)


def test_the_step_tells_the_papers_weights_similarities_and_learning_rate():
    plain, random = PlainWkafl(**SETTINGS), generator(6)
    deliveries = [deliver(random, 7) for _ in range(10)]
    for number in range(1, len(deliveries)):
        plain = PlainWkafl(**SETTINGS)
        steps = follow(rules.wkafl(**SETTINGS), plain, deliveries[:number], torch.zeros(24, dtype=torch.float64))
        assert steps[-1].weights.tolist() == pytest.approx(plain.weights, abs=1e-12)
        assert steps[-1].similarities.tolist() == pytest.approx(plain.similarities, abs=1e-9)
        assert float(steps[-1].lr) == pytest.approx(plain.eta, rel=1e-12)


def special(name: str, dtype: torch.dtype) -> list[Arrivals]:
    random = generator(7)
    row = torch.randn(24, generator=random, dtype=torch.float64).to(dtype)
    rows = {
        "identical": row.expand(5, 24).clone(),
        "opposite": torch.stack([row, -row]),
        "zero": torch.zeros(4, 24, dtype=dtype),
        "one zero": torch.stack([row, torch.zeros_like(row), 2 * row]),
        "all inconsistent": torch.eye(20, 24, dtype=dtype),  # each at 1/sqrt(20) to their mean, below 0.3
        "one": row[None],
        "huge": 1e8 * row[None],
        "tiny": 1e-8 * row[None],
    }[name]
    return [Arrivals(rows, torch.ones(len(rows)), torch.full((len(rows),), loss)) for loss in (0.9, 0.5, 0.9)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("remember", ["estimate", "aggregate"])
@pytest.mark.parametrize(
    "name", ["identical", "opposite", "zero", "one zero", "all inconsistent", "one", "huge", "tiny"]
)
def test_wkafl_equals_the_paper_on_special_gradients(name, remember, dtype):
    plain, rule = PlainWkafl(**SETTINGS, remember=remember), rules.wkafl(**SETTINGS, remember=remember)
    follow(rule, plain, special(name, dtype), torch.zeros(24, dtype=dtype))


def test_where_no_gradient_passes_the_server_follows_the_estimate():
    arrivals = special("all inconsistent", torch.float64)[0]
    server, step = rules.wkafl(lr=1.0, lr_decay=0.0)(
        ServerState.initial(torch.zeros(24, dtype=torch.float64)), arrivals
    )
    torch.testing.assert_close(-server.params, arrivals.gradients.mean(0))
    assert float(step.weights.sum()) == pytest.approx(1.0)


def test_the_judge_notices_a_momentum_that_is_off_by_a_ten_thousandth():
    off = rules.wkafl(**SETTINGS | {"momentum": SETTINGS["momentum"] * (1 + 100 * RELATIVE[torch.float32])})
    with pytest.raises(AssertionError, match="off by"):
        follow(off, PlainWkafl(**SETTINGS), like(8, torch.float32), torch.zeros(24))
