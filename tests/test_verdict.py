"""What may be said of paired numbers, and what may not."""

import numpy as np
import pytest

from kasync.verdict import between, compared, ranked, verdict


def by_seed(*values):
    return dict(enumerate(values))


CLEAR = {"good": by_seed(0.91, 0.90, 0.92, 0.91, 0.90), "bad": by_seed(0.51, 0.49, 0.52, 0.50, 0.50)}


def test_a_clear_difference_is_established_with_its_size():
    said = verdict(CLEAR, varies=("batches", "arrivals"))
    assert said.startswith("good has the highest final accuracy, 0.908 ± 0.01")
    assert "and differs significantly from bad (+0.404 ± " in said
    assert "5 seeds, which vary batches and arrivals" in said
    assert verdict(CLEAR, "final loss", lower=True).startswith("bad has the lowest final loss")


def test_a_tie_is_no_significant_difference():
    said = verdict({"one": by_seed(0.9, 0.8, 0.85), "two": by_seed(0.8, 0.9, 0.84)})
    assert "but does not differ significantly from two (" in said
    assert "3 seeds find only large differences" in said


def test_the_best_of_three_differs_significantly_from_some():
    third = {"near": by_seed(0.90, 0.91, 0.915, 0.905, 0.91)}
    said = verdict(CLEAR | third)
    assert "does not differ significantly from" in said
    assert "; it does from bad" in said
    assert "corrected for 3 comparisons (Holm)" in said


def test_against_a_baseline_the_rules_are_better_worse_or_neither():
    finals = CLEAR | {"base": by_seed(0.71, 0.70, 0.72, 0.71, 0.70), "same": by_seed(0.70, 0.71, 0.72, 0.70, 0.71)}
    said = verdict(finals, baseline="base")
    assert said.startswith("Against base in final accuracy: significantly better: good (+0.2 ")
    assert "significantly worse: bad (-0.2" in said
    assert "no significant difference: same" in said
    assert "better: bad" in verdict(finals, lower=True, baseline="base")


def test_one_seed_and_one_rule_and_none_say_so():
    assert "this establishes no difference" in verdict({"a": by_seed(0.5), "b": by_seed(0.4)})
    assert "nothing to compare it with" in verdict({"a": by_seed(0.5, 0.6)})
    assert verdict({"a": by_seed(None)}, failed={"a": ["out of memory"]}) == "No run finished: out of memory"


def test_lost_runs_are_named():
    finals = {"a": by_seed(0.5, None, 0.52), "b": by_seed(0.4, 0.41, 0.42)}
    said = verdict(finals, planned=3, failed={"a": ["ValueError: x"]}, diverged={"b": 2})
    assert "1 of 3 runs of a failed and are left out, which may flatter it: ValueError: x." in said
    assert "2 of 3 runs of b diverged." in said


def test_a_difference_turns_its_sign_and_keeps_its_p():
    (gap,) = compared(CLEAR)
    turned = between([gap], "bad", "good")
    assert turned.estimate.mean == pytest.approx(-gap.estimate.mean)
    assert (turned.holm, turned.rule) == (gap.holm, "bad")
    assert between([gap], "good", "else") is None
    assert [rule for rule, _ in ranked(CLEAR, lower=True)] == ["bad", "good"]


def test_among_rules_that_are_all_the_same_a_best_one_seldom_differs_significantly():
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(400):  # four equal rules, five seeds: the best is chosen from the same numbers
        finals = {name: by_seed(*rng.normal(0.8, 0.02, 5)) for name in "abcd"}
        found += any(each.established for each in compared(finals))
    assert found / 400 < 0.08
