"""Are means, intervals and paired differences what a person computes by hand?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kasync.report.intervals import METHOD, Estimate, bands, estimate, paired, t_quantile, t_within

numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (29, 2.0452), (120, 1.9799)],
)
def test_the_quantile_is_the_one_printed_in_tables_of_students_t(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


@pytest.mark.parametrize("freedom", [1, 2, 5, 8, 31])
def test_the_share_within_t_is_the_integral_of_the_density(freedom):
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    x = np.linspace(-1.7, 1.7, 20_001)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert t_within(1.7, freedom) == pytest.approx(float(np.trapezoid(density, x)), abs=1e-8)


def test_the_sentence_about_the_method_has_the_factors_it_names():
    for seeds, factor in ((2, "12.7"), (3, "4.3"), (5, "2.8")):
        assert f"{t_quantile(seeds - 1):.1f}" == factor
        assert factor in METHOD


def test_three_values_give_the_mean_and_interval_of_a_hand_calculation():
    found = estimate([1.0, 3.0, 5.0])  # standard deviation 2, 4.3027 * 2 / sqrt(3)
    assert found.mean == 3.0
    assert found.half == pytest.approx(4.9683, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((-1.9683, 7.9683), abs=1e-4)


def test_one_value_has_no_interval_and_none_is_no_estimate():
    assert estimate([0.5]) == Estimate(0.5, None, 1)
    assert estimate([None, math.nan]) is None
    assert estimate([None, 0.25, 0.75]).count == 2


def test_a_difference_is_taken_seed_by_seed():
    ours, theirs = {0: 0.9, 1: 0.8, 2: 0.7, 9: 0.1}, {0: 0.85, 1: 0.75, 2: 0.65, 5: 0.9}
    found = paired(ours, theirs)
    assert found.mean == pytest.approx(0.05)
    assert found.half == pytest.approx(0.0, abs=1e-9)  # though each rule varies by 0.1 between seeds
    assert found.count == 3
    assert found.excludes_zero
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: None, 1: 2.0}, {0: 1.0, 1: 1.0}).count == 1


@given(numbers, st.floats(-10, 10))
def test_shifting_every_value_shifts_the_interval_and_leaves_its_width(values, shift):
    one, other = estimate(values), estimate([value + shift for value in values])
    assert other.mean == pytest.approx(one.mean + shift, abs=1e-9)
    assert other.half == pytest.approx(one.half, abs=1e-8)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1) | st.just(math.nan)), min_size=1, max_size=6))
def test_a_band_is_the_estimate_of_every_point_and_of_few_seeds_their_range(rows):
    mean, low, high = bands(rows)
    for point in range(2):
        found = estimate([row[point] for row in rows])
        if found is None:
            assert np.isnan([mean[point], low[point], high[point]]).all()
        else:
            assert mean[point] == pytest.approx(found.mean)
            assert (found.half is None) == np.isnan(low[point])
            if found.half is not None:
                known = [row[point] for row in rows if not math.isnan(row[point])]
                ends = (min(known), max(known)) if len(known) < 5 else (found.low, found.high)
                assert (low[point], high[point]) == pytest.approx(ends, abs=1e-12)


def test_the_interval_covers_the_true_mean_in_95_of_100_cases():
    draws = np.random.default_rng(7).normal(2.0, 3.0, (5, 20_000))
    _, low, high = bands(draws)
    assert np.mean((low < 2.0) & (high > 2.0)) == pytest.approx(0.95, abs=0.006)
