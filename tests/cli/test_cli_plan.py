"""What `kasync plan` and `kasync theory` print, draw and refuse."""

import json
import sys

import pytest

from kasync import timelines
from kasync.cli import main

pytest.importorskip("typer")
FLEET = ["--clients", "20", "--durations", "log_normal:spread=0.4", "--speeds", "log_normal:spread=0.3"]
TASK = ["--dataset", "synthetic", "--partition", "iid", "--rule", "kasync_sgd", "--lr", "0.05", "--seeds", "1"]


def kasync(capsys, monkeypatch, *words):
    """(exit code, stdout, stderr) of the program, in this process."""
    monkeypatch.setattr(sys, "argv", ["kasync", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    return ended.value.code or 0, told.out, told.err


@pytest.fixture
def ask(capsys, monkeypatch):
    return lambda *words: kasync(capsys, monkeypatch, *words)


def is_picture(path):
    return path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 20_000


def test_pilots_recommend_one_k_with_a_reason_and_draw_it(ask, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.png"
    code, out, err = ask(
        "plan", *FLEET, "-k", "1,4,20", "--pilot", "--target", "0.4", *TASK, "--picture", picture, "--json"
    )
    assert code == 0, err
    rows = json.loads(out)
    (chosen,) = [row for row in rows if row["recommended"]]
    assert chosen["reason"].startswith(f"k={chosen['k']} at learning rate 0.05 reached accuracy 0.4")
    assert chosen["seconds_to_target"] == min(row["seconds_to_target"] for row in rows if row["seconds_to_target"])
    assert all(row["bound_staleness"] is not None and row["idle_saved"] is not None for row in rows)
    assert is_picture(picture)


def test_without_pilots_the_constants_of_the_problem_decide(ask, tmp_path):
    pytest.importorskip("matplotlib")
    words = ["plan", *FLEET, "-k", "1,4,20", "--constants", "smoothness=2,heterogeneity=0"]
    code, out, err = ask(*words, "--picture", tmp_path / "plan.png")
    assert code == 0, err
    assert out.splitlines()[-1].startswith("recommended\tk=")
    assert "smallest bound" in out
    assert is_picture(tmp_path / "plan.png")


def test_a_fleet_is_read_from_a_trace(ask, tmp_path):
    trace = tmp_path / "seconds.csv"
    trace.write_text("client,seconds\n" + "".join(f"{client},{1 + client}\n" for client in range(6)))
    code, out, err = ask("plan", "--trace", trace, "-k", "1,6", "--json")
    assert code == 0, err
    slowest = json.loads(out)[1]
    assert slowest["seconds_per_step"] == pytest.approx(6.0)  # all six are waited for, the slowest takes 6 seconds


def test_a_fleet_is_fitted_to_the_timeline_of_a_run(ask, tmp_path):
    from kasync.timelines import clock, durations

    timelines.save(clock(50, 2, 1500, durations.log_normal(3.0, 0.4), seed=1), tmp_path / "live.npz")
    code, out, err = ask("plan", "--timeline", tmp_path / "live.npz", "-k", "2,10", "--json")
    assert code == 0, err
    rows = json.loads(out)
    real = clock(50, 10, 300, durations.log_normal(3.0, 0.4), seed=2)
    assert rows[1]["seconds_per_step"] == pytest.approx(real.times[-1] / 300, rel=0.05)


MISTAKES = {
    "a target without pilots": (["plan", *FLEET, "--target", "0.8"], "add --pilot"),
    "two sources of durations": (["plan", *FLEET, "--trace", "x.csv"], "--durations and --trace"),
    "a trace that is not there": (["plan", "--trace", "nowhere.csv"], "nowhere.csv"),
    "a timeline that is not there": (["plan", "--timeline", "nowhere.npz"], "nowhere.npz does not exist"),
    "an unknown constant": (["plan", "--constants", "smothness=1"], "did you mean 'smoothness'"),
    "a constant that is no number": (["plan", "--constants", "smoothness=big"], "smoothness = 'big'"),
    "a learning rate that is no number": (["plan", *FLEET, "--pilot", "--lr", "fast"], "lr = 'fast'"),
    "no delivery at all": (["plan", *FLEET, "-k", "0"], "k is 0"),
    "more deliveries than clients": (["plan", *FLEET, "-k", "30"], "30"),
    "more deliveries than are at work": (
        ["plan", "--clients", "20", "--arrivals", "clock:concurrency=5", "-k", "10"],
        "only 5 clients are at work at a time",
    ),
    "an accuracy in percent": (["plan", *FLEET, "-k", "1,4", "--pilot", "--target", "80", *TASK], "target = 80"),
    "a picture that cannot be written": (["plan", *FLEET, "-k", "4", "--picture", "no/such/p.png"], "no/such/p.png"),
    "a picture of no kind": (["plan", *FLEET, "-k", "4", "--picture", "plan.xyz"], "plan.xyz"),
    "a run that is not there": (["theory", "nowhere"], "nowhere does not exist"),
    "a picture without a run": (["theory", "--picture", "x.png"], "name its folder"),
    "a k above the clients": (["theory", "-k", "20", "--clients", "10"], "k = 20"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence_and_exit_code_two(mistake, ask, tmp_path, monkeypatch):
    words, sentence = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    code, _, err = ask(*words)
    assert code == 2, err
    assert sentence in err
    assert "Traceback" not in err


def test_a_run_is_held_against_its_theorem_and_drawn(ask, tmp_path):
    pytest.importorskip("matplotlib")
    run = ["--dataset", "synthetic", "--partition", "iid", "--clients", "20", "-k", "4", "--steps", "40"]
    code, _, err = ask("run", *run, "--rule", "kasync_sgd", "--lr", "0.0001", "--out", tmp_path / "run", "-q")
    assert code == 0, err
    code, out, err = ask("theory", tmp_path / "run", "--looks", "10", "--picture", tmp_path / "theory.png", "--json")
    assert code == 0, err
    (stage,) = json.loads(out)
    assert stage["looseness"] == pytest.approx(stage["bound_on_mean_squared_gradient"] / stage["mean_squared_gradient"])
    assert stage["looseness"] > 1
    assert stage["dominant"] in stage["verdict"]
    assert is_picture(tmp_path / "theory.png")
    code, out, _ = ask("theory", tmp_path / "run" / "run.toml", "--looks", "10")
    assert "times what the run did" in out
