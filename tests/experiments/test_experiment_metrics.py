"""The paper's metrics, on numbers checked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kasync import statistics
from kasync.experiments import metrics

weights = arrays(np.float64, (6, 4), elements=st.floats(0, 1))
staleness = arrays(np.int64, (6, 4), elements=st.integers(0, 50))


def test_a_target_is_reached_at_the_first_evaluation_at_or_above_it():
    assert statistics.reached([0.1, 0.5, 0.4, 0.9], 0.5) == 1
    assert statistics.reached([0.1, 0.5], 0.6) is None


def test_weights_are_normalised_step_by_step_and_a_step_without_weights_counts_nothing():
    assert metrics.normalised([[1.0, 3.0], [0.0, 0.0]]).tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_average_staleness_weighs_by_normalised_weights():
    # step one: 0.25 * 4 + 0.75 * 0 = 1; step two: 0.5 * 2 + 0.5 * 4 = 3
    assert metrics.average_staleness([[1.0, 3.0], [0.1, 0.1]], [[4, 0], [2, 4]]) == pytest.approx(2.0)


def test_the_aggregated_are_those_within_mu_of_the_largest():
    shares = [[0.6, 0.3, 0.1], [0.5, 0.5, 0.0]]
    number, stale = metrics.aggregated(shares, [[1, 3, 9], [2, 4, 9]], ratio=2.0)
    assert number == pytest.approx(2.0)  # 0.6 and 0.3; both 0.5
    assert stale == pytest.approx((2.0 + 3.0) / 2)


def test_predominant_gradients_have_weights_above_the_threshold():
    assert metrics.predominant([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]], 0.1).tolist() == [2, 1]


@given(weights, staleness)
def test_average_staleness_agrees_with_two_plain_loops(p, s):
    total = 0.0
    for row, stale in zip(p, s, strict=True):
        if row.sum() > 0:
            total += sum(w / row.sum() * t for w, t in zip(row, stale, strict=True))
    assert metrics.average_staleness(p, s) == pytest.approx(total / len(p))


@given(weights, staleness)
def test_a_larger_mu_never_counts_fewer(p, s):
    counts = [metrics.aggregated(p, s, ratio)[0] for ratio in (1.0, 2.0, 10.0)]
    assert counts == sorted(counts)
