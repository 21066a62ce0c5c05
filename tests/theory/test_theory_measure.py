"""`measure` finds the constants that a problem really has."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_problems import batch_gradient, cosines, quadratic

from kasync.errors import UserError
from kasync.theory import ModelTask, Selection, measure_constants, measure_stage_two
from kasync.theory.measure import smoothness_by_power, smoothness_by_secants, upper_line

CLOSE = {"rel": 0.1}


@pytest.mark.parametrize("make", [quadratic, cosines])
def test_measured_constants_are_within_ten_percent_of_the_true_ones(make):
    problem = make(noise=1.0, growth=0.5, dimension=30, clients=5)
    rng = np.random.default_rng(0)
    points = [scale * rng.standard_normal(30) for scale in (0.0, 0.3, 1.0, 3.0, 6.0)]

    def noisy(params, client, draw):
        return batch_gradient(
            problem, params, client, 4, np.random.default_rng((client, draw, int(params[0] * 1e6) % 97))
        )

    # The multiplicative noise is one number per batch, so many batches are needed to see its variance to a few percent.
    found = measure_constants(problem.client_gradient, noisy, points, range(problem.clients), 4, draws=2000)
    assert found.smoothness.value == pytest.approx(problem.smoothness, **CLOSE)
    assert found.heterogeneity.value == pytest.approx(problem.heterogeneity, **CLOSE)
    assert found.gradient_noise.value == pytest.approx(problem.noise, **CLOSE)
    assert found.noise_growth.value == pytest.approx(problem.growth, **CLOSE)
    assert "power iterations" in found.smoothness.how
    assert "2000 batches of 4" in found.gradient_noise.how


def test_secants_and_power_iteration_never_exceed_the_true_smoothness():
    problem, rng = cosines(), np.random.default_rng(1)
    points = np.cumsum(0.3 * rng.standard_normal((20, 6)), axis=0)
    for estimate in (
        smoothness_by_secants(problem.client_gradient, points, [0, 1]),
        smoothness_by_power(problem.client_gradient, points, [0, 1]),
    ):
        assert 0.5 * problem.smoothness < estimate.value <= problem.smoothness * (1 + 1e-6)


def test_a_torch_model_gives_the_gradients_and_hessians_of_its_loss():
    """Least squares: the gradient is X'(Xw - y)/n and the Hessian X'X/n, known in closed form."""
    rng = np.random.default_rng(0)
    data = {c: (torch.tensor(rng.standard_normal((8, 3))), torch.tensor(rng.standard_normal((8, 1)))) for c in range(3)}
    model = torch.nn.Linear(3, 1, bias=False).double()
    task = ModelTask(model, lambda out, y: 0.5 * torch.nn.functional.mse_loss(out, y), data.__getitem__, batch_size=4)
    params = task.params()
    hessians = [inputs.numpy().T @ inputs.numpy() / 8 for inputs, _ in data.values()]
    for client, (inputs, labels) in data.items():
        x, y = inputs.numpy(), labels.numpy()[:, 0]
        assert task.client_gradient(params, client) == pytest.approx(x.T @ (x @ params - y) / 8, abs=1e-12)
        vector = rng.standard_normal(3)
        assert task.hessian_vector(params, client, vector) == pytest.approx(hessians[client] @ vector, abs=1e-12)
    draws = np.mean([task.batch_gradient(params, 0, draw) for draw in range(4000)], axis=0)
    assert draws == pytest.approx(task.client_gradient(params, 0), abs=0.05)
    assert np.array_equal(task.batch_gradient(params, 0, 7), task.batch_gradient(params, 0, 7))
    largest = max(np.linalg.eigvalsh(hessian)[-1] for hessian in hessians)
    for exact in (task.hessian_vector, None):
        found = smoothness_by_power(task.client_gradient, [params], [0, 1, 2], hessian_vector=exact, iterations=60)
        assert found.value == pytest.approx(largest, rel=1e-3)


def test_a_deep_model_is_measured_without_touching_its_parameters():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    inputs, labels = torch.randn(40, 4), torch.randint(0, 3, (40,))
    task = ModelTask(
        model, torch.nn.functional.cross_entropy, lambda c: (inputs[c::4], labels[c::4]), batch_size=5, seed=1
    )
    before = task.params()
    found = measure_constants(
        task.client_gradient, task.batch_gradient, [before], range(4), 5, draws=8, hessian_vector=task.hessian_vector
    )
    assert np.array_equal(before, task.params())
    assert all(value.grad is None for value in model.parameters())
    assert found.smoothness.value > 0
    assert found.heterogeneity.value > 0
    # The exact products and the differences of gradients see the same curvature.
    again = smoothness_by_power(task.client_gradient, [before], range(4))
    assert again.value == pytest.approx(found.smoothness.value, rel=0.05)


@given(
    st.lists(
        st.tuples(st.floats(0, 100, allow_subnormal=False), st.floats(0, 100, allow_subnormal=False)),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=300, deadline=None)
def test_the_upper_line_lies_above_every_point_and_touches_one(points):
    x, y = (np.array(column) for column in zip(*points, strict=True))
    start, slope = upper_line(x, y)
    assert start >= 0
    assert slope >= 0
    above = start + slope * x - y
    assert above.min() == pytest.approx(0, abs=1e-9 * y.max())


@given(st.floats(0.01, 10), st.floats(0, 10), st.lists(st.floats(0, 1e4), min_size=3, max_size=20, unique=True))
@settings(max_examples=200, deadline=None)
def test_points_on_a_line_give_that_line(start, slope, x):
    x = np.array([0.0, 1.0, *x])
    found_start, found_slope = upper_line(x, start + slope * x)
    assert found_start + found_slope * x == pytest.approx(start + slope * x, rel=1e-3, abs=1e-4)


def test_stage_two_constants_hold_on_every_step_they_were_measured_on():
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(30):
        rows, truth = rng.standard_normal((5, 4)), rng.standard_normal(4)
        weights = rng.dirichlet(np.ones(5))
        steps.append(Selection(weights, rows, weights @ rows, truth))
    for fixed in (None, 0.3):
        found = measure_stage_two(steps, spread_growth=fixed)
        for step in steps:
            length = np.square(step.estimate).sum()
            assert step.spread <= found.spread.value**2 + found.spread_growth.value * length + 1e-9
            assert step.error <= found.estimate_error.value
            assert step.ratio <= found.clip_ratio.value
    assert found.spread_growth.value == 0.3


def test_stage_two_constants_are_recovered_where_they_are_exact():
    """Two gradients at estimate +- d with |d|^2 = 0.25 + 0.1 |estimate|^2, so sigma_e = 0.5 and M_e = 0.1."""
    steps = []
    for length in (0.5, 1.0, 2.0, 4.0):
        estimate = np.array([length, 0.0])
        offset = np.array([0.0, np.sqrt(0.25 + 0.1 * length**2)])
        rows = np.stack([estimate + offset, estimate - offset])
        steps.append(Selection(np.array([0.5, 0.5]), rows, estimate, estimate + np.array([0.3, 0.4])))
    found = measure_stage_two(steps)
    assert found.spread.value == pytest.approx(0.5)
    assert found.spread_growth.value == pytest.approx(0.1)
    assert found.estimate_error.value == pytest.approx(0.5)


def test_measuring_nowhere_is_refused():
    problem = quadratic()
    with pytest.raises(UserError, match="points"):
        smoothness_by_power(problem.client_gradient, [], [0])
    with pytest.raises(UserError, match="different points"):
        smoothness_by_secants(problem.client_gradient, [np.zeros(6)], [0])
    with pytest.raises(UserError, match="selections"):
        measure_stage_two([])
