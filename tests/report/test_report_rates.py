"""The report tells how much the learning rate matters."""

from pathlib import Path

import pytest
from test_report_verdict import run

from kasync.experiments.experiment import Contender, Experiment, Task
from kasync.report import tables
from kasync.report.figures import figures_of
from kasync.report.numbers import Sweep, sweeps
from kasync.report.results import Findings, Line, Results
from kasync.report.tables import sections
from kasync.statistics import Estimate

TASK = Task("a", "small", "Data")
FACTORS = (0.1, 1.0, 10.0)
REACHED = {"steady": (0.76, 0.80, 0.78), "touchy": (0.85, 0.40, 0.10)}  # rule -> accuracy at each factor


@pytest.fixture
def experiment() -> Findings:
    lines = []
    for rule, reached in REACHED.items():
        for factor, final in zip(FACTORS, reached, strict=True):
            contender = Contender(f"{rule}@{factor:g}", "kasync_sgd", rule.title(), of=rule, factor=factor)
            lines.append(Line(TASK, contender, "true", {seed: run(final, 0.03 * factor) for seed in (0, 1)}))
    return Findings("mine", Experiment("mine", "Mine", [line.rule for line in lines], [TASK]), lines)


def sweep(rates, means):
    return Sweep(TASK, Contender("x", "x", "X"), rates, rates, [Estimate(mean, None, 1) for mean in means])


def test_a_rule_at_several_rates_is_one_sweep(experiment):
    assert experiment.tried
    steady, touchy = sweeps(experiment)
    assert (steady.rule.label, steady.rule.title) == ("steady", "Steady")
    assert steady.rates == pytest.approx([0.003, 0.03, 0.3])
    assert steady.factors == touchy.factors == pytest.approx([0.1, 1.0, 10.0])
    assert [each.mean for each in touchy.accuracies] == pytest.approx([0.85, 0.4, 0.1])


def test_the_range_that_keeps_most_of_the_accuracy_is_interpolated_between_rates():
    assert sweep([1, 10, 100], [0.0, 1.0, 0.0]).held(0.5) == (pytest.approx(10.0), False)
    assert sweep([1, 10, 100], [0.9, 1.0, 0.0]).held(0.5) == (pytest.approx(10**1.5), True)
    assert sweep([1, 10, 100], [1.0, 1.0, 1.0]).held(0.5) == (pytest.approx(100.0), True)


def test_the_best_thirtyfold_range_is_where_the_mean_is_highest():
    rates = [10 ** (place / 2) for place in range(5)]  # 1 to 100
    assert sweep(rates, [0.1, 0.6, 0.8, 0.7, 0.5]).over(30.0) == pytest.approx((0.65, 0.5))
    assert sweep(rates, [0.9, 0.6, 0.8, 0.7, 0.0]).over(30.0) == pytest.approx((0.75, 0.6))
    assert sweep(rates[:3], [0.9, 0.6, 0.8]).over(30.0) is None


def test_the_report_has_a_row_for_each_rule_a_sheet_and_a_figure(experiment):
    (text,) = sections(experiment)
    assert "| Data, small | Steady | 0.03 | 0.8000 |" in text
    assert "at least 100.0 |" in text
    rows = tables.by_rate(Results(Path("nowhere"), [experiment])).splitlines()
    assert len(rows) == 1 + 6
    assert rows[4].startswith("mine,a,touchy,0.003,0.1,0.85")
    ((name, figure),) = figures_of(experiment)
    assert name == "mine-rates"
    (panel,) = figure.axes
    assert panel.get_xscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["30-fold range", "Steady", "Touchy"]
