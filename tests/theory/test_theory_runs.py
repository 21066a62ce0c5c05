"""Real K-async runs on problems with known constants stay under the theorems' bounds."""

import numpy as np
import pytest
from theory_problems import Quadratic, arrivals, batch_gradient, cosines, quadratic, stage_one_run, stage_two_run

from kasync.theory import (
    Selection,
    StageOne,
    StageTwo,
    largest_rate,
    lemma_one,
    measure_stage_two,
    squared_weights,
    theorem_one,
    theorem_two,
)
from kasync.theory.remarks import at_rate

BATCH = 2


def bound_and_run(problem, k, momentum, start, share, weights=None, steps=250, runs=40):
    """Theorem 1's bound and the mean |grad F|^2 of real runs at a share of the largest allowed rate."""
    timeline = arrivals(problem.clients, k, steps)
    model = np.full(6, float(start))
    weights = np.full((steps, k), 1 / k) if weights is None else weights
    constants = StageOne(
        smoothness=problem.smoothness,
        gradient_noise=problem.noise,
        noise_growth=problem.growth,
        heterogeneity=problem.heterogeneity,
        batch_size=BATCH,
        k=k,
        steps=steps,
        max_staleness=int((np.arange(steps)[:, None] - timeline[1]).max()),
        learning_rates=1.0,
        initial_gap=float(problem.gap(model)),
        momentum=momentum,
        squared_weights=squared_weights(weights),
    )
    rate = share * largest_rate(constants) * (1 - 1e-9)
    bound = theorem_one(StageOne(**{**vars(constants), "learning_rates": rate}))
    return bound, stage_one_run(problem, timeline, model, rate, momentum, BATCH, weights, runs)


@pytest.mark.parametrize("make", [quadratic, cosines])
@pytest.mark.parametrize("k", [1, 3, 12])
@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("start", [0.0, 2.0])
def test_runs_of_k_async_sgd_stay_under_theorem_one_wherever_its_conditions_hold(make, k, momentum, start):
    for noise, spread, share in ((3.0, 0.0, 1.0), (0.1, 0.3, 1.0), (1.0, 0.3, 0.3)):
        bound, norms = bound_and_run(make(noise=noise, spread=spread), k, momentum, start, share)
        assert bound.holds, str(bound)
        assert bound.left_side(norms) <= bound.total, (noise, spread, share, str(bound))


def test_uneven_weights_stay_under_theorem_one_too():
    weights = np.random.default_rng(0).dirichlet([0.3, 0.3, 0.3], size=250)
    bound, norms = bound_and_run(cosines(noise=3.0, spread=0.0), 3, 0.5, 0.0, 1.0, weights)
    assert bound.holds
    assert bound.left_side(norms) <= bound.total


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_at_the_optimum_with_fresh_gradients_theorem_one_overstates_the_noise_only_twice(momentum):
    """Nothing but noise: a wrong factor of two in the variance term would show here."""
    problem = Quadratic(np.full(6, 2.0), np.zeros((4, 6)), noise=2.0, growth=0.0)
    steps, k = 4000, 4
    timeline = (np.tile(np.arange(4), (steps, 1)), np.tile(np.arange(steps)[:, None], (1, 4)))
    constants = StageOne(2.0, 2.0, 0.0, 0.0, BATCH, k, steps, 0, 1.0, 0.0, momentum)
    rate = 0.01 * (1 - momentum)  # a hundredth of what would be unstable: small, yet 4000 steps forget the start
    assert rate <= largest_rate(constants)
    norms = stage_one_run(problem, timeline, np.zeros(6), rate, momentum, BATCH, np.full((steps, k), 0.25), 20)
    bound = theorem_one(at_rate(constants, rate))
    assert bound.terms["variance"] / bound.left_side(norms) == pytest.approx(2, rel=0.2)


@pytest.mark.parametrize("make", [quadratic, cosines])
@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("clip_ratio", [1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_single_run_stays_under_theorem_two_with_the_constants_measured_on_it(make, momentum, clip_ratio, seed):
    problem, start = make(noise=0.5), np.full(6, 2.0)
    rate = 0.02 * (1 - momentum) / problem.smoothness
    timeline = arrivals(problem.clients, 4, 200, seed)
    norms, steps = stage_two_run(problem, timeline, start, rate, momentum, BATCH, clip_ratio, seed)
    measured = measure_stage_two([Selection(*step) for step in steps], spread_growth=0.02)
    assert measured.clip_ratio.value <= clip_ratio * (1 + 1e-12)
    constants = StageTwo(
        smoothness=problem.smoothness,
        estimate_error=measured.estimate_error.value,
        spread=measured.spread.value,
        spread_growth=measured.spread_growth.value,
        clip_ratio=measured.clip_ratio.value,
        steps=200,
        learning_rates=rate,
        initial_gap=float(problem.gap(start)),
        momentum=momentum,
    )
    bound = theorem_two(constants)
    assert bound.holds, str(bound)
    assert np.all(bound.weights >= 0)
    assert bound.left_side(norms) <= bound.total


def test_lemma_one_bounds_the_length_of_a_weighted_sum():
    problem, rng = quadratic(noise=2.0, growth=1.5), np.random.default_rng(0)
    model = np.tile(rng.standard_normal(6), (20_000, 1))
    for weights in ([1.0], [0.5, 0.5], [0.7, 0.2, 0.1]):
        summed = sum(p * batch_gradient(problem, model, client, BATCH, rng) for client, p in enumerate(weights))
        norms = [np.square(problem.client_gradient(model[0], client)).sum() for client in range(len(weights))]
        bound = lemma_one(np.array(weights), np.array(norms), problem.noise, problem.growth, BATCH)
        measured = np.square(summed).sum(1).mean()
        assert measured <= bound * 1.02
        if len(weights) == 1:  # with one gradient nothing is lost
            assert measured == pytest.approx(bound, rel=0.02)
