"""The store gives back what was put in, packed or not, and says when something written is not so."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from kasync import files
from kasync.errors import UserError
from kasync.experiments import archive, grid
from kasync.experiments.experiment import Contender, Experiment, Problem, Task
from kasync.experiments.settings import RunSettings
from kasync.experiments.store import TABLES, Store, run_in
from kasync.files import flat, nested
from kasync.report import checking, read, tables

RESULTS = Path(__file__).parents[2] / "results"

RUN = {"dataset": "synthetic", "model": "logistic", "clients": 20, "k": 4, "steps": 24, "evaluate_every": 2}
PROBLEM = Problem(
    "small", "Small", {**RUN, "partition": {"kind": "iid"}}, {"wkafl": {"lr": 0.05}, "fedbuff": {"lr": 1}}
)


def experiment(name="mine"):
    tasks = [Task(f"k{k}", f"K = {k}", "Small", k, {"size": str(k)}, problem=PROBLEM, run={"k": k}) for k in (2, 4)]
    faulty = Contender("faulty", "wkafl", "faulty", run={"faults": [{"kind": "flip_sign", "share": 0.1}]})
    return Experiment(name, "Mine", [Contender("wkafl", "wkafl"), Contender("fedbuff", "fedbuff"), faulty], tasks)


@pytest.fixture(scope="module")
def loose(tmp_path_factory):
    out = tmp_path_factory.mktemp("store") / "results"
    one = experiment()
    assert not grid.carry_out(grid.Plan([(one, one.cells())]), out).failed
    return out


@pytest.fixture
def packed(loose, tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(loose, folder)
    assert archive.pack(folder) == 12
    return folder


def test_a_packed_run_is_read_like_one_in_its_folder(loose, packed):
    store = Store(packed)
    assert store.every() == sorted(path.name for path in (loose / "runs").iterdir())
    for key in store.every():
        before, after = run_in(loose / "runs" / key), store.run(key)
        assert after.settings == before.settings
        assert after.made == before.made
        told = {name: value for name, value in before.summary.items() if name not in ("format", "version")}
        assert after.summary == {name: value for name, value in told.items() if value is not None}
        assert list(after.rows) == list(before.rows)
        for name, values in before.rows.items():
            np.testing.assert_array_equal(after.rows[name], values)
        np.testing.assert_array_equal(after.steps["staleness_count"], before.steps["staleness_count"])


def test_packing_leaves_a_few_files_and_the_same_report(loose, packed):
    assert sorted(path.name for path in packed.iterdir() if path.is_file()) == sorted(
        [*TABLES, "cells.parquet", "experiments.json"]
    )
    assert list((packed / "runs").iterdir()) == []
    assert tables.texts(read(loose)) == tables.texts(read(packed))


def test_what_is_packed_is_not_made_again_and_later_runs_join_it(packed):
    one = experiment()
    assert grid.carry_out(grid.Plan([(one, one.cells())]), packed).made == 0
    assert grid.carry_out(grid.Plan([(one, one.cells(range(3)))]), packed).made == 6
    assert archive.pack(packed) == 6
    assert len(Store(packed).every()) == 18
    assert read(packed).experiments[0].counts == (18, 18)


def test_a_folder_of_version_0_1_is_converted_and_nothing_is_lost(loose, tmp_path):
    """Its lists had one file for each experiment, with every task's and rule's title and a path for every run."""
    folder, one = tmp_path / "old", experiment()
    shutil.copytree(loose, folder)
    for name in ("experiments.json", "cells.parquet"):
        (folder / name).unlink()
    tasks = [{"name": task.name, "title": task.title, "group": task.group, "x": task.x} for task in one.tasks]
    table = {"format": "kasync experiment", "version": 1, "name": "mine", "scale": "quick", "title": one.title}
    table |= {"shows": "", "command": "", "figures": [], "kind": "training", "targets": [], "tuned": None}
    table["tasks"] = [{**row, "problem": "small", "stands_for": None, "note": None, "paper": {}} for row in tasks]
    table["rules"] = [{"label": each.label, "rule": each.rule, "title": each.title} for each in one.rules]
    table["cells"] = [
        {"task": cell.task.name, "rule": cell.rule.label, "staleness": "true", "seed": cell.seed}
        | {"run": f"runs/{cell.settings.name}"}
        for cell in one.cells()
    ]
    (folder / "experiments").mkdir()
    files.write_json(folder / "experiments" / "mine-quick.json", table)
    assert archive.pack(folder) == 12
    assert not (folder / "experiments").exists()
    (before,), (after,) = read(loose).experiments, read(folder).experiments
    assert [(line.task.title, line.rule.title) for line in after.lines] == [
        (line.task.title, line.rule.title) for line in before.lines
    ]
    assert tables.by_line(read(folder)).partition("\n")[2] == tables.by_line(read(loose)).partition("\n")[2]
    assert {(cell["device"], cell["precision"]) for cell in Store(folder).cells()} == {("cpu", "float32")}


def test_axes_and_device_are_columns(packed):
    rows, evaluations = archive.frames(packed)
    assert {row["axis.size"] for row in rows} == {"2", "4"}
    assert all(row["precision"] == "float32" and row["made.device"].startswith("CPU") for row in rows)
    assert {row["set.rule.kind"] for row in rows} == {"wkafl", "fedbuff"}
    assert len(evaluations) == 12 * len(rows)


def test_a_second_experiment_in_the_same_place_removes_nothing(packed):
    other = experiment("other")
    Store(packed).record(other.key, other.record(), [cell.record() for cell in other.cells()])
    assert [each.name for each in read(packed).experiments] == ["mine-quick", "other-quick"]
    assert len(Store(packed).cells()) == 24


def test_runs_and_metrics_leave_as_csv_and_parquet(packed, tmp_path):
    assert archive.export(packed, tmp_path / "runs.csv") == {tmp_path / "runs.csv": 12}
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 13
    written = archive.export(packed, tmp_path / "all", ["*wkafl*"])
    assert [path.name for path in written] == ["runs.csv", "metrics.csv"]
    assert list(written.values()) == [8, 96]
    archive.export(packed, tmp_path / "runs.parquet")
    with pytest.raises(UserError, match=r"ends in \.csv or \.parquet"):
        archive.export(packed, tmp_path / "runs.xlsx")
    with pytest.raises(UserError, match="no run of"):
        archive.export(packed, tmp_path / "none.csv", ["nothing*"])


def test_a_run_made_again_is_the_same_to_the_last_bit(packed, tmp_path):
    found = list(archive.rerun(packed, 2, tmp_path / "again"))
    assert [each["same"] for each in found] == [True, True]
    assert found[0]["stored"] == found[0]["again"]
    list(archive.rerun(packed, 2, tmp_path / "again"))
    made = sorted(path.name for path in (tmp_path / "again").iterdir())
    assert len(made) == 4  # what was made before does not stand for a run that is made again
    assert sum(name.endswith("-2") for name in made) == 2


@pytest.mark.parametrize("name", ["rates", "tables"])
def test_a_run_that_is_stored_here_is_found_again_under_its_name(name):
    store = Store(RESULTS / name)
    runs = [store.run(key) for key in store.every()[::3]]
    lost = [run.key for run in runs if RunSettings.of(run.settings, run.key).resolved().name != run.key]
    assert runs
    assert lost == []


def test_no_store_here_names_a_place_of_the_machine_that_made_it():
    for path in RESULTS.rglob("experiments.json"):
        tuned = [each.get("tuned") for each in Store(path.parent).experiments().values()]
        assert not [name for name in tuned if name and Path(name).is_absolute()], path


def test_a_run_of_python_values_cannot_be_made_again_from_its_settings():
    with pytest.raises(UserError, match=r"call kasync\.compare again"):
        RunSettings.of({"made_by": "kasync.compare", "dataset": "mine"}, "my-run")


def wrong(folder):
    return {path.name: problems for path, problems in checking.verify(folder) if problems}


def test_verify_names_a_table_that_the_store_does_not_give(packed):
    report = packed / "report" / "report.md"
    report.parent.mkdir()
    text = tables.markdown(read(packed))
    report.write_text(text)
    assert wrong(packed) == {}
    row = next(line for line in text.splitlines() if line.startswith("| ") and " ± " in line)
    report.write_text(text.replace(row, row.replace("0.", "0.9", 1)))
    assert "the store gives" in wrong(packed)["report.md"][0]


def test_verify_names_a_number_in_prose_that_no_run_gives(packed):
    line = read(packed).experiments[0].lines[0]
    from kasync.report.results import ACCURACY

    found = ACCURACY.estimate(line)
    (packed / "README.md").write_text(f"It reached {found.mean:.3f} ± {found.half:.3f}.")
    assert wrong(packed) == {}
    (packed / "README.md").write_text(f"It reached {found.mean + 0.002:.3f} ± {found.half:.3f}.")
    assert list(wrong(packed)) == ["README.md"]


def test_verify_names_a_summary_that_its_evaluations_do_not_give(packed):
    store = Store(packed)
    runs = [store.run(key) for key in store.every()]
    runs[0].summary["final_accuracy"] += 0.01  # the very dictionary that is written
    from kasync.experiments.store import write_tables

    write_tables(packed, runs)
    assert any("its evaluations give" in problem for problem in wrong(packed)["results"])


def test_verify_names_runs_that_are_missing(packed):
    one = experiment()
    Store(packed).record(one.key, one.record(), [cell.record() for cell in one.cells(range(3))])
    assert wrong(packed)["results"] == ["mine-quick: 6 of 18 runs are missing"]


def test_settings_survive_whatever_their_kinds():
    table = {"rule": {"lr": 1, "discount": {"kind": "hinge", "slope": 10.0}}, "size": [10, 49], "x": "y"}
    assert nested(dict(flat(table))) == table


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no store"):
        archive.stores(tmp_path)
    with pytest.raises(UserError, match="not a results folder"):
        archive.pack(tmp_path)


def test_every_verb_of_results_looks_where_runs_go(loose, tmp_path, monkeypatch, capsys):
    from kasync.cli import main

    shutil.copytree(loose, tmp_path / "kasync-runs")
    monkeypatch.chdir(tmp_path)

    def results(*words):
        monkeypatch.setattr(sys, "argv", ["kasync", "results", *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return json.loads(told.out)

    assert results("pack")[0]["packed"] == 12
    (listed,) = results("ls")
    assert (listed["finished"], listed["planned"], listed["precision"]) == (12, 12, "float32")
    shown = {row["key"]: row["final_accuracy"] for row in results("show")}
    assert len(shown) == 12
    assert set(map(tuple, results("verify").values())) == {()}
    assert results("export", "--out", "runs.csv") == [{"file": "runs.csv", "rows": 12}]
    shutil.copytree("kasync-runs", "kasync-runs/more")  # a store may hold others
    again = results("rerun", "--sample", "2")
    assert {row["key"]: row["again"] for row in again}.items() <= shown.items()
    assert all(row["same"] for row in again)
