"""A results folder is read as it is; every other folder is refused with a sentence that helps."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from kasync.errors import UserError
from kasync.experiments.store import run_in
from kasync.report import results as reading
from kasync.report import write
from kasync.report.numbers import band, during, evaluations
from kasync.report.results import ACCURACY


def digest(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_cells_are_gathered_over_their_seeds(experiments):
    experiment = experiments["staleness-quick"]
    places = [(line.task.name, line.rule.label, line.staleness, tuple(line.runs)) for line in experiment.lines]
    assert len(places) == 2 * (
        2 * 2 + 1
    )  # tasks, rules that know staleness under both semantics, and one that does not
    assert ("digits-25", "wkafl", "published-code", (0, 1)) in places
    assert ("digits-50", "fresh", "none", (0, 1)) in places
    assert experiment.counts == (20, 20)
    assert experiment.semantics == ["true", "published-code"]


def test_the_limit_without_staleness_stands_beside_every_semantics(experiments):
    experiment = experiments["staleness-quick"]
    for way in experiment.semantics:
        assert [line.rule.label for line in experiment.beside(experiment.tasks[0], way)] == ["wkafl", "twafl", "fresh"]


def test_a_report_only_reads_the_results(small, tmp_path):
    before = digest(small)
    write(small, tmp_path / "report")
    assert digest(small) == before


def test_a_run_folder_and_a_folder_of_runs_are_read_as_well(small, experiments):
    line = experiments["staleness-quick"].lines[0]
    alone = reading.read(small / "runs" / line.runs[0].key).experiments[0]
    assert [ACCURACY.by_seed(each) for each in alone.lines] == [{0: ACCURACY.by_seed(line)[0]}]
    together = reading.read(small / "runs").experiments[0]
    assert sum(len(each.runs) for each in together.lines) == len(list((small / "runs").iterdir()))


def test_a_planned_run_that_has_not_begun_is_no_error(small, tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(small, folder)
    gone = reading.read(folder).experiments[2].lines[0].runs[1].key
    shutil.rmtree(folder / "runs" / gone)
    experiment = reading.read(folder).experiments[2]
    assert experiment.counts == (19, 20)
    assert len(experiment.lines[0].finished) == 1
    write(folder, tmp_path / "report", figures=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is not a folder"),
        (lambda path: path.mkdir(), "neither experiments.json nor run.toml"),
        (
            lambda path: ((path / "mnist").mkdir(parents=True), (path / "mnist" / "experiments.json").touch()),
            "mnist does",
        ),
        (lambda path: (path / "experiments").mkdir(parents=True), "kasync results pack"),
    ],
)
def test_a_folder_that_holds_no_results_is_refused_in_one_sentence(tmp_path, make, words):
    make(tmp_path / "folder")
    with pytest.raises(UserError, match=words) as refused:
        reading.read(tmp_path / "folder")
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "{"),
        ("metrics.csv", "step,time\n1,x\n"),
        ("metrics.csv", "step\n1\n"),
        ("steps.npz", "no zip"),
        ("run.toml", "= 3"),
    ],
)
def test_a_damaged_file_is_named(small, tmp_path, name, content):
    folder = tmp_path / "run"
    shutil.copytree(next((small / "runs").glob("*wkafl*")), folder)
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=name):
        run_in(folder)


@pytest.mark.parametrize("change", [{"format": "other"}, {"version": 1}, {"experiments": {"x": {"tasks": []}}}])
def test_a_list_of_experiments_that_is_none_is_named(tmp_path, small, change):
    table = json.loads((small / "experiments.json").read_text())
    (tmp_path / "experiments.json").write_text(json.dumps(table | change))
    with pytest.raises(UserError, match=r"experiments\.json"):
        reading.read(tmp_path)


def test_the_first_evaluation_at_or_above_an_accuracy_is_found(experiments):
    run = experiments["staleness-quick"].lines[0].runs[0]
    target = float(run.rows["accuracy"][3])
    first = next(place for place, accuracy in enumerate(run.rows["accuracy"]) if accuracy >= target)
    assert run.reached(target)["step"] == run.rows["step"][first]
    assert run.reached(1.01) == {}


def test_curves_of_seeds_on_one_axis_are_averaged_point_by_point(experiments):
    line = experiments["staleness-quick"].lines[0]
    found = evaluations(line, "accuracy")
    rows = [run.rows["accuracy"] for run in line.runs.values()]
    np.testing.assert_allclose(found.mean, np.mean(rows, axis=0))
    assert during(line, "selected").x[-1] == 36


def test_curves_on_different_axes_are_compared_only_where_both_are_known():
    found = band([(np.array([0.0, 2.0]), np.array([0.0, 2.0])), (np.array([1.0, 3.0, 4.0]), np.array([3.0, 5.0, 6.0]))])
    np.testing.assert_allclose(found.x, [0, 2, 4])
    np.testing.assert_allclose(found.mean, [0, 3, 6])  # 0 | (2 + 4) / 2 | 6
    assert np.isnan(found.low[[0, 2]]).all()


def test_finished_curves_on_different_axes_are_shown_where_all_of_them_are():
    first = np.array([1.0, 2.0, 100.0]), np.array([0.0, 1.0, 99.0])
    second = np.array([2.0, 10.0, 50.0]), np.array([3.0, 11.0, 51.0])
    found = band([first, second], common=True)
    assert (found.x[0], found.x[-1]) == (2, 50)
    np.testing.assert_allclose(found.mean, found.x)  # (x - 1 + x + 1) / 2
    assert np.isfinite(found.low).all()


def test_a_long_curve_is_thinned_by_averaging():
    x, y = np.arange(1.0, 1001.0), np.tile([0.0, 1.0], 500)
    found = band([(x, y)])
    assert len(found.x) <= 160
    assert found.x[-1] == 1000
    assert abs(found.mean - 0.5).max() < 0.1
