"""Each part alone, on numbers that can be checked by eye."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kasync import Arrivals, Part, Rule, ServerState, Step, discounts, parts, timelines

EAST, NORTH, WEST = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]


def numbers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def do(
    *chain: Part, rows, staleness=None, memory=None, params=(0.0, 0.0), lr=1.0, known=None, **more
) -> tuple[ServerState, Step]:
    """One step of a rule of these parts, for a server that remembers this and knows so many clients."""
    rule = Rule("these parts", lr, chain, clients=known)
    server = rule.prepared(ServerState.initial(numbers(params)))
    remembered = {name: numbers(value) if isinstance(value, list) else value for name, value in (memory or {}).items()}
    server = ServerState(server.params, server.step, {**server.memory, **remembered})
    return rule(server, Arrivals(numbers(rows), staleness or [0] * len(rows), **more))


def moved(*chain: Part, **given) -> list[float]:
    """How far one step with learning rate 1 goes down."""
    server, _ = do(*chain, **given)
    return pytest.approx((numbers(given.get("params", (0.0, 0.0))) - server.params).tolist(), abs=1e-9)


def test_no_part_at_all_is_the_mean():
    assert moved(rows=[[1.0, 2.0], [3.0, 4.0]]) == [2.0, 3.0]


def test_the_norms_are_those_of_the_gradients_as_they_stand():
    _, step = do(rows=[[3.0, 4.0], [0.0, 2.0]])
    assert step.norms().tolist() == [5.0, 2.0]
    assert step.scaled(numbers([-2.0, 0.5])).norms().tolist() == [10.0, 1.0]
    assert step.shortened(numbers([0.5, 0.0])).norms().tolist() == [2.5, 0.0]
    assert step.having(coefficients=step.coefficients.flip(0)).norms().tolist() == [2.0, 5.0]


def test_what_a_step_was_asked_of_one_row_it_does_not_say_of_another():
    _, step = do(rows=[[3.0, 4.0], [0.0, 2.0]])
    first, second = step.coefficients
    assert [float(step.norms(row)) for row in (first, second, first)] == [5.0, 2.0, 5.0]
    assert step.cosines_to(second).tolist() == pytest.approx([0.8, 1.0])
    assert step.cosines_to(first).tolist() == pytest.approx([1.0, 0.8])


def test_momentum_is_added_to_every_gradient():
    assert moved(parts.AddMomentum(0.5), rows=[EAST, NORTH], memory={"AddMomentum.momentum": [2.0, 4.0]}) == [1.5, 2.5]


@pytest.mark.parametrize(("what", "kept"), [("estimate", [0.5, 0.5]), ("aggregate", [1.0, 0.0])])
def test_the_estimate_or_the_aggregate_is_remembered(what, kept):
    class EstimateTheMean(Part):
        def __call__(self, step: Step) -> Step:
            return replace(step, estimate=step.direction).weighed(numbers([1.0, 0.0]))

    server, _ = do(parts.AddMomentum(0.5, what), EstimateTheMean(), rows=[EAST, NORTH])
    assert server.memory["AddMomentum.momentum"].tolist() == kept


def test_a_long_gradient_is_shortened_and_a_short_one_is_not():
    assert moved(parts.ClipNorms(2.5), rows=[[3.0, 4.0]]) == [1.5, 2.0]
    assert moved(parts.ClipNorms(2.5), rows=[[0.3, 0.4]]) == [0.3, 0.4]
    assert moved(parts.ClipNorms(2.5), rows=[[0.0, 0.0]]) == [0.0, 0.0]


def test_the_clip_to_the_estimate_waits_for_stage_two():
    rows, early, late = [[8.0, 0.0], [0.0, 0.0]], {"stage": torch.tensor(1)}, {"stage": torch.tensor(2)}
    assert moved(parts.ClipToEstimate(0.5), rows=rows, memory=early) == [4.0, 0.0]  # the estimate is the mean, 4
    assert moved(parts.ClipToEstimate(0.5), rows=rows, memory=late) == [1.0, 0.0]  # 8 comes down to 0.5 * 4


def test_the_clip_to_the_estimate_leaves_the_estimate_as_it_was():
    _, step = do(parts.ClipToEstimate(0.5), rows=[[8.0, 0.0]], memory={"stage": torch.tensor(2)})
    assert float(step.norms(step.estimate)) == 8.0


@pytest.mark.parametrize(("losses", "stage"), [([1.0, 0.2], 1), ([0.9, 0.1], 2), ([0.1, 0.1], 2), (None, 1)])
def test_stage_two_begins_when_the_mean_loss_is_low(losses, stage):
    server, step = do(parts.EnterStageTwo(0.5), rows=[EAST, EAST], losses=losses)
    assert int(step.stage) == int(server.memory["stage"]) == stage


def test_stage_two_is_for_good():
    server, _ = do(parts.EnterStageTwo(0.5), rows=[EAST], losses=[9.0], memory={"stage": torch.tensor(2)})
    assert int(server.memory["stage"]) == 2


def test_a_broken_loss_does_not_begin_stage_two():
    _, step = do(parts.EnterStageTwo(0.5), rows=[EAST, EAST], losses=[math.nan, 0.9])
    assert int(step.stage) == 1


def test_the_estimate_weighs_a_step_of_staleness_by_two_over_e():
    share = (2 / math.e) / (1 + 2 / math.e)
    _, step = do(parts.EstimateByStaleness(), rows=[EAST, NORTH], staleness=[7, 8])
    assert step.weights.tolist() == pytest.approx([1 - share, share])
    assert step.estimate.tolist() == pytest.approx([1 - share, share])


def test_base_two_halves_the_weight_of_a_stale_batch():
    _, step = do(parts.WeighByStaleness(base=2.0), rows=[EAST, NORTH], staleness=[0, 1], batch_sizes=[1, 4])
    assert step.weights.tolist() == pytest.approx([1 / 3, 2 / 3])  # 1 to 4/2
    _, printed = do(
        parts.WeighByStaleness(base=2.0, normalize=False), rows=[EAST, NORTH], staleness=[0, 1], batch_sizes=[1, 4]
    )
    assert printed.weights.tolist() == pytest.approx([0.2, 0.4])


def test_selection_leaves_out_what_points_elsewhere():
    _, step = do(parts.SelectConsistent(10.0, 0.3), rows=[EAST, EAST, [-1.0, 0.0]])
    assert step.similarities.tolist() == pytest.approx([1.0, 1.0, -1.0])
    assert step.weights.tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_selection_is_sharper_with_more_sharpness():
    rows = [EAST, [1.0, 1.0]]
    _, flat = do(parts.SelectConsistent(0.0, -1.0), rows=rows)
    assert flat.weights.tolist() == pytest.approx([0.5, 0.5])
    _, sharp = do(parts.SelectConsistent(1000.0, -1.0), rows=rows)
    assert float(sharp.weights.max()) == pytest.approx(1.0)


def test_a_zero_gradient_has_similarity_zero():
    _, step = do(parts.SelectConsistent(1.0, 0.3), rows=[EAST, [0.0, 0.0]])
    assert step.similarities.tolist() == [1.0, 0.0]
    assert step.weights.tolist() == [1.0, 0.0]


def test_where_nothing_is_selected_the_estimate_is_followed():
    assert moved(parts.SelectConsistent(1.0, 0.9), rows=[EAST, NORTH]) == [0.5, 0.5]
    halved = parts.DiscountStaleness(lambda staleness: torch.full_like(staleness, 0.5))
    assert moved(halved, parts.SelectConsistent(1.0, 0.9), rows=[EAST, NORTH]) == [0.25, 0.25]


def test_the_learning_rate_falls_with_the_least_staleness():
    _, step = do(parts.SlowWhenAllStale(0.5), rows=[EAST, NORTH], staleness=[4, 9], lr=0.3)
    assert float(step.lr) == pytest.approx(0.1)


@pytest.mark.parametrize(("staleness", "lr"), [([0, 5], 0.5), ([0, 10], 0.1), ([0, 1], 0.5)])
def test_the_learning_rate_falls_with_the_largest_staleness_beyond_patience(staleness, lr):
    _, step = do(parts.SlowWhenAnyStale(5.0), rows=[EAST, NORTH], staleness=staleness, lr=0.5)
    assert float(step.lr) == pytest.approx(lr)


def test_what_is_too_stale_is_left_out():
    assert moved(parts.DropStale(3), rows=[EAST, NORTH, NORTH], staleness=[0, 3, 2]) == [0.5, 0.5]
    assert moved(parts.DropStale(3), rows=[EAST], staleness=[3]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("discount", "factors"),
    [
        (discounts.NoDiscount(), [1, 1, 1]),
        (discounts.Polynomial(0.5), [1, 0.5, 0.1]),
        (discounts.Hinge(slope=10, grace=4), [1, 1, 1 / 951]),
        (discounts.Inverse(3.0), [1, 1, 3 / 99]),
        (discounts.Inverse(1.0), [1, 1 / 3, 1 / 99]),
    ],
)
def test_a_discount_is_the_factor_it_says(discount, factors):
    assert discount(numbers([0, 3, 99])).tolist() == pytest.approx(factors)
    _, step = do(parts.DiscountStaleness(discount), rows=[EAST] * 3, staleness=[0, 3, 99])
    assert step.weights.tolist() == pytest.approx([factor / 3 for factor in factors])


def test_half_mixing_ends_half_way_to_the_trained_model():
    mix = parts.MixModels(0.5, discounts.NoDiscount())
    server, _ = do(mix, rows=[[2.0, 0.0]], params=(1.0, 1.0), starts=numbers([[5.0, 5.0]]))
    assert server.params.tolist() == [2.0, 3.0]  # from (1, 1), half way to the trained (3, 5)


def test_a_round_of_gsgm_ends_when_too_few_clients_are_left():
    server = ServerState.initial(numbers([0.0]))
    rule, means = Rule("gsgm", 1.0, (parts.AddRoundMomentum(0.5),), clients=5), []
    for row in (2.0, 4.0, 1.0, 1.0):
        server, _ = rule(server, Arrivals(numbers([[row], [row]]), [0, 0]))
        means.append(float(server.memory["AddRoundMomentum.mean"]))
    assert means == [0.0, 3.0, 3.0, 2.5]  # 2 and 4; then 1 + 3/2 twice


def test_calibration_replaces_only_what_is_new():
    rule, server = Rule("ca2fl", 1.0, (parts.Calibrate(),), clients=2), ServerState.initial(numbers([0.0]))
    ways = []
    for row, client in ((4.0, 0), (2.0, 1), (6.0, 0)):
        after, _ = rule(server, Arrivals(numbers([[row]]), [0], clients=[client]))
        ways.append(float(server.params - after.params))
        server = after
    assert ways == [4.0, 4.0, 5.0]  # 0 + 4 - 0;  4/2 + 2 - 0;  (4+2)/2 + 6 - 4
    assert server.memory["Calibrate.last"][:2].tolist() == [[6.0], [2.0]]


def test_everyones_latest_gradient_counts_and_an_old_one_is_forgotten():
    for max_staleness, last in ((None, 3.0), (1, 4.0)):
        rule = Rule("ace", 1.0, (parts.AverageEveryone(max_staleness),), clients=3)
        server = ServerState.initial(numbers([0.0]))
        for row, client in ((1.0, 0), (3.0, 1), (5.0, 2)):
            before = server.params
            server, _ = rule(server, Arrivals(numbers([[row]]), [0], clients=[client]))
        assert float(before - server.params) == last  # of 1, 3, 5, or of the last two


def test_a_gradient_older_than_the_server_is_still_somebodys_latest():
    server, _ = do(parts.AverageEveryone(), known=3, rows=[[4.0, 0.0]], staleness=[10**6], clients=[1])
    assert server.params.tolist() == [-4.0, 0.0]


def test_ringleader_waits_for_everyone_then_updates_once_for_each():
    rule, server = Rule("ringleader", 1.0, (parts.AverageRounds(),), clients=2), ServerState.initial(numbers([0.0]))
    ways = []
    for row, client in ((2.0, 0), (4.0, 0), (5.0, 1), (7.0, 1), (6.0, 0), (1.0, 0)):
        after, _ = rule(server, Arrivals(numbers([[row]]), [0], clients=[client]))
        ways.append(float(server.params - after.params))
        server = after
    # nothing; nothing; (3 + 5)/2; 7 waits for the next round; (4 + 5)/2, round over; (1 + 7)/2
    assert ways == pytest.approx([0.0, 0.0, 4.0, 0.0, 4.5, 4.0])


def test_krum_takes_the_one_in_the_middle():
    _, step = do(parts.PickCentral(0), rows=[[0.0, 0.0], [1.0, 0.0], [2.5, 0.0], [99.0, 0.0]])
    assert step.weights.tolist() == [0.0, 1.0, 0.0, 0.0]  # its two nearest are 1 and 1.5 away


def test_krum_shares_between_those_that_are_equally_central():
    _, step = do(parts.PickCentral(1), rows=[[0.0, 0.0], [1.0, 0.0], [2.5, 0.0], [99.0, 0.0]])
    assert step.weights.tolist() == [0.5, 0.5, 0.0, 0.0]  # each is the other's nearest


def test_the_median_of_three_in_a_row_is_the_middle_one():
    server, _ = do(parts.FindMedian(iterations=200), rows=[[0.0, 0.0], [1.0, 0.0], [9.0, 0.0]])
    assert (-server.params).tolist() == pytest.approx([1.0, 0.0], abs=1e-3)


def test_centered_clipping_pulls_by_at_most_the_radius_each():
    server, _ = do(parts.CenterAndClip(2.0), rows=[[1.0, 0.0], [100.0, 0.0]])
    assert server.memory["CenterAndClip.center"].tolist() == [1.5, 0.0]  # (1 + 2) / 2
    assert (-server.params).tolist() == [1.5, 0.0]


def server_looks_east(params: torch.Tensor) -> torch.Tensor:
    return numbers([2.0, 0.0])


def test_trust_is_the_cosine_with_the_servers_gradient():
    rows = [[10.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
    server, step = do(parts.TrustByServer(server_looks_east), rows=rows)
    assert step.weights.tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert (-server.params).tolist() == pytest.approx([2.0, 0.0])


def test_only_what_is_near_the_servers_gradient_is_accepted():
    assert moved(parts.AcceptNearServer(server_looks_east, 0.5), rows=[[3.0, 0.0], [3.1, 0.0], EAST]) == [2.0, 0.0]
    assert moved(parts.AcceptNearServer(server_looks_east, 0.5), rows=[[9.0, 0.0]]) == [0.0, 0.0]


def test_zeno_accepts_by_score_and_rescales():
    part = parts.AcceptByScore(server_looks_east, scale=1.0, penalty=0.1, slack=0.0, refresh_every=1)
    server, step = do(part, rows=[EAST, NORTH])  # scores 4 - 0.4 and 0 - 0.4
    assert step.weights.tolist() == [1.0, 0.0]
    assert (-server.params).tolist() == pytest.approx([2.0, 0.0])


def test_zenos_server_gradient_is_taken_only_where_it_is_due_and_again_after_a_refusal():
    taken = []

    def towards(params, step):
        taken.append(int(step))
        return torch.tensor([2.0, 0.0] if int(step) != 1 else [0.0, 2.0])

    part = parts.AcceptByScore(towards, scale=1.0, penalty=0.1, slack=0.0, refresh_every=2)
    rule, server = Rule("zeno", 1.0, (part,)), ServerState.initial(torch.zeros(2))
    accepted = []
    for rows in ([NORTH], [EAST], [EAST], [EAST], [EAST], [WEST], [EAST]):
        server, step = rule(server, Arrivals(torch.tensor(rows), [0]))
        accepted.append(float(step.weights))
    # refused by the first v and by the second, accepted by the third, by the same once more, by a new one ...
    assert accepted == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    assert taken == [0, 1, 2, 4]
    assert int(server.memory["AcceptByScore.accepted"]) == 4


def test_ringmaster_ignores_two_fifths_where_counting_every_step_would_ignore_three():
    """200 clients one at a time, bound 100: .42 of the work is ignored by the paper's clock of accepted updates."""
    timeline = timelines.uniform(clients=200, k=1, steps=2000, seed=1)
    rule, server, ignored, older = Rule("ringmaster", 0.1, (parts.DropStale(100),)), None, 0, 0
    server = ServerState.initial(torch.zeros(1))
    for number, (version,) in enumerate(timeline.versions.tolist()):
        server, step = rule.advance(server, Arrivals(torch.ones(1, 1), [number - version]))
        if number >= 800:
            ignored += float(step.weights.sum()) == 0.0
            older += number - version >= 100
    assert ignored / 1200 == pytest.approx(0.42, abs=0.03)
    assert older / 1200 == pytest.approx(0.60, abs=0.03)
