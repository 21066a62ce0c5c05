"""Records reach the loggers that people use, unchanged and on time."""

import csv
import json
import struct
import sys
import time

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


@pytest.fixture
def flow(tmp_path, monkeypatch):
    """MLflow in an empty folder, without a word to its makers."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    found = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    before = found.get_tracking_uri()
    yield found
    found.set_tracking_uri(before)


@pytest.mark.parametrize("address", ["sqlite:///mlflow.db", "file:runs"])
def test_mlflow_reads_back_what_was_told(records, flow, tmp_path, address):
    flow.set_tracking_uri(address.replace("file:", f"file://{tmp_path}/"))
    settings = {"rule": {"kind": "wkafl", "lr": 0.05}, "k": 4}
    list(loggers.mlflow(records, settings, every=3, run_name="wkafl", experiment="mine"))
    assert flow.active_run() is None
    client = flow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.data.params == {"rule.kind": "wkafl", "rule.lr": "0.05", "k": "4"}
    assert (run.info.run_name, run.info.status) == ("wkafl", "FINISHED")
    told = client.get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in told] == [3, 4, 6, 8, 9, 12]
    assert told[0].value == pytest.approx(records[2].loss)


def test_a_loop_that_fails_is_marked_in_mlflow(records, flow):
    flow.set_tracking_uri("sqlite:///mlflow.db")

    def failing():
        yield from records[:2]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(loggers.mlflow(failing()))
    (run,) = flow.MlflowClient().search_runs(["0"])
    assert run.info.status == "FAILED"


def test_wandb_keeps_offline_what_was_told(records, tmp_path, monkeypatch):
    weights = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    list(loggers.wandb(records, {"rule": "wkafl"}, every=3, project="mine", name="first", mode="offline"))
    assert weights.run is None
    kept = told_to_wandb(tmp_path)
    assert [int(row["_step"]) for row in kept] == [3, 4, 6, 8, 9, 12]
    assert float(kept[0]["loss"]) == pytest.approx(records[2].loss, rel=1e-6)


def told_to_wandb(folder):
    """The rows of every offline run under this folder: protocol buffers in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    sizes, before, deadline = {}, None, time.monotonic() + 60
    while (max(sizes.values(), default=0) <= 7 or sizes != before) and time.monotonic() < deadline:
        time.sleep(0.5)  # W&B's service writes on after `finish` has returned
        before, sizes = sizes, {path: path.stat().st_size for path in folder.glob("**/*.wandb")}
    rows = []
    for path in sorted(sizes):
        content, place, whole = path.read_bytes(), 7, b""  # after W&B's own seven bytes
        while place + 7 <= len(content):
            length, kind = struct.unpack("<4xHB", content[place : place + 7])
            whole += content[place + 7 : place + 7 + length]
            place += 7 + length
            place += 32768 - place % 32768 if 32768 - place % 32768 < 7 else 0
            if kind in (1, 4):  # whole, or the last piece
                record = wandb_internal_pb2.Record()
                record.ParseFromString(whole)
                whole = b""
                if record.WhichOneof("record_type") == "history":
                    items = record.history.item
                    rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def test_every_run_of_a_comparison_is_logged_with_its_summary(tmp_path, flow):
    import kasync

    flow.set_tracking_uri("sqlite:///mlflow.db")
    dataset = data.load("digits")
    held = data.federate(dataset, data.partition.build("labels", per_client=1)(dataset, 20, 0))
    timeline = timelines.uniform(20, 4, 12, seed=0)
    chosen = {"one": rules.wkafl(0.05), "two": rules.fedbuff(0.05)}
    options = {"seeds": 2, "progress": False, "evaluate_every": 4, "name": "pair"}
    for track in ("mlflow", "tensorboard"):
        found = kasync.compare("logistic", held, chosen, timeline, folder=tmp_path / track, track=track, **options)
    client = flow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("pair").experiment_id])
    assert len(runs) == 4
    finals = {(run.data.params["rule.label"], int(run.data.params["seed"])): run for run in runs}
    for (label, seed), run in finals.items():
        assert run.info.status == "FINISHED"
        assert run.data.metrics["summary.final_accuracy"] == pytest.approx(found.finals(label)[seed])
        told = client.get_metric_history(run.info.run_id, "accuracy")
        assert {metric.step for metric in told} == {4, 8, 12}
    assert len(list((tmp_path / "tensorboard").glob("tensorboard/*/events*"))) == 4


def test_a_tracker_that_does_not_exist_is_a_sentence(tmp_path):
    from kasync.experiments.display import Display

    with pytest.raises(UserError, match=r"unknown tracker 'mlfow': did you mean 'mlflow'"):
        loggers.tracked(Display(), "mlfow", "group", tmp_path, {})


def test_a_loop_that_is_left_early_closes_its_log(records, tmp_path):
    passing = loggers.csv_file(records, tmp_path / "log.csv")
    next(passing)
    passing.close()
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 2


def test_a_logger_that_is_not_installed_and_a_file_that_cannot_be_are_sentences(records, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    for passing in (loggers.tensorboard(records, tmp_path), loggers.mlflow(records), loggers.wandb(records)):
        with pytest.raises(UserError, match=r"kasync\[loggers\]"):
            next(passing)
    with pytest.raises(UserError, match="cannot be written"):
        next(loggers.csv_file(records, tmp_path / "no" / "folder.csv"))
