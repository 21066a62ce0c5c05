"""Equal tuning: the same number of tries for every rule, on held-out samples, coarse to fine."""

import math
from dataclasses import replace

import pytest
from planes import Plane, arrivals, plain

import kasync
from kasync import Tune, rules
from kasync.comparison.contenders import changed, contenders, settings_of
from kasync.errors import UserError


def searched(given, how, score):
    """The tries of one rule on a formula instead of runs."""
    (search,) = replace(how, seeds=1).searches([(contenders(given)[0], None)])
    while tries := search.propose():
        for settings, seed in tries:
            search.tell(settings, seed, score(**settings))
    return search


@pytest.mark.parametrize("best", [3e-4, 0.02, 0.1, 0.7, 40.0])
def test_ten_tries_come_within_a_factor_of_two_of_the_best_rate(best):
    search = searched([rules.kasync_sgd(0.1)], Tune(10), lambda lr: -abs(math.log(lr / best)))
    assert len(search.scores) == 10
    assert 0.5 < search.best["lr"] / best < 2.0
    assert not search.at_edge


def test_a_rate_at_the_end_of_what_was_tried_is_marked():
    search = searched([rules.kasync_sgd(0.1)], Tune(4), lambda lr: lr)
    assert search.best["lr"] == pytest.approx(100.0)
    assert search.at_edge


def test_a_share_never_goes_above_one():
    search = searched([rules.fedasync(0.5)], Tune(8), lambda mixing: mixing)
    assert max(dict(each)["mixing"] for each in search.scores) == 1.0
    assert len(search.scores) == 8


def test_the_rate_first_then_the_knob_and_the_same_number_for_every_rule():
    order = []

    def score(**settings):
        order.append(settings)
        return -abs(math.log(settings["lr"])) - abs(settings.get("power", 1.0) - 1.0)

    with_knob = searched([("fedbuff", {"lr": 0.1})], Tune(9), score)
    assert len(with_knob.scores) == 9
    assert len({each["power"] for each in order[:6]}) == 1
    assert with_knob.best == {"lr": 1.0, "power": 1.0}
    assert len(searched([rules.kasync_sgd(0.1)], Tune(9), score).scores) == 9


def test_a_rate_that_diverges_is_never_chosen_and_the_smaller_of_two_equal_ones_is():
    search = searched([rules.kasync_sgd(1.0)], Tune(6), lambda lr: math.nan if lr > 0.05 else 1.0)
    assert search.best["lr"] <= 0.05
    assert searched([rules.kasync_sgd(1.0)], Tune(3), lambda lr: 0.0).best["lr"] == pytest.approx(0.1)


def test_a_knob_of_ones_own_is_tried():
    how = Tune(9, knobs={"plain": ("favour", (0.5, 1.0, 2.0))})
    search = searched([(plain, {"lr": 0.1})], how, lambda lr, favour: -abs(math.log(lr)) - abs(favour - 2.0))
    assert search.best == {"lr": 1.0, "favour": 2.0}


def test_the_settings_of_a_made_rule_are_found_and_changed_by_name():
    rule = rules.wkafl(0.1, threshold=0.2)
    assert settings_of(rule)["threshold"] == 0.2
    assert settings_of(rules.fedbuff(0.1))["power"] == 0.5
    assert changed(rules.fedbuff(0.1), power=2.0, lr=0.3) == rules.fedbuff(0.3, power=2.0)
    assert changed(rule, threshold=0.5) == rules.wkafl(0.1, threshold=0.5)
    with pytest.raises(UserError, match="threshold"):
        changed(rule, treshold=0.5)


def test_tuning_tries_every_rule_equally_on_held_out_samples_under_other_seeds(task, held):
    seen = []

    def watched(seed):
        seen.append(seed)
        return held

    chosen = {"mine": plain, "fedbuff": rules.fedbuff(0.01), "slow": "kasync_sgd"}
    found = kasync.compare(**task | {"data": watched}, rules=chosen, seeds=2, tune=Tune(4, seeds=2))
    tries = {rule: [row for row in found.tuned if row["rule"] == rule] for rule in found.rules}
    assert {rule: len(rows) for rule, rows in tries.items()} == {"mine": 4, "fedbuff": 4, "slow": 4}
    for rule, rows in tries.items():
        (best,) = (row for row in rows if row["chosen"])
        assert best["score"] == max(row["score"] for row in rows)
        assert found.about["settings"][rule].startswith(f"lr={best['settings']['lr']:.4g}")
    assert set(seen) == {0, 1, 100, 101}
    tuned_on = {run.parent.name for run in task["folder"].glob("runs/plane-validation*/summary.json")}
    assert len(tuned_on) == 3 * 4 * 2
    again = kasync.compare(
        Plane, held, chosen, arrivals, 2, tune=Tune(4, seeds=2), folder=task["folder"], progress=False
    )
    assert again.tuned == found.tuned


def test_wrong_tuning_is_refused():
    for wrong in ({"budget": 0}, {"seeds": 0}, {"held_out": 1.0}, {"spacing": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Tune(**wrong)


def test_a_rate_that_a_rule_has_twice_is_changed_in_both_places():
    assert changed(rules.gap_aware(0.1), lr=0.5) == rules.gap_aware(0.5)
    assert changed(rules.wkafl(0.1), lr=0.5) == rules.wkafl(0.5)
