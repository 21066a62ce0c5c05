"""Rules, models, data, work, losses and metrics of the user's own, by name, in settings and on the command line."""

import numpy as np
import pytest
import torch

from kasync import components
from kasync.errors import UserError
from kasync.experiments import runner
from kasync.experiments.build import data_of, model_of, ready
from kasync.experiments.settings import RunSettings

MINE = """
import numpy as np
import torch
import kasync
from kasync import data


def plane(clients, seed, noise=0.1):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(40 * clients, 3)).astype(np.float32)
    labels = (inputs.sum(1) + noise * rng.normal(size=len(inputs)) > 0).astype(int)
    parts = np.array_split(np.arange(30 * clients), clients)
    return data.from_arrays(inputs[: 30 * clients], labels[: 30 * clients], inputs[30 * clients :],
                            labels[30 * clients :], parts=parts, name="plane")


class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.out = torch.nn.Linear(3, classes)

    def forward(self, x):
        return self.out(x)


def fair(lr, clients, favour=1.0):
    return kasync.Rule(f"fair of {clients}", lr * favour, ())


class Careful(kasync.Local):
    def __init__(self, batch_size=4, steps=2):
        super().__init__(batch_size=batch_size, steps=steps, lr=0.1)


def smoothed(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=0.1)


def recall(outputs, labels):
    return float((outputs.argmax(1)[labels == 1] == 1).float().mean())


FIVE = 5
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_by_name.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings_with(**given):
    table = {"dataset": "mine_by_name.py:plane", "model": "mine_by_name.py:Net", "clients": 6, "k": 2, "steps": 20}
    table["rule"] = {"kind": "mine_by_name.py:fair", "lr": 0.3}
    return RunSettings.of(table | given)


def test_everything_of_a_run_may_be_ones_own(mine):
    settings = settings_with(
        work={"kind": "mine_by_name.py:Careful", "batch_size": 8},
        loss="mine_by_name.py:smoothed",
        metrics=["mine_by_name.py:recall"],
        data={"noise": 0.5},
        seed=3,
    ).resolved()
    made = ready(settings)
    assert (made.data.name, made.data.clients) == ("plane", 6)
    assert made.model.out.out_features == 2
    assert made.rule.name == "fair of 6"
    assert (made.work.batch_size, made.work.steps) == (8, 2)
    assert made.options["loss"].__name__ == "smoothed"
    assert list(made.options["metrics"]) == ["recall"]
    assert settings.own.keys() == {"dataset", "model", "rule", "work", "loss", "metric mine_by_name.py:recall"}
    assert RunSettings.of(settings.table()).resolved() == settings
    assert "/" not in settings.name
    assert ":" not in settings.name


def test_the_seed_decides_data_and_start(mine):
    one, same, other = (settings_with(seed=seed).resolved() for seed in (0, 0, 1))
    assert np.array_equal(data_of(one).train.inputs, data_of(same).train.inputs)
    assert not np.array_equal(data_of(one).train.inputs, data_of(other).train.inputs)
    weights = [model_of(each, data_of(each)).out.weight for each in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_run_of_ones_own_is_made_and_its_metric_stands_in_metrics_csv(mine):
    settings = settings_with(metrics=["mine_by_name.py:recall"], evaluate_every=10)
    summary = runner.run(settings, mine / "run")
    header, *rows = (mine / "run" / "metrics.csv").read_text().splitlines()
    assert header.endswith(",recall")
    assert 0.0 <= float(rows[-1].rpartition(",")[2]) <= 1.0
    assert summary["data"]["name"] == "plane"
    again = RunSettings.read(mine / "run" / "run.toml").resolved()
    assert again.identity == settings.resolved().identity


def test_another_code_is_another_run(mine):
    before = settings_with().resolved()
    (mine / "mine_by_name.py").write_text(MINE.replace("lr * favour", "lr * favour * 2"))
    after = settings_with().resolved()
    assert {name for name in after.own if after.own[name] != before.own[name]} == {"rule"}
    assert after.name != before.name


def test_a_dataset_of_ones_own_is_shared_out_by_the_partition(mine):
    (mine / "pictures.py").write_text("from kasync import data\n\ndef few():\n    return data.load('digits')\n")
    held = data_of(settings_with(dataset="pictures:few", model="logistic", clients=10).resolved())
    assert held.clients == 10
    assert held.name == "digits"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"dataset": "mine_by_name.py:plain"}, "unknown name in mine_by_name.py 'plain': did you mean 'plane'"),
        ({"dataset": "digit"}, "unknown dataset 'digit': did you mean 'digits'"),
        ({"dataset": "nowhere:plane"}, "nowhere cannot be imported"),
        ({"dataset": "no/such.py:plane"}, "cannot be read"),
        ({"model": "mine_by_name.py:"}, "write module:name"),
        ({"loss": "smoothed"}, "write module:name"),
        ({"loss": "mine_by_name.py:FIVE"}, "is no function"),
        ({"metrics": 3}, "give a list of texts"),
        ({"work": {"kind": "mine_by_name.py:Careful", "bach_size": 8}}, "did you mean 'batch_size'"),
        ({"work": {"kind": "gradint", "batch_size": 8}}, "did you mean 'gradient'"),
        ({"work": {"kind": "local", "batch_size": 8}}, "neither of steps and epochs"),
        ({"rule": {"kind": "mine_by_name.py:fair", "lr": 0.1, "favor": 2.0}}, "did you mean 'favour'"),
        ({"rule": {"kind": "mine_by_name.py:fair"}}, "needs lr"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_sentence_before_any_work(mine, given, sentence):
    with pytest.raises(UserError, match=sentence):
        settings_with(**given).resolved()


def test_data_that_do_not_fit_are_sentences(mine):
    few = "def few(seed):\n    import mine_by_name\n\n    return mine_by_name.plane(2, seed)\n"
    (mine / "mine_by_name_too.py").write_text(f"def five():\n    return 5\n\n\n{few}")
    five = settings_with(dataset="mine_by_name_too:five").resolved()
    with pytest.raises(UserError, match="gives int: return"):
        data_of(five)
    with pytest.raises(UserError, match="has 2 clients, the settings say 6"):
        data_of(settings_with(dataset="mine_by_name_too:few").resolved())


def test_local_work_takes_an_optimiser_by_name(mine):
    table = {"kind": "local", "batch_size": 4, "epochs": 1, "lr": 0.01, "optimizer": "AdamW"}
    assert ready(settings_with(work=table).resolved()).work.optimizer is torch.optim.AdamW
    with pytest.raises(UserError, match=r"unknown optimizer of \[work\] 'adma'"):
        settings_with(work={"kind": "local", "batch_size": 4, "epochs": 1, "optimizer": "adma"}).resolved()


def test_a_file_is_run_again_only_when_it_changes(mine):
    first = components.load("mine_by_name.py:fair", "rule")
    assert components.load("mine_by_name.py:fair", "rule") is first
    (mine / "mine_by_name.py").write_text(MINE + "\n# changed\n")
    assert components.load("mine_by_name.py:fair", "rule") is not first


@pytest.fixture
def kasync_says(mine, monkeypatch, capsys):
    """What the program answers to these words, read as JSON, in the folder of mine_by_name.py."""
    import json
    import sys

    from kasync.cli import main

    def said(*words):
        monkeypatch.setattr(sys, "argv", ["kasync", *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return json.loads(told.out)

    return said


OWN_TASK = """
title = "mine"
shows = "whether my rule learns"
command = "kasync tune mine.toml"
rules = ["mine_by_name.py:fair"]
[problems.plane]
title = "plane"
rules = { kasync_sgd = { lr = 0.1 } }
[problems.plane.run]
dataset = "mine_by_name.py:plane"
model = "mine_by_name.py:Net"
loss = "mine_by_name.py:smoothed"
clients = 6
k = 2
steps = 20
[[quick]]
name = "plane"
problem = "plane"
run = { work = { kind = "mine_by_name.py:Careful" }, metrics = ["mine_by_name.py:recall"] }
"""


def test_run_theory_report_tune_and_plan_take_ones_own(mine, kasync_says):
    own = "mine_by_name.py"
    task = ["--dataset", f"{own}:plane", "--model", f"{own}:Net", "--loss", f"{own}:smoothed", "--clients", "6"]
    rule = ["--rule", f"{own}:fair", "--lr", "0.3"]
    run = kasync_says("run", *task, *rule, "-k", "2", "--steps", "20", "--metric", f"{own}:recall", "--out", "one")
    assert run["final_accuracy"] > 0.5
    (stage,) = kasync_says("theory", "one", "--looks", "5")
    assert stage["mean_squared_gradient"] > 0
    assert "one/report/report.md" in kasync_says("report", "one", "--no-figures")["written"]
    assert "| fair |" in (mine / "one" / "report" / "report.md").read_text()
    (mine / "mine.toml").write_text(OWN_TASK)
    (chosen,) = kasync_says("tune", "mine.toml", "--budget", "2", "--out", "runs")["chosen"]
    assert chosen["rule"] == f"{own}:fair"
    rows = kasync_says("plan", *task, *rule, "--work", f"{own}:Careful", "-k", "1,3", "--pilot", "--seeds", "1")
    assert [row["recommended"] for row in rows].count(True) == 1
    assert all("bound" not in row for row in rows)  # the theorems are about one gradient, this is other work


def test_the_command_line_compares_ones_own_with_published_rules(mine, kasync_says):
    own = "mine_by_name.py"
    words = ["compare", "--rules", f"{own}:fair,fedbuff", "--dataset", f"{own}:plane", "--model", f"{own}:Net"]
    words += ["--work", f"{own}:Careful:batch_size=8", "--loss", f"{own}:smoothed", "--metric", f"{own}:recall"]
    told = kasync_says(*words, "--clients", "6", "-k", "2", "--steps", "20", "--seeds", "5", "--tune", "2")
    assert [row["rule"].split()[0] for row in told["rows"]] == ["fair", "fedbuff"]
    assert "5 seeds" in told["verdict"][0]
    assert told["verdict"][0].startswith("plane, P/K = 6/2, steps 20, model Net, work Careful (batch_size 8)")
    tries = [row["rule"] for row in told["tuned"]]
    assert tries.count(f"{own}:fair") == tries.count("fedbuff") == 2
    (rule_lr,) = {row["settings"]["lr"] for row in told["tuned"] if row["chosen"] and "fair" in row["rule"]}
    assert f"lr = {rule_lr}" in told["rows"][0]["rule"]
    run = next((mine / "kasync-runs" / "runs").glob("plane-fair-*/metrics.csv"))
    assert run.read_text().splitlines()[0].endswith(",recall")
    assert all(0.0 <= row["final_recall"] <= 1.0 for row in told["rows"])


def test_names_and_settings_of_ones_own_are_read_from_flags():
    from kasync.cli.options import choice

    assert choice("mine:Careful:steps=2,lr=0.1") == {"kind": "mine:Careful", "steps": 2, "lr": 0.1}
    assert choice("lib/mine.py:Careful") == {"kind": "lib/mine.py:Careful"}
    assert choice("labels:per_client=1") == {"kind": "labels", "per_client": 1}
    assert choice("uniform") == {"kind": "uniform"}
