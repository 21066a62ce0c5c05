"""Do records reach the loggers that people use, unchanged and on time?"""

import csv
import sys

import numpy as np
import pytest
import torch

from kasync import data, models, rules, timelines
from kasync.errors import UserError
from kasync.report import loggers
from kasync.simulator import simulate
from kasync.work import Gradient


@pytest.fixture(scope="module")
def records():
    torch.manual_seed(0)
    dataset = data.load("digits")
    held = data.federate(dataset, data.partition.build("labels", per_client=1)(dataset, 20, 0))
    model = models.build("logistic", held)
    timeline = timelines.uniform(20, 4, 12, seed=0)
    return list(simulate(model, held, rules.wkafl(0.05), timeline, Gradient(4), evaluate_every=4))


def test_records_pass_through_unchanged_and_in_order(records, tmp_path):
    passed = list(loggers.csv_file(iter(records), tmp_path / "log.csv"))
    assert all(one is other for one, other in zip(passed, records, strict=True))


def test_a_csv_has_a_row_for_each_step_that_can_be_read_while_it_grows(records, tmp_path):
    path = tmp_path / "log.csv"
    for seen, record in enumerate(loggers.csv_file(records, path), start=1):
        rows = list(csv.DictReader(path.open()))
        assert len(rows) == seen
        assert float(rows[-1]["loss"]) == pytest.approx(record.loss)
    assert [row["step"] for row in rows if row["accuracy"]] == ["4", "8", "12"]


def test_what_a_logger_gets_is_what_the_record_says(records):
    for record in records:
        found = loggers.scalars(record)
        assert found["staleness"] == pytest.approx(np.mean(record.staleness))
        assert found["selected"] == sum(weight > 0 for weight in record.weights)
        assert found["largest_weight"] == pytest.approx(max(record.weights) / sum(record.weights), rel=1e-5)
        assert ("accuracy" in found) == (record.accuracy is not None)


def test_tensorboard_reads_back_what_was_told(records, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert len(list(loggers.tensorboard(records, tmp_path))) == len(records)
    board = accumulator.EventAccumulator(str(tmp_path)).Reload()
    told = [(event.step, event.value) for event in board.Scalars("loss")]
    assert told == [(record.step, pytest.approx(record.loss)) for record in records]
    assert [event.step for event in board.Scalars("accuracy")] == [4, 8, 12]


def test_mlflow_reads_back_what_was_told(records, tmp_path, monkeypatch):
    flow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    flow.set_tracking_uri((tmp_path / "runs").as_uri())
    list(loggers.mlflow(records, {"rule": "wkafl"}, every=3, run_name="wkafl"))
    assert flow.active_run() is None
    client = flow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert run.data.params == {"rule": "wkafl"}
    assert run.info.run_name == "wkafl"
    told = client.get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in told] == [3, 4, 6, 8, 9, 12]
    assert told[0].value == pytest.approx(records[2].loss)


def test_a_loop_that_is_left_early_closes_its_log(records, tmp_path):
    passing = loggers.csv_file(records, tmp_path / "log.csv")
    next(passing)
    passing.close()
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 2


def test_a_logger_that_is_not_installed_and_a_file_that_cannot_be_are_sentences(records, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for passing in (loggers.tensorboard(records, tmp_path), loggers.mlflow(records)):
        with pytest.raises(UserError, match=r"kasync\[loggers\]"):
            next(passing)
    with pytest.raises(UserError, match="cannot be written"):
        next(loggers.csv_file(records, tmp_path / "no" / "folder.csv"))
