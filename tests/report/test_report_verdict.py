"""The verdict names the best rule by the numbers of the runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kasync.experiments.experiment import Contender, Experiment, Task
from kasync.experiments.store import Run
from kasync.report import tables
from kasync.report.numbers import standings
from kasync.report.results import Findings, Line, Results
from kasync.report.tables import sections

STEPS = np.array([10.0, 20.0, 30.0])
RULES = [Contender(label, label, label.upper()) for label in ("ours", "theirs", "weak", "fresh")]
TITLES = {"a": "small, even", "b": "small, uneven", "c": "large, even", "d": "large, uneven"}
TASKS = [
    Task(name, title, "Data", axes=dict(zip(("size", "speeds"), title.split(", "), strict=True)))
    for name, title in TITLES.items()
]
FINAL = {  # task -> rule -> final accuracy by seed
    "a": {"ours": (0.80, 0.82, 0.81), "theirs": (0.70, 0.72, 0.71), "weak": (0.2, 0.2, 0.2), "fresh": (0.9, 0.9, 0.9)},
    "b": {"ours": (0.60, 0.64, 0.62), "theirs": (0.61, 0.65, 0.63), "weak": (0.3, 0.3, 0.3), "fresh": (0.8, 0.8, 0.8)},
    "c": {"ours": (0.50, 0.50, 0.50), "theirs": (0.60, 0.60, 0.60), "weak": (0.1, 0.1, 0.1), "fresh": (0.66,) * 3},
    "d": {"ours": (0.70, 0.70, 0.70), "theirs": (0.50, 0.60, 0.40), "weak": (0.1, 0.1, 0.1)},
}


def run(final: float, lr: float = 0.1) -> Run:
    """A run that has half of its accuracy after ten steps and all of it after twenty."""
    accuracy = np.array([final / 2, final, final])
    rows = {"step": STEPS, "time": STEPS, "updates": STEPS, "accuracy": accuracy}
    summary = {"final_accuracy": final, "stability": final / 100}
    return Run(f"{final}-{lr}", {"rule": {"kind": "kasync_sgd", "lr": lr}, "steps": 30}, {}, rows, {}, summary)


def found(tasks, rules, lines) -> Findings:
    return Findings("mine", Experiment("mine", "Mine", rules, tasks), lines)


@pytest.fixture
def experiment() -> Findings:
    lines = [
        Line(task, rule, "none" if rule.label == "fresh" else "true", dict(enumerate(map(run, values))))
        for task in TASKS
        for rule in RULES
        if (values := FINAL[task.name].get(rule.label))
    ]
    return found(TASKS, RULES, lines)


def standing(experiment, task, label):
    found = standings(experiment, next(each for each in TASKS if each.name == task), "true")
    return next(each for each in found if each.line.rule.label == label)


def test_the_best_mean_wins_and_the_limit_does_not_compete(experiment):
    assert standing(experiment, "a", "ours").best
    assert standing(experiment, "a", "theirs").shortfall == pytest.approx(0.1)
    limit = standing(experiment, "a", "fresh")
    assert (limit.limit, limit.best, limit.within, limit.shortfall) == (True, False, False, None)


def test_a_mean_within_the_interval_of_the_best_counts_as_much(experiment):
    near = standing(experiment, "b", "ours")  # .62 beside .63 +- 4.3 * .02 / sqrt(3)
    assert (near.best, near.within) == (False, True)
    far = standing(experiment, "c", "ours")  # .50 beside .60 without any spread
    assert (far.best, far.within) == (False, False)


def test_ahead_is_who_beats_each_other_rule_seed_by_seed(experiment):
    assert standing(experiment, "a", "ours").ahead
    assert standing(experiment, "b", "theirs").ahead  # by .01 with every seed
    winner = standing(experiment, "d", "ours")  # .1 to .3 ahead: three seeds cannot tell
    assert (winner.best, winner.ahead) == (True, False)


def test_the_share_of_the_limit_is_taken_seed_by_seed(experiment):
    share = standing(experiment, "a", "ours").share
    assert share.mean == pytest.approx(0.9)
    assert share.half == pytest.approx(4.3027 * (0.01 / 0.9) / 3**0.5, rel=1e-4)
    assert standing(experiment, "d", "ours").share is None


def test_the_fastest_reaches_most_of_the_limit_first_with_every_seed(experiment):
    quick = standing(experiment, "a", "ours")  # two of its seeds reach .81
    assert (quick.steps.mean, quick.steps.count, quick.fastest) == (20.0, 2, False)
    assert standing(experiment, "a", "theirs").steps is None
    assert standing(experiment, "c", "theirs").fastest
    assert not standing(experiment, "c", "ours").fastest
    assert standing(experiment, "a", "fresh").steps.mean == 20.0


def test_the_verdict_counts_tasks_and_names_the_worst(experiment):
    rows = [row.strip("| ").split(" | ") for row in tables.verdict(experiment, "Data", TASKS).splitlines()[4:]]
    ours, theirs, weak, fresh = rows
    assert ours[:4] == ["OURS", "2 of 4", "1 of 4", "3 of 4"]
    assert theirs[:4] == ["THEIRS", "2 of 4", "2 of 4", "2 of 4"]
    assert (weak[1], weak[3]) == ("0 of 4", "0 of 4")
    assert ours[5:7] == [
        "0.1000 (Data, large, even)",
        "75.8% (Data, large, even)",
    ]  # .50 beside .60 and the limit's .66
    assert fresh[1:6] == ["–"] * 5  # the limit competes with nobody


def test_the_tables_mark_the_best_and_what_is_as_good(experiment):
    text = "\n\n".join(sections(experiment))
    assert "### Data: verdict over 4 tasks" in text
    assert "| OURS | 2 of 4 | 1 of 4 | 3 of 4 | 0 of 4 | 0.1000 (Data, large, even) |" in text
    row = next(row for row in text.splitlines() if row.startswith("| small, uneven |"))
    assert row == "| small, uneven | 0.6200 ± 0.0497 ° | **0.6300 ± 0.0497** | 0.3000 ± 0.0000 | 0.8000 ± 0.0000 |"
    assert "| 20 (2 of 3) |" in text
    assert "**+0.1000 ± 0.0000 (3)**" in text
    assert "| 90.0 ± 2.8 |" in text
    for block in (block for block in text.split("\n\n") if block.startswith("|")):
        assert len({row.count("|") for row in block.splitlines()}) == 1


def test_many_comparisons_are_bold_only_where_their_number_is_corrected_for(experiment):
    from kasync.report import tables
    from kasync.statistics import holm

    corrected = tables._corrected(experiment, experiment.rules[0])
    compared = {rule.label for rule in experiment.rules[1:] if rule.label != "fresh"}
    assert {rule for _, rule in corrected} == compared  # the limit does not compete
    raw = []
    for task, rule in corrected:
        ours, theirs = (
            next(line for line in experiment.lines if line.task.name == task and line.rule.label == label)
            for label in (experiment.rules[0].label, rule)
        )
        gaps = tables.differences_by_seed(tables.ACCURACY.by_seed(ours), tables.ACCURACY.by_seed(theirs))
        raw.append(tables.p_value(gaps))
    assert list(corrected.values()) == pytest.approx(holm(raw))
    text = "\n\n".join(sections(experiment))
    assert f"(bold: significant by Holm's correction over {len(corrected)} comparisons)" in text


def test_without_a_limit_nothing_is_measured_against_it(experiment):
    lines = [line for line in experiment.lines if line.rule.label != "fresh"]
    text = "\n\n".join(sections(found(TASKS, RULES[:3], lines)))
    assert "verdict over 4 tasks" in text
    assert "limit" not in text
    assert "without staleness" not in text


def test_a_rule_alone_competes_with_nobody(experiment):
    lines = [line for line in experiment.lines if line.rule is RULES[0]]
    text = "\n\n".join(sections(found(TASKS, RULES[:1], lines)))
    assert "final accuracy" in text
    assert "verdict" not in text
    assert "minus" not in text


def test_groups_of_several_tasks_have_a_verdict_each_and_one_is_over_everything(experiment):
    tasks = [replace(task, group="Other" if task.name == "d" else "Data") for task in TASKS]
    moved = dict(zip(TITLES, tasks, strict=True))
    lines = [replace(line, task=moved[line.task.name]) for line in experiment.lines]
    heads = [text.splitlines()[0] for text in sections(found(tasks, RULES, lines)) if "verdict" in text]
    assert heads == [f"### {name}: verdict over {n} tasks" for name, n in (("Everything", 4), ("Data", 3))]


def test_the_sheet_says_the_same(experiment):
    rows = tables.standing(Results(Path("nowhere"), [experiment])).splitlines()
    assert len(rows) == 1 + 15
    names = rows[0].split(",")
    ours = dict(zip(names, next(row for row in rows if row.startswith("mine,c,ours")).split(","), strict=True))
    assert float(ours["accuracy"]) == 0.5
    assert float(ours["shortfall"]) == pytest.approx(0.1)
    assert (ours["best"], ours["within"], ours["ahead"], ours["seeds_there"]) == ("0", "0", "0", "0")


def test_the_overview_has_a_row_for_each_rule_a_marker_for_each_value_and_the_rest_as_panels(experiment):
    from kasync.report.figures import overview

    figure = overview(experiment, TASKS)
    assert [panel.get_title() for panel in figure.axes] == ["even", "uneven"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["OURS", "THEIRS", "WEAK", "FRESH"]
    for panel in figure.axes:
        assert {round(float(line.get_ydata()[0]), 9) for line in panel.lines} <= {0.0, 1.0, 2.0, 3.0}  # no offsets
    assert len({panel.get_xlim() for panel in figure.axes}) == 1
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["small", "large"]
    assert overview(experiment, TASKS[:3]) is None
