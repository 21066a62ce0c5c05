"""Does the verdict say who is best, by the numbers of the runs?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kasync.report import matrices, sheets
from kasync.report.results import Contender, Experiment, Line, Results, Task
from kasync.report.runs import Run
from kasync.report.tables import sections
from kasync.report.verdict import standings, verdicts

STEPS = np.array([10.0, 20.0, 30.0])
RULES = [Contender(label, label, label.upper()) for label in ("ours", "theirs", "weak", "fresh")]
TITLES = {"a": "small, even", "b": "small, uneven", "c": "large, even", "d": "large, uneven"}
TASKS = [Task(name, f"Data, {title}", "Data") for name, title in TITLES.items()]
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
    return Run(Path("nowhere"), {"rule": {"kind": "x", "lr": lr}, "steps": 30}, rows, {}, summary)


@pytest.fixture
def experiment() -> Experiment:
    lines = [
        Line(task, rule, "none" if rule.label == "fresh" else "true", dict(enumerate(map(run, values))))
        for task in TASKS
        for rule in RULES
        if (values := FINAL[task.name].get(rule.label))
    ]
    return Experiment("mine", "Mine", TASKS, RULES, lines)


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
    ours, theirs, weak, fresh = verdicts(experiment, TASKS, "true")
    assert (ours.tasks, ours.best, ours.ahead, ours.within) == (4, 2, 1, 3)
    assert (theirs.best, theirs.ahead, theirs.within) == (2, 2, 2)
    assert (weak.best, weak.within) == (0, 0)
    assert (ours.shortfall[0], ours.shortfall[1].name) == (pytest.approx(0.1), "c")
    assert (ours.share[0], ours.share[1].name) == (pytest.approx(0.5 / 0.66), "c")
    assert (fresh.limit, fresh.tasks) == (True, 3)


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


def test_without_a_limit_nothing_is_measured_against_it(experiment):
    lines = [line for line in experiment.lines if line.rule.label != "fresh"]
    text = "\n\n".join(sections(replace(experiment, lines=lines, rules=RULES[:3])))
    assert "verdict over 4 tasks" in text
    assert "limit" not in text
    assert "without staleness" not in text


def test_a_rule_alone_competes_with_nobody(experiment):
    lines = [line for line in experiment.lines if line.rule is RULES[0]]
    text = "\n\n".join(sections(replace(experiment, lines=lines, rules=RULES[:1])))
    assert "final accuracy" in text
    assert "verdict" not in text
    assert "minus" not in text


def test_groups_of_several_tasks_have_a_verdict_each_and_one_is_over_everything(experiment):
    tasks = [replace(task, group="Other" if task.name == "d" else "Data") for task in TASKS]
    moved = dict(zip(TITLES, tasks, strict=True))
    lines = [replace(line, task=moved[line.task.name]) for line in experiment.lines]
    heads = [
        text.splitlines()[0] for text in sections(replace(experiment, tasks=tasks, lines=lines)) if "verdict" in text
    ]
    assert heads == [f"### {name}: verdict over {n} tasks" for name, n in (("Everything", 4), ("Data", 3))]


def test_the_sheet_says_the_same(experiment):
    rows = sheets.standing(Results(Path("nowhere"), [experiment])).splitlines()
    assert len(rows) == 1 + 15
    names = rows[0].split(",")
    ours = dict(zip(names, next(row for row in rows if row.startswith("mine,c,ours")).split(","), strict=True))
    assert float(ours["accuracy"]) == 0.5
    assert float(ours["shortfall"]) == pytest.approx(0.1)
    assert (ours["best"], ours["within"], ours["ahead"], ours["seeds_there"]) == ("0", "0", "0", "0")


def test_a_title_is_shown_without_its_group():
    assert matrices.short_title(TASKS[0]) == "small, even"
    assert matrices.short_title(Task("x", "Data, small")) == "Data, small"


def test_the_overview_has_what_varies_first_along_x_and_the_rest_as_panels(experiment):
    from kasync.report.figures.overview import overview

    figure = overview(experiment, TASKS)
    assert [panel.get_title() for panel in figure.axes] == ["even", "uneven"]
    assert [[tick.get_text() for tick in panel.get_xticklabels()] for panel in figure.axes] == [["small", "large"]] * 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["OURS", "THEIRS", "WEAK", "FRESH"]
    widths = [line.get_linewidth() for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    assert widths[0] == max(widths) > widths[-1]
    assert overview(experiment, TASKS[:3]) is None
