"""What others see of a live run: callbacks, loggers, the record folder, and the page in a real browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from typer.testing import CliRunner

from kasync import rules
from kasync.cli.app import app
from kasync.errors import UserError
from kasync.live import page
from kasync.live.flower import KAsync
from kasync.live.watch import MLflow, Prometheus, TensorBoard, as_text, exposition

sys.path.append(str(Path(__file__).parents[1] / "report"))  # browser


def towards_one(message: Message) -> list[Message]:
    arrays = {"w": Array((message.content["arrays"]["w"].numpy() + 1.0) / 2)}
    metrics = MetricRecord({"num-examples": 3, "train_loss": 0.5 ** int(message.content["config"]["server-round"])})
    return [Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)]


def bad_third(message: Message) -> list[Message]:
    if message.metadata.dst_node_id == 2:
        content = {"arrays": ArrayRecord({"w": Array(np.full(3, np.nan, np.float32))})}
        return [Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)]
    return towards_one(message)


def run(rounds: int = 12, pause=lambda number: None, answer=bad_third, extra=None, **settings) -> KAsync:
    strategy = KAsync(rules.fedbuff(1.0), k=2, poll=0.002, rest=0.0, **settings)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        pause(number)
        accuracy = 1.0 - 0.9 * float(abs(arrays["w"].numpy() - 1.0).max())
        return MetricRecord({"accuracy": accuracy, **(extra or {})})

    start = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    strategy.start(FakeGrid(range(5), answer), start, rounds, evaluate_fn=evaluate)
    return strategy


def test_a_function_gets_the_record_of_every_update():
    seen = []
    run(on_update=seen.append)
    assert [record["update"] for record in seen] == list(range(1, 13))
    assert all(len(record["clients"]) == len(record["shares"]) == len(record["staleness"]) == 2 for record in seen)
    assert all(sum(record["shares"]) == pytest.approx(1.0, abs=1e-4) for record in seen)
    assert {row["state"] for row in seen[-1]["table"]} >= {"set aside"}


def test_tensorboard_has_the_scalars(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(sinks=[TensorBoard(tmp_path)])
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    wanted = {"loss", "staleness", "max_staleness", "clients/train_loss", "evaluation/accuracy"}
    assert wanted <= set(read.Tags()["scalars"])
    assert [event.step for event in read.Scalars("loss")] == list(range(1, 13))


def test_mlflow_has_the_metrics(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    sink = MLflow({"rule": "fedbuff"}, run_name="hospital")
    run(sinks=[sink])
    found = mlflow.MlflowClient().get_run(sink.run)
    assert found.info.status == "FINISHED"
    assert found.data.params == {"rule": "fedbuff"}
    assert found.data.metrics["evaluation.accuracy"] > 0.9


def test_prometheus_finds_the_newest_numbers_of_the_run_and_of_every_client():
    texts = []
    sink = Prometheus(port=0)

    def scrape(record: dict) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10) as answer:
            texts.append(answer.read().decode())

    run(sinks=[sink], on_update=scrape)
    values = dict(line.rsplit(" ", 1) for line in texts[-1].splitlines())
    assert values["kasync_updates_total"] == "12"
    assert float(values["kasync_evaluation_accuracy"]) > 0.5
    assert values['kasync_replies_total{outcome="refused"}'] == "3"
    assert values['kasync_client_refused{client="2",node="2"}'] == "3"
    with pytest.raises(UserError, match="port = 70000"):
        Prometheus(port=70000)


def test_whatever_clients_call_their_metrics_prometheus_can_read_them():
    metrics = {"train loss": 0.5, "top-5 %": 0.25, "one\nline": 1.0}
    text = ""
    for update in (1, 2):
        text = exposition({"update": update, "metrics": metrics, "tally": {"used": 2}}, text)
    names = [line.rsplit(" ", 1)[0] for line in text.splitlines()]
    assert all(re.fullmatch(r'[a-zA-Z_][a-zA-Z0-9_]*({[a-z]+="[a-z]+"})?', name) for name in names)
    assert "kasync_clients_train_loss 0.5" in text.splitlines()


def test_prometheus_finds_a_client_once_that_is_at_another_node_now():
    rows = [{"client": None, "node": "7", "used": 0}, {"client": 0, "node": "8", "used": 3}]
    text = exposition({"update": 1, "table": rows})
    text = exposition({"update": 2, "table": [{"client": 0, "node": "9", "used": 4}]}, text)
    assert [line for line in text.splitlines() if "client_used" in line] == [
        'kasync_client_used{client="0",node="9"} 4'
    ]


def test_a_sink_that_fails_is_named_once_and_the_run_goes_on(caplog):
    def away(record: dict) -> None:
        raise ConnectionError("the server is away")

    assert run(sinks=[away]).run.federation.updates == 12
    assert caplog.text.count("the server is away") == 1


def test_the_table_in_the_log_names_the_client_that_is_refused(caplog):
    with caplog.at_level("INFO", "kasync.live"):
        strategy = run()
    (line,) = [line for line in caplog.text.splitlines() if line.startswith("     2 ")]
    assert "set aside" in line
    assert "not finite" in line
    assert "Final results" in caplog.text
    many = as_text(strategy.run.federation.table(1.0) * 20)
    assert "and 60 more" in many


def test_metrics_and_the_page_go_on_where_a_killed_server_left_them(tmp_path):
    settings = {"checkpoint": tmp_path / "state", "record": tmp_path / "run", "checkpoint_every": 4}
    run(5, **settings)
    again = run(11, **settings)
    assert sorted(again.run.result.train_metrics_clientapp) == list(range(1, 12))
    assert sorted(again.run.result.evaluate_metrics_serverapp) == list(range(12))
    shown = page.read(tmp_path / "run")
    assert [record["update"] for record in shown["updates"]] == list(range(1, 12))
    assert [record["evaluation"] for record in shown["evaluations"]] == list(range(12))
    assert shown["about"]["finished"]


def test_a_run_that_ends_before_its_first_update_leaves_a_record_that_says_why(tmp_path):
    def bad(message: Message) -> list[Message]:
        return [Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)]

    strategy = KAsync(rules.fedbuff(1.0), k=2, poll=0.002, offences=1, grace=0.1, record=tmp_path / "new" / "run")
    strategy.start(FakeGrid(range(3), bad), ArrayRecord({"w": Array(np.zeros(3, np.float32))}), 4)
    shown = page.read(tmp_path / "new" / "run")
    assert "set aside" in shown["about"]["ended"]
    assert len(shown["clients"]["clients"]) == 3


@pytest.mark.parametrize("number", [4, 6], ids=["in the middle", "after the last update"])
def test_an_evaluation_in_which_the_server_died_is_made_again_and_no_metrics_are_lost(number, tmp_path, monkeypatch):
    def dies(at: int) -> None:
        if at == number:
            raise KeyboardInterrupt

    def nothing(self, *args: object, **kwargs: object) -> None:
        """A dead process ends nothing."""

    settings = {"checkpoint": tmp_path / "state", "checkpoint_every": 2, "evaluate_every": 2}
    with monkeypatch.context() as patched:
        patched.setattr("kasync.live.flower_run.FlowerRun._finish", nothing)
        with pytest.raises(KeyboardInterrupt):
            run(6, dies, **settings)
    again = run(6, **settings)
    assert sorted(again.run.result.train_metrics_clientapp) == list(range(1, 7))
    assert sorted(again.run.result.evaluate_metrics_serverapp) == [0, 2, 4, 6]


def test_report_reads_the_folder_of_a_live_run_and_another_is_refused(tmp_path):
    run(record=tmp_path / "run")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "run" / "live.html").read_text()
    assert "connect-src 'none'" in text
    assert json.loads(text.split('id="data">')[1].split("</script>")[0])["about"]["rule"] == "fedbuff"
    with pytest.raises(UserError, match="holds no records of a live run"):
        page.read(tmp_path)


def test_the_page_of_a_model_that_diverged_can_be_read_by_a_browser(tmp_path):
    run(record=tmp_path / "run", extra={"loss": float("nan"), "perplexity": float("inf")})
    text = page.html(page.read(tmp_path / "run"))

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is no json")

    data = json.loads(text.split('id="data">')[1].split("</script>")[0], parse_constant=refused)
    assert data["evaluations"][-1]["metrics"]["accuracy"] > 0.9
    assert data["evaluations"][-1]["metrics"]["loss"] is data["evaluations"][-1]["metrics"]["perplexity"] is None


@pytest.mark.slow
def test_the_page_follows_a_running_federation_in_a_browser(tmp_path):
    import browser

    folder = tmp_path / "run"
    looked = threading.Event()

    def pause(number: int) -> None:
        """So that the browser, however long it takes to start, finds a run that goes on."""
        if number == 20:
            looked.wait(120)
        time.sleep(0.1)

    worker = threading.Thread(
        target=run, kwargs={"rounds": 60, "pause": pause, "record": folder, "extra": {"loss": float("nan")}}
    )
    worker.start()
    while not page.is_live(folder):
        time.sleep(0.05)
    command = [Path(sys.executable).parent / "kasync", "live", folder, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        driver = browser.start(tmp_path / "profile")
        try:
            driver.get(re.findall(r"http://\S+", served.stdout.readline())[0])
            first = int(driver.execute_script("return document.body.dataset.update"))
            assert "running" in driver.find_element("id", "state").text
            looked.set()
            until = time.monotonic() + 60
            while int(driver.execute_script("return document.body.dataset.update")) <= first + 3:
                assert time.monotonic() < until, "the page did not follow the run"
                time.sleep(0.3)
            worker.join()
            while "finished" not in driver.find_element("id", "state").text:
                assert time.monotonic() < until + 60
                time.sleep(0.3)
            count = "return document.querySelectorAll(arguments[0]).length"
            drawn = [driver.execute_script(count, f"#{id} path") for id in ("quality", "loss", "staleness", "pace")]
            assert drawn == [1, 1, 2, 1]
            marks = driver.execute_script("return document.querySelectorAll('#heard .mark').length")
            assert marks == 120
            lines = "document.querySelectorAll('#influence tbody tr')"  # at once: they are drawn anew every two seconds
            rows = driver.execute_script(f"return [...{lines}].map(row => [...row.cells].map(cell => cell.innerText))")
            assert len(rows) == 5
            assert "set aside" in next(row for row in rows if row[0] == "2")
            driver.save_screenshot(str(tmp_path / "page.png"))
            severe = [line for line in driver.get_log("browser") if line["level"] == "SEVERE"]
            assert [line for line in severe if "favicon" not in str(line)] == []
        finally:
            driver.quit()
            served.kill()
