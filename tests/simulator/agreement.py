"""The simulator agrees with the naive one: the same final parameters and the same records on the way."""

import numpy as np
import pytest
from naive import flat, own_gradient, simulate_naively
from small_worlds import finished, make_rule


def agree(
    model, data, name, timeline, work, holds=("gradients", "versions"), bound=1e-5, more=None, spoil=None, **options
):
    """Both simulators end with the same parameters and told the same on the way; `more` are settings of the rule."""
    naive_rule = make_rule(name, model, data, own_gradient, **more or {})
    faults = options.pop("faults", None)
    expected = simulate_naively(model, data, naive_rule, timeline, work, spoil=spoil, **options)
    options |= {"faults": faults}
    rule = make_rule(name, model, data, **more or {})
    moved = (expected.params[-1] - flat(model)).abs().max()
    assert moved > 100 * bound, "the run must go somewhere, or agreeing means nothing"
    for hold in ["versions"] if rule.needs_starts else holds:
        records, simulation = finished(model, data, rule, timeline, work, hold=hold, **options)
        assert (simulation.params - expected.params[-1]).abs().max() < bound, hold
        np.testing.assert_allclose([r.loss for r in records], expected.losses, atol=1e-4)
        np.testing.assert_array_equal([r.staleness for r in records], expected.staleness)
        assert [r.dropped for r in records] == expected.dropped
        assert [r.step for r in records] == list(range(1, timeline.steps + 1))
        assert [r.time for r in records] == timeline.times.tolist()
        assert records[-1].accuracy == pytest.approx(expected.accuracy)
        assert records[-1].test_loss == pytest.approx(expected.test_loss, abs=1e-4)
