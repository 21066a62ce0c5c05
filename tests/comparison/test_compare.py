"""Comparisons in Python: paired runs, numbers a person can check, resumption, failures that are marked."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from planes import Plane, arrivals, plain
from scipy import stats

import kasync
from kasync import parts, rules, verdict
from kasync.errors import UserError


class Broken(parts.ClipNorms):
    """Fails at the tenth step."""

    def __call__(self, step):
        if int(step.number) == 10:
            raise ZeroDivisionError("on purpose")
        return step


@pytest.fixture(scope="module")
def three(held, tmp_path_factory):
    """Three rules under five seeds."""
    folder = tmp_path_factory.mktemp("three")
    chosen = {"mine": plain(0.5), "slow": rules.kasync_sgd(0.001), "fedbuff": rules.fedbuff(0.5)}
    return kasync.compare(Plane, held, chosen, arrivals, seeds=5, folder=folder, progress=False)


def test_a_run_of_a_comparison_is_the_run_that_simulate_makes(three, held):
    torch.manual_seed(3)
    *_, last = kasync.simulate(Plane(), held, plain(0.5), arrivals(3), seed=3, evaluate_every=1)
    assert three.runs["mine"][3].rows["accuracy"][-1] == last.accuracy
    assert three.runs["mine"][3].rows["test_loss"][-1] == last.test_loss


def test_the_table_has_the_numbers_of_a_hand_calculation(three):
    frame = three.to_frame()
    ends = frame.groupby(["rule", "seed"]).accuracy.apply(lambda curve: curve.tail(10).mean())
    for rule in three.rules:
        low, high = stats.t.interval(0.95, 4, ends[rule].mean(), stats.sem(ends[rule]))
        row = three.table.loc[rule]
        assert row["final"] == pytest.approx(ends[rule].mean())
        assert row["±"] == pytest.approx((high - low) / 2)
        assert row["seeds"] == 5
        last = frame[frame.rule == rule].groupby("seed").accuracy
        assert row["last"] == pytest.approx(last.last().mean())
        assert row["best"] == pytest.approx(last.max().mean())


def test_differences_are_paired_and_corrected_as_statsmodels_books_say(three):
    table = three.differences.set_index(["rule", "minus"])
    assert len(table) == 3
    finals = {rule: list(three.finals(rule).values()) for rule in three.rules}
    raw = []
    for (one, other), row in table.iterrows():
        found = stats.ttest_rel(finals[one], finals[other])
        interval = found.confidence_interval(0.95)
        assert row["difference"] == pytest.approx(np.mean(finals[one]) - np.mean(finals[other]))
        assert (row["low"], row["high"]) == pytest.approx(tuple(interval))
        assert row["p"] == pytest.approx(found.pvalue)
        raw.append(found.pvalue)
    ordered = np.sort(raw)
    assert sorted(table["p (Holm)"]) == pytest.approx(list(np.maximum.accumulate(ordered * [3, 2, 1]).clip(max=1)))


def test_the_verdict_says_who_is_ahead_and_from_whom_it_does_not_differ_significantly(three):
    assert "has the highest final accuracy" in three.verdict
    assert "does not differ significantly from" in three.verdict
    assert re.search(r"5 seeds, which vary batches, initial parameters and arrivals", three.verdict)
    assert "corrected for 3 comparisons (Holm)" in three.verdict
    assert three.table.index[-1] == "slow"
    assert verdict.between(three.compared(), "slow", "mine").established
    assert "it does from slow" in three.verdict


def test_against_a_baseline_only_it_is_compared(held, three):
    found = kasync.compare(
        Plane,
        held,
        {"mine": plain(0.5), "slow": rules.kasync_sgd(0.001), "fedbuff": rules.fedbuff(0.5)},
        arrivals,
        baseline="slow",
        folder=three.folder,
        progress=False,
    )
    assert list(found.differences.minus) == ["slow", "slow"]
    assert found.verdict.startswith("Against slow in final accuracy: significantly better: mine (+")
    assert "vs slow" in found.table.columns
    assert np.isnan(found.table.loc["slow", "vs slow"])


def test_finished_runs_are_not_made_again_and_changed_ones_are(task):
    first = kasync.compare(**task, rules=[plain(0.5)], seeds=2)
    stamps = {path: path.stat().st_mtime_ns for path in task["folder"].glob("runs/*/summary.json")}
    second = kasync.compare(**task, rules=[plain(0.5), plain(0.25)], seeds=2)
    assert len(stamps) == 2
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert len(list(task["folder"].glob("runs/*/summary.json"))) == 4
    assert second.rules == ["plain (lr=0.5)", "plain (lr=0.25)"]
    assert second.finals("plain (lr=0.5)") == first.finals("plain")


def test_an_interrupted_comparison_goes_on_and_ends_with_the_same_numbers(task, monkeypatch):
    chosen = [plain(0.5), rules.fedbuff(0.5)]
    whole = kasync.compare(**task | {"folder": task["folder"] / "whole"}, rules=chosen, seeds=2)
    from kasync.experiments import runner

    follow, made = runner.follow, []

    def interrupted(opened, watch):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(opened)
        return follow(opened, watch)

    monkeypatch.setattr(runner, "follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kasync.compare(**task, rules=chosen, seeds=2)
    monkeypatch.setattr(runner, "follow", follow)
    again = kasync.compare(**task, rules=chosen, seeds=2)
    assert again.to_frame().equals(whole.to_frame())


def test_a_run_that_raises_is_marked_and_the_rest_goes_on(task):
    broken = kasync.Rule("broken", 0.5, (Broken(10.0),))
    found = kasync.compare(**task, rules=[plain(0.5), broken], seeds=2)
    assert set(found.failed["broken"]) == {0, 1}
    assert all(why.startswith("ZeroDivisionError: on purpose (see ") for why in found.failed["broken"].values())
    assert found.table.loc["broken", "failed"] == 2
    assert found.table.loc["plain", "seeds"] == 2
    assert "2 of 2 runs of broken failed and are left out" in found.verdict
    assert "on purpose" in next(task["folder"].glob("runs/*/error.txt")).read_text()


def test_what_cannot_work_is_refused_before_anything_is_run(task):
    with pytest.raises(UserError, match="remembers 3 clients"):
        kasync.compare(**task, rules=[plain(0.5), rules.ca2fl(0.1, clients=3)])
    with pytest.raises(UserError, match=r"unknown rule 'fedbuf'.*fedbuff"):
        kasync.compare(**task, rules=["fedbuf"])
    with pytest.raises(UserError, match="needs lr"):
        kasync.compare(**task, rules=["fedbuff"])
    with pytest.raises(UserError, match="baseline"):
        kasync.compare(**task, rules=[plain(0.5)], baseline="wkafl")
    with pytest.raises(UserError, match="seeds"):
        kasync.compare(**task, rules=[plain(0.5)], seeds=[1, 1])
    for seeds in (2.0, "3", 0):
        with pytest.raises(ValueError, match=r"seeds = .* must be a whole number"):
            kasync.compare(**task, rules=[plain(0.5)], seeds=seeds)
    with pytest.raises(UserError, match="no rule"):
        kasync.compare(**task, rules=[0.1])
    assert not list(task["folder"].glob("runs/*/metrics.csv"))


def test_rules_come_as_values_names_functions_and_with_settings(task, tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(
        "import kasync\n\ndef fair(lr, clients):\n    assert clients == 6\n    return kasync.Rule('fair', lr, ())\n"
    )
    monkeypatch.chdir(tmp_path)
    chosen = {
        "value": plain(0.5),
        "function": (plain, {"lr": 0.5}),
        "named": ("kasync_sgd", {"lr": 0.5}),
        "own": ("my_rules:fair", {"lr": 0.5}),
        "file": (f"{tmp_path}/my_rules.py:fair", {"lr": 0.5}),
        "trusting": ("fltrust", {"lr": 0.5}),  # its server's own gradient is filled in
        "remembering": ("ca2fl", {"lr": 0.1}),  # so is the number of clients
    }
    found = kasync.compare(**task, rules=chosen, seeds=1)
    assert not any(found.failed.values())
    same = [found.finals(label) for label in ("named", "own", "file")]
    assert same[0] == same[1] == same[2]
    assert found.finals("value") == found.finals("function")


def test_with_one_seed_nothing_is_established(task):
    found = kasync.compare(**task, rules=[plain(0.5), rules.kasync_sgd(0.001)], seeds=1)
    assert "this establishes no difference" in found.verdict
    assert "±" not in found.table.columns


def test_one_model_and_one_timeline_for_all_seeds_are_said(task):
    found = kasync.compare(
        **task | {"model": Plane(), "timeline": arrivals(0)}, rules=[plain(0.5), plain(0.1)], seeds=2
    )
    assert "which vary batches)" in found.verdict
    assert [run.settings["arrivals"]["fingerprint"] for run in found.runs["plain (lr=0.5)"].values()] == [
        arrivals(0).fingerprint()
    ] * 2


def test_a_loss_is_better_when_it_is_lower(task):
    found = kasync.compare(**task, rules={"good": plain(0.5), "bad": plain(0.0001)}, seeds=3, metric="test_loss")
    assert found.verdict.startswith("good has the lowest final test loss")
    assert found.table.index[0] == "good"
    assert found.table.loc["good", "best"] <= found.table.loc["good", "final"]
    with pytest.raises(UserError, match="unknown metric 'f1'"):
        kasync.compare(**task, rules=[plain(0.5)], seeds=1, metric="f1")


@pytest.mark.parametrize(
    ("metric", "lower"),
    [("test_loss", True), ("perplexity", True), ("rmse", True), ("word_error", True), ("mae", True), ("f1", False)],
)
def test_errors_and_losses_are_known_by_their_names(three, metric, lower):
    assert replace(three, metric=metric, lower_is_better=None).lower_is_better == lower


def test_save_and_load_keep_everything(three, tmp_path):
    other = kasync.Comparison.load(three.save(tmp_path / "three.json"))
    assert other.verdict == three.verdict
    assert other.table.equals(three.table)
    assert other.to_frame().equals(three.to_frame())
    (tmp_path / "else.json").write_text("{}")
    with pytest.raises(UserError, match="no comparison"):
        kasync.Comparison.load(tmp_path / "else.json")


def test_a_plot_has_a_curve_for_each_rule_against_each_axis(three):
    for against, words in (("step", "server step"), ("time", "virtual time"), ("updates", "client updates")):
        (panel,) = three.plot(against).axes
        assert panel.get_xlabel() == words
        drawn = {line.get_label(): line for line in panel.lines}
        assert set(drawn) >= set(three.rules)
        mean = three.to_frame().query("rule == 'mine'").groupby("step").accuracy.mean()
        assert np.allclose(drawn["mine"].get_ydata(), mean)
    with pytest.raises(UserError, match="unknown axis"):
        three.plot("epochs")
    with pytest.raises(UserError, match="unknown metric"):
        three.plot(metric="f1")


def test_a_notebook_sees_verdict_table_and_picture(three):
    shown = three._repr_html_()
    assert "has the highest final accuracy" in shown
    assert "<table" in shown
    assert "data:image/png;base64," in shown
    assert repr(three).startswith("Comparison(mine, slow, fedbuff; 15 of 15 runs)")


def test_the_report_is_one_page_with_the_verdict(three, tmp_path):
    page = three.report(tmp_path / "page.html").read_text()
    assert "has the highest final accuracy" in page
    assert "mine" in page


def test_local_work_and_other_options_reach_the_simulator(task, held):
    work = kasync.Local(batch_size=8, steps=2, lr=0.1)
    given = {"work": work, "faults": kasync.faults.FlipSign(share=0.2), "staleness": "none", "evaluate_every": 10}
    found = kasync.compare(**task, rules=[rules.fedbuff(1.0)], seeds=[4], **given)
    torch.manual_seed(4)
    *_, last = kasync.simulate(Plane(), held, rules.fedbuff(1.0), arrivals(4), seed=4, **given)
    assert found.runs["fedbuff"][4].rows["test_loss"][-1] == last.test_loss
    assert list(found.runs["fedbuff"][4].rows["step"]) == [10, 20, 30, 40]
    with pytest.raises(UserError, match=r"unknown option of compare 'stalenes': did you mean 'staleness'"):
        kasync.compare(**task, rules=[rules.fedbuff(1.0)], stalenes="none")


def test_a_metric_of_ones_own_is_kept_and_may_decide(task):
    def share_of_ones(outputs, labels):
        return float((outputs.argmax(1) == 1).float().mean())

    metrics = {"ones": share_of_ones, "ones_error": lambda outputs, labels: 1.0 - share_of_ones(outputs, labels)}
    found = kasync.compare(**task, rules=[plain(0.5), plain(0.1)], seeds=2, metrics=metrics, metric="ones")
    frame = found.to_frame()
    assert np.allclose(frame.ones + frame.ones_error, 1.0)
    assert "highest final ones" in found.verdict
    assert found.plot(metric="ones_error").axes[0].get_ylabel() == "ones error"
    found = kasync.compare(**task, rules=[plain(0.5), plain(0.1)], seeds=2, metrics=metrics, metric="ones_error")
    assert "lowest final ones error" in found.verdict


def test_comparisons_in_one_place_stand_beside_each_other_in_the_report(task):
    from kasync.report import read

    kasync.compare(**task, rules=[plain(0.5)], seeds=2, name="first")
    kasync.compare(**task, rules=[plain(0.5), rules.fedbuff(0.5)], seeds=2, name="second")
    found = {each.about.name: each for each in read(task["folder"]).experiments}
    assert set(found) == {"first", "second"}
    assert [rule.label for rule in found["second"].rules] == ["plain", "fedbuff"]
    assert all(len(line.finished) == 2 for line in found["second"].lines)


def lines_of(folder):
    """Label of each line of the report -> its runs by seed."""
    from kasync.report import read

    return {line.rule.label: line.runs for each in read(folder).experiments for line in each.lines}


def test_another_rule_of_the_same_name_stands_beside_the_first(task):
    first = kasync.compare(**task, rules=[rules.fedbuff(lr=1.0)], seeds=2)
    second = kasync.compare(**task, rules=[rules.fedbuff(lr=0.1)], seeds=[2, 3])  # no place of the first's is taken
    found = lines_of(task["folder"])
    assert {label: list(runs) for label, runs in found.items()} == {"fedbuff": [0, 1], "fedbuff (lr=0.1)": [2, 3]}
    assert found["fedbuff"][0].key == first.runs["fedbuff"][0].key
    assert found["fedbuff (lr=0.1)"][2].key == second.runs["fedbuff"][2].key
    kasync.compare(**task, rules=[rules.fedbuff(lr=1.0)], seeds=3)
    again = kasync.compare(**task, rules=[rules.fedbuff(lr=0.1)], seeds=4)
    assert again.rules == ["fedbuff"]
    assert {label: len(runs) for label, runs in lines_of(task["folder"]).items()} == {
        "fedbuff": 3,
        "fedbuff (lr=0.1)": 4,
    }


def test_readers_see_what_differs_in_both_of_two_rules_of_one_name(task):
    from kasync.report import read

    for lr in (1.0, 0.1):
        kasync.compare(**task, rules=[rules.fedbuff(lr=lr)], seeds=1)
    (found,) = read(task["folder"]).experiments
    assert [rule.title for rule in found.rules] == ["fedbuff (lr=1)", "fedbuff (lr=0.1)"]


def test_where_no_setting_differs_digits_tell_two_rules_apart(task):
    class Other(Plane):
        pass

    Other.__name__ = "Plane"
    other = kasync.Rule("plain", 0.5, (parts.ClipNorms(3.0), parts.ClipNorms(10.0)))
    for change in ({}, {"rules": [other]}, {"model": Other}):
        kasync.compare(**{**task, "rules": [plain(0.5)], "seeds": 1, **change})
    found = lines_of(task["folder"])
    assert len({runs[0].key for runs in found.values()}) == 3
    assert sorted(re.sub("[0-9a-f]{6}", "digits", label) for label in found) == ["plain", *["plain (digits)"] * 2]
    kasync.compare(**task, rules=[other], seeds=2)
    assert sorted(len(runs) for runs in lines_of(task["folder"]).values()) == [1, 1, 2]


def test_a_metric_that_nobody_measures_is_refused_before_anything_is_run(task):
    with pytest.raises(UserError, match="unknown metric 'acuracy': did you mean 'accuracy'"):
        kasync.compare(**task, rules=[rules.kasync_sgd(0.1)], seeds=1, metric="acuracy")
    assert not list(task["folder"].glob("**/metrics.csv"))
