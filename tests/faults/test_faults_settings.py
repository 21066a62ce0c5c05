"""Faults pass through settings, files and the command line to the run, and back."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from kasync import faults, files, simulate, timelines
from kasync.cli.app import app
from kasync.errors import UserError
from kasync.experiments import runner
from kasync.experiments.build import chapters, ready
from kasync.experiments.settings import Choice, RunSettings

SMALL = RunSettings(
    dataset="synthetic",
    clients=20,
    k=4,
    steps=40,
    evaluate_every=4,
    partition=Choice("iid"),
    rule=Choice("kasync_sgd", {"lr": 0.05}),
    work=Choice("gradient", {"batch_size": 4}),
)
WRONG = (Choice("stall", {"share": 0.2, "delay": 5}), Choice("nan", {"clients": [1, 2], "chance": [0.5, 1.0]}))


def test_settings_without_faults_are_what_they_were():
    assert "faults" not in SMALL.resolved().table()
    assert replace(SMALL, faults=WRONG).resolved().identity != SMALL.resolved().identity


@pytest.mark.parametrize("kind", faults.KINDS)
def test_every_kind_is_completed_written_and_read_the_same(kind, tmp_path):
    settings = replace(SMALL, faults=(Choice(kind, {"share": 0.25}),)).resolved()
    assert settings.faults[0].settings["chance"] > 0
    (tmp_path / "run.toml").write_text(files.toml_text(settings.table()))
    again = RunSettings.read(tmp_path / "run.toml").resolved()
    assert again == settings
    assert again.identity == settings.identity


def test_several_faults_are_completed_written_and_read_the_same(tmp_path):
    settings = replace(SMALL, faults=WRONG).resolved()
    (tmp_path / "run.toml").write_text(files.toml_text(settings.table()))
    assert RunSettings.read(tmp_path / "run.toml").resolved() == settings
    assert ready(settings).options["faults"] == (faults.SendNaN(clients=(1, 2), chance=(0.5, 1.0)),)


@pytest.mark.parametrize("kind", ["leave", "return", "stall", "twice"])
def test_a_run_has_its_steps_whatever_is_lost_on_the_way(kind):
    settings = replace(SMALL, faults=(Choice(kind, {"share": 0.5, "chance": 0.4}),)).resolved()
    timeline = ready(settings).timeline
    assert timeline.steps == 40
    longer = faults.inject(timelines.uniform(20, 4, 320), faults.build(kind, share=0.5, chance=0.4))
    assert timeline.fingerprint() == longer.head(40).fingerprint()


def test_a_run_in_a_folder_is_the_simulation_with_the_same_faults(tmp_path):
    settings = replace(SMALL, faults=WRONG).resolved()
    summary = runner.run(settings, tmp_path / "run")
    parts = ready(settings)
    wrong = faults.SendNaN(clients=(1, 2), chance=(0.5, 1.0))
    plain = timelines.uniform(20, 4, 80)
    records = list(
        simulate(parts.model, parts.data, parts.rule, plain, parts.work, faults=[faults.Stall(0.2, delay=5), wrong])
    )
    assert summary["dropped"] == sum(record.dropped for record in records[:40]) > 0
    kept = RunSettings.read(tmp_path / "run" / "run.toml").faults[0]
    assert (kept.settings["share"], kept.settings["delay"]) == (0.2, 5)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ([{"kind": "nann", "share": 0.1}], "did you mean 'nan'"),
        ([{"kind": "nan", "shares": 0.1}], "did you mean 'share'"),
        ([{"share": 0.1}], "says no kind"),
        ({"kind": "nan"}, "write [[faults]]"),
        ([{"kind": "nan", "share": "x"}], "share of nan is 'x'"),
        ([{"kind": "nan", "share": 0.01}], "is nobody to have nan"),
        ([{"kind": "stall", "clients": [77]}], "names client 77"),
        ([{"kind": "nan", "share": 0.2}, {"kind": "nan", "share": 0.1}], "more than once"),
    ],
)
def test_wrong_faults_in_settings_are_one_sentence(wrong, sentence):
    with pytest.raises(UserError) as problem:
        RunSettings.of({**SMALL.table(), "faults": wrong}).resolved()
    assert sentence in str(problem.value)
    assert "\n" not in str(problem.value)


def test_too_few_that_are_left_are_one_sentence():
    settings = replace(SMALL, faults=(Choice("leave", {"share": 1.0, "chance": 0.5}),)).resolved()
    with pytest.raises(UserError, match="steps = 40, but these faults leave"):
        ready(settings)


def test_a_timeline_from_a_file_ends_where_it_ends(tmp_path):
    timelines.save(timelines.uniform(20, 4, 40), tmp_path / "t.npz")
    given = replace(SMALL, arrivals=Choice("file", {"path": str(tmp_path / "t.npz")}), faults=WRONG[:1])
    with pytest.raises(UserError, match="lower steps"):
        ready(given.resolved())
    assert ready(replace(given, steps=30).resolved()).timeline.steps == 30


def test_no_theorem_is_about_faults():
    with pytest.raises(UserError, match="which no theorem here is about"):
        chapters(replace(SMALL, faults=WRONG))


def kasync(*words: str):
    return CliRunner().invoke(app, [str(word) for word in words])


RUN = (
    "--dataset",
    "synthetic",
    "--clients",
    "20",
    "-k",
    "4",
    "--steps",
    "10",
    "--partition",
    "iid",
    "--lr",
    "0.05",
    "-q",
)


def test_the_command_line_takes_faults_and_an_interrupted_run_goes_on_with_them(tmp_path):
    out = tmp_path / "run"
    made = kasync("run", *RUN, "--faults", "nan:share=0.3", "--faults", "twice:share=0.2,delay=2", "--out", out)
    assert made.exit_code == 0, made.output
    kept = RunSettings.read(out / "run.toml")
    assert [fault.kind for fault in kept.faults] == ["nan", "twice"]
    again = kasync("run", out / "run.toml", "-q")
    assert again.exit_code == 0, again.output
    assert "the same numbers" in again.output
    without = kasync("run", *RUN, "--out", out)
    assert without.exit_code != 0


def test_a_misspelt_fault_on_the_command_line_is_one_sentence(tmp_path):
    refused = kasync("run", *RUN, "--faults", "stahl:share=0.3", "--out", tmp_path / "run")
    assert refused.exit_code != 0
    assert "did you mean 'stall'" in str(refused.exception) + refused.output
    assert not (tmp_path / "run").exists()
