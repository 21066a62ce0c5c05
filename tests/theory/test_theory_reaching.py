"""Smoothing over time and the first crossing, against plain loops."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kasync.theory.planning import first_reached, smoothed

curves = st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 1)), min_size=1, max_size=30).map(
    lambda pairs: (np.cumsum([gap for gap, _ in pairs]), [value for _, value in pairs])
)


def plain(times, values, window):
    means = []
    for place, now in enumerate(times):
        kept = [value for then, value in zip(times[: place + 1], values, strict=False) if then > now - window]
        means.append(np.mean(kept))
    return means


@given(curves, st.floats(0.01, 20))
def test_a_curve_is_smoothed_over_the_last_seconds_not_the_last_points(curve, window):
    times, values = curve
    assert smoothed(times, values, window) == pytest.approx(plain(times, values, window))


@given(curves, st.floats(0, 1))
def test_a_target_is_reached_between_the_last_point_below_and_the_first_above(curve, target):
    times, values = curve
    found = first_reached(times, values, target)
    above = [place for place, value in enumerate(values) if value >= target]
    if not above:
        assert found == inf
    elif above[0] == 0:
        assert found == times[0]
    else:
        assert times[above[0] - 1] <= found <= times[above[0]]
        assert np.interp(found, times, values) == pytest.approx(target, abs=1e-9)


def test_halfway_up_is_reached_halfway():
    assert first_reached([2.0, 4.0, 6.0], [0.2, 0.6, 1.0], 0.5) == pytest.approx(3.5)
