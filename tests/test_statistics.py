"""Means, intervals and paired differences, against values computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from kasync import statistics
from kasync.statistics import METHOD, Estimate, bands, differences, estimate, holm, p_value, paired, t_quantile, window

numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (29, 2.0452), (120, 1.9799)],
)
def test_the_quantile_is_the_one_printed_in_tables_of_students_t(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


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


@given(numbers.filter(lambda values: np.std(values) > 1e-6))
def test_p_is_below_five_percent_exactly_where_the_interval_excludes_zero(values):
    p, found = p_value(values), estimate(values)
    if abs(abs(found.mean) - found.half) > 1e-9 * found.half:
        assert (p < 0.05) == found.excludes_zero


def test_p_is_that_of_scipys_paired_t_test():
    ours, theirs = [0.91, 0.88, 0.93, 0.90], [0.89, 0.885, 0.90, 0.87]
    gaps = [one - other for one, other in zip(ours, theirs, strict=True)]
    assert p_value(gaps) == pytest.approx(ttest_rel(ours, theirs).pvalue, rel=1e-9)


def test_p_of_a_difference_that_never_varies_is_certain():
    assert p_value([0.25, 0.25, 0.25]) == 0.0
    assert p_value([0.0, 0.0]) == 1.0
    assert p_value([0.3]) is None


def test_holm_on_the_numbers_of_a_textbook():
    # sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 and never smaller than the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2, None, 0.9]) == [pytest.approx(0.4), None, pytest.approx(0.9)]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_holm_keeps_the_chance_of_any_false_finding_at_five_percent():
    draws = np.random.default_rng(3).normal(0.0, 1.0, (600, 6, 5))  # families of six differences, none of them real
    raw = [[p_value(list(row)) for row in family] for family in draws]
    assert np.mean([min(family) < 0.05 for family in raw]) > 0.2  # without a correction
    assert np.mean([min(holm(family)) < 0.05 for family in raw]) < 0.08


def test_differences_are_of_the_seeds_that_both_have():
    assert differences({2: 0.5, 0: 0.75, 7: 0.1}, {0: 0.25, 2: 0.25, 3: 9.0}) == [0.5, 0.25]


def test_the_end_of_a_run_is_ten_evaluations_and_never_more_than_half_the_curve():
    assert [window(n) for n in (0, 1, 2, 3, 9, 10, 15, 19, 20, 21, 1000)] == [1, 1, 1, 1, 4, 5, 7, 9, 10, 10, 10]
    assert statistics.final([0.0] * 10 + [0.5] * 5 + [0.7] * 5) == pytest.approx(0.6)
    assert statistics.final([0.2, 0.4]) == pytest.approx(0.4)


def test_stability_is_the_population_deviation_of_natural_logarithms():
    # logarithms 0 and -1, five times each: mean -0.5, deviation 0.5
    assert statistics.stability([0.3] * 10 + [1.0, np.exp(-1.0)] * 5) == pytest.approx(0.5)


def test_stability_of_a_constant_is_zero_and_of_a_zero_unknown():
    assert statistics.stability([0.9] * 22) == pytest.approx(0.0, abs=1e-12)
    assert np.isnan(statistics.stability([0.9] * 19 + [0.0]))
