"""The command line: answers, one-sentence errors, exit codes."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from kasync import timelines
from kasync.cli import main

pytest.importorskip("typer")
SMALL = ["--dataset", "synthetic", "--clients", "20", "-k", "4", "--partition", "iid", "--steps", "30", "--lr", "0.05"]


def kasync(*words, cwd=None, **environment):
    """The program as a person calls it, in a pipe."""
    program = [sys.executable, "-c", "from kasync.cli import main; main()", *map(str, words)]
    return subprocess.run(
        program, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with one finished run."""
    folder = tmp_path_factory.mktemp("made") / "run"
    answer = kasync("run", *SMALL, "--out", folder)
    assert answer.returncode == 0, answer.stderr
    return folder


def test_a_run_answers_quietly_in_a_pipe_and_leaves_a_folder(made):
    assert (made / "summary.json").exists()
    again = kasync("run", *SMALL, "--out", made)
    assert again.stderr == ""
    assert again.stdout.splitlines()[0].startswith("rule\tsteps\tfinal_accuracy")


def test_the_settings_beside_a_run_repeat_it_and_say_so(made):
    answer = kasync("run", made / "run.toml")
    assert answer.returncode == 0
    assert f"the same numbers as {made}" in answer.stdout


def test_flags_win_over_a_file(made, tmp_path):
    answer = kasync("run", made / "run.toml", "--rule", "fedbuff", "--steps", "10", "--out", tmp_path / "o", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["timeline"]["steps"] == 10
    assert 'kind = "fedbuff"' in (tmp_path / "o" / "run.toml").read_text()


def test_a_saved_timeline_is_replayed_with_another_rule(tmp_path):
    timelines.save(timelines.uniform(20, 4, 25), tmp_path / "saved.npz")
    words = ["--dataset", "synthetic", "--partition", "iid", "--lr", "0.05", "--rule", "twafl"]
    answer = kasync("run", "--timeline", tmp_path / "saved.npz", *words, "--out", tmp_path / "o", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["timeline"]["steps"] == 25


def test_compare_puts_rules_side_by_side(tmp_path):
    words = [word for word in SMALL if word not in ("--lr", "0.05")]
    answer = kasync(
        "compare", "--rules", "wkafl,fedbuff", *words, "--set", "wkafl.threshold=0.1", "--out", tmp_path, "--json"
    )
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)["rows"]
    assert [row["rule"] for row in rows] == ["wkafl threshold = 0.1", "fedbuff"]
    assert (tmp_path / "experiments.json").exists()
    assert (tmp_path / "report" / "report.html").exists()
    answered = json.loads(answer.stdout)
    assert answered["report"] == str(tmp_path / "report" / "report.html")
    assert len(answered["verdict"]) == 1
    assert {"interval", "best_accuracy", "last_accuracy"} <= rows[0].keys()


def test_a_second_comparison_in_one_place_stands_beside_the_first(tmp_path):
    """Other settings of a rule, or another task, never take the place of what was there."""
    from kasync.report import read

    words = [word for word in SMALL if word not in ("--lr", "0.05")]
    for more in (["--set", "optimizer=plain"], ["--rules", "twafl", "--set", "twafl.lr=0.2"]):
        answer = kasync("compare", "--rules", "wkafl", *words, *more, "--seeds", "2", "--out", tmp_path)
        assert answer.returncode == 0, answer.stderr
        assert "highest final accuracy" in answer.stdout or "ends with" in answer.stdout
        assert f"report\t{tmp_path}" in answer.stdout
    found = [(line.rule.label, len(line.finished)) for each in read(tmp_path).experiments for line in each.lines]
    assert sorted(found) == [("twafl lr = 0.2", 2), ("wkafl", 2), ("wkafl", 2)]


def test_an_edited_rule_stands_beside_what_it_was(tmp_path):
    from kasync.report import read

    words = [*[word for word in SMALL if word not in ("--lr", "0.05")], "--out", tmp_path / "runs", "--json"]
    source = "import kasync\n\ndef fair(lr=0.1):\n    return kasync.Rule('fair', lr, (kasync.parts.ClipNorms({}),))\n"
    shown = []
    for limit in (1.0, 0.01, 1.0):
        (tmp_path / "my.py").write_text(source.format(limit))
        answer = kasync("compare", "--rules", "my.py:fair", *words, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        shown += json.loads(answer.stdout)["rows"]
    assert shown[0] == shown[2]
    assert shown[0]["final_accuracy"] != shown[1]["final_accuracy"]
    (found,) = read(tmp_path / "runs").experiments
    first, second = (line.rule.label for line in found.lines)
    assert (first, shown[0]["rule"]) == ("fair", "fair")
    assert re.fullmatch(r"fair \([0-9a-f]{6}\)", second)
    assert shown[1]["rule"] == second


def test_the_version_is_said_at_once():
    answer = kasync("--version")
    assert (answer.returncode, answer.stdout.split()[0]) == (0, "kasync")


def test_set_means_the_run_where_the_run_has_such_a_setting(tmp_path):
    answer = kasync("run", *SMALL, "--set", "optimizer=adam", "--set", "threshold=0.1", "--out", tmp_path / "run")
    assert answer.returncode == 0, answer.stderr
    written = (tmp_path / "run" / "run.toml").read_text()
    assert 'optimizer = "adam"' in written
    assert "threshold = 0.1" in written


def test_what_a_file_does_not_say_is_what_flags_do_not_say(tmp_path):
    from kasync import files

    (tmp_path / "mine.toml").write_text('dataset = "synthetic"\nsteps = 30\n[rule]\nkind = "wkafl"\n')
    by_file = kasync("run", tmp_path / "mine.toml", "--out", tmp_path / "file")
    flags = ["--rule", "wkafl", "--dataset", "synthetic", "--steps", "30"]
    by_flags = kasync("run", *flags, "--out", tmp_path / "flags")
    assert (by_file.returncode, by_flags.returncode) == (0, 0), by_file.stderr + by_flags.stderr
    assert files.read_toml(tmp_path / "file" / "run.toml") == files.read_toml(tmp_path / "flags" / "run.toml")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_fits_a_narrow_terminal_and_says_what_is_left_out(width):
    from kasync.cli.show import fitting

    row = {
        "rule": "wkafl threshold",
        "final_accuracy": 0.12345,
        "interval": 0.01,
        "best_accuracy": 0.2,
        "stability": 0.1,
    }
    row |= {"last_accuracy": 0.1, "average_staleness": 3.25}
    kept, left_out = fitting(list(row), [row], width)
    assert kept[:2] == ["rule", "final_accuracy"]
    assert kept + left_out == list(row)
    assert bool(left_out) == (width < 80)


def test_a_run_that_begins_anew_says_so(tmp_path):
    from kasync.experiments import runner
    from kasync.experiments.experiment import settings_for

    settings = settings_for("wkafl", {"dataset": "synthetic", "clients": 20, "k": 4, "steps": 20}, {}).resolved()
    told = []
    with pytest.raises(runner.Stopped):
        runner.run(settings, tmp_path / "run", runner.Watch(stop=lambda: True, say=told.append), checkpoint_every=60.0)
    assert told == []
    runner.run(settings, tmp_path / "run", runner.Watch(say=told.append))
    assert len(told) == 1
    assert "it starts over" in told[0]


def test_what_a_run_says_is_seen_beside_its_bars_on_a_terminal(tmp_path):
    pty = pytest.importorskip("pty")
    from kasync.experiments import runner
    from kasync.experiments.experiment import settings_for

    settings = settings_for("wkafl", {"dataset": "synthetic", "clients": 20, "k": 4, "steps": 20}, {}).resolved()
    with pytest.raises(runner.Stopped):
        runner.run(settings, tmp_path / "run", runner.Watch(stop=lambda: True), checkpoint_every=60.0)
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", "from kasync.cli import main; main()", "run", str(tmp_path / "run" / "run.toml")]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    told = b""
    with suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 4096):
            told += piece
    assert process.wait(60) == 0
    assert b"startsover" in b"".join(told.split())


MISTAKES = {
    "a typo in a rule": (["run", "--rule", "wkalf"], "did you mean 'wkafl'"),
    "a typo in a rule to compare": (["compare", "--rules", "wkalf"], "did you mean 'wkafl'"),
    "a setting the rule has not": (["run", "--set", "treshold=0.1"], "did you mean 'threshold'"),
    "a setting without a value": (["run", "--set", "threshold"], "name=value"),
    "more deliveries than clients": (["run", "--clients", "5", "-k", "9"], "k = 9 is more than clients = 5"),
    "no data": (["run", "--dataset", "cifar10", "--root", "."], "cifar-10-batches-bin"),
    "no such data": (["run", "--dataset", "cifar11"], "did you mean 'cifar10'"),
    "a results folder that is not one": (["report", "."], "is not a results folder"),
    "a results folder that is not there": (["report", "nowhere"], "nowhere does not exist"),
    "an unwritable folder": (["run", *SMALL, "--out", "/proc/kasync"], "cannot be written"),
    "a GPU that is not there": (["run", *SMALL, "--device", "cuda:99"], "CUDA GPUs here"),
    "a settings file that is not there": (["run", "nowhere.toml"], "nowhere.toml does not exist"),
    "a timeline that is not there": (["run", "--timeline", "nowhere.npz"], "nowhere.npz does not exist"),
    "a trace that is not there": (["run", *SMALL, "--trace", "nowhere.csv"], "nowhere.csv cannot be read as a trace"),
    "a trace without a clock": (["run", "--trace", "t.csv", "--arrivals", "uniform"], "a trace is played by the clock"),
    "a trace and durations": (
        ["run", "--trace", "t.csv", "--arrivals", "clock:durations=ace"],
        "name no durations beside a trace",
    ),
    "arrivals of no kind": (["compare", "--arrivals", "klock:durations=ace"], "did you mean 'clock'"),
    "an unknown experiment": (["reproduce", "stalenes"], "did you mean 'staleness'"),
    "an unknown task": (["reproduce", "staleness", "--tasks", "digits-11"], "did you mean 'digits-10'"),
    "no seeds": (["reproduce", "staleness", "--seeds", "0"], "seeds = 0"),
    "an unknown engine": (["reproduce", "appendix_d", "--engine", "rya"], "did you mean 'ray'"),
    "an unknown rule to explain": (["rules", "wkalf"], "did you mean 'wkafl'"),
    "words where numbers belong": (["plan", "-k", "few"], "k = 'few'"),
    "an unknown command": (["rnu"], "No such command"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence_and_exit_code_two(mistake, tmp_path, monkeypatch, capsys):
    words, sentence = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["kasync", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 2, told.err
    assert sentence in told.err
    assert told.out == ""


def test_a_mistake_shows_no_traceback(tmp_path):
    answer = kasync("run", "--rule", "wkalf", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr == "kasync: unknown rule 'wkalf': did you mean 'wkafl'?\n"


def test_two_runs_into_one_folder_and_control_c(tmp_path):
    words = [*SMALL, "--steps", "20000", "--out", str(tmp_path / "run")]
    program = [sys.executable, "-c", "from kasync.cli import main; main()", "run", *words]
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job would ignore it
    first = subprocess.Popen(program, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    until = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.csv").exists():
        assert time.monotonic() < until
        assert first.poll() is None
        time.sleep(0.05)
    second = kasync("run", *words)
    assert second.returncode == 2
    assert f"in use by process {first.pid}" in second.stderr
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=60)
    assert first.returncode == 130
    assert f"kasync run {tmp_path / 'run' / 'run.toml'}" in told
    assert "Traceback" not in told


def test_a_command_piped_into_a_closed_pipe_is_no_mistake():
    program = f"{sys.executable} -c 'from kasync.cli import main; main()' rules | head -1"
    answer = subprocess.run(program, shell=True, capture_output=True, text=True, check=False, timeout=120)
    assert answer.stderr == ""


def test_rules_tell_formula_paper_and_defaults():
    row = next(row for row in json.loads(kasync("rules", "--json").stdout) if row["name"] == "wkafl")
    assert "exp(sharpness cos" in row["formula"]
    assert "Zhou" in row["paper"]
    assert row["settings"]["threshold"] == 0.3
    assert row["settings"]["lr"] is None
    assert "threshold=0.3" in kasync("rules", "wkafl").stdout


def test_plan_and_theory_answer_in_json():
    rows = json.loads(kasync("plan", "--clients", "50", "-k", "1,5", "--json").stdout)
    assert [row["k"] for row in rows] == [1, 5]
    assert rows[0]["staleness"] > rows[1]["staleness"]
    bound = json.loads(kasync("theory", "--clients", "100", "-k", "10", "--steps", "50", "--json").stdout)
    assert bound["bound_on_mean_squared_gradient"] > 0
    assert bound["least_mean_staleness_held_from_1"] == 5.5


def test_the_data_that_is_here_is_listed(tmp_path):
    rows = {row["name"]: row for row in json.loads(kasync("data", "ls", "--root", tmp_path, "--json").stdout)}
    assert rows["synthetic"]["here"]
    assert not rows["cifar10"]["here"]


def test_appendix_d_is_reproduced_in_a_moment(tmp_path):
    answer = kasync("reproduce", "appendix_d", "--out", tmp_path, "--json")
    assert answer.returncode == 0, answer.stderr
    for row in json.loads(answer.stdout)["rows"]:
        assert row["held"] >= row["bound"]


def test_a_report_is_written_from_a_run(made):
    pytest.importorskip("matplotlib")
    answer = kasync("report", made, "--html", "--json")
    assert answer.returncode == 0, answer.stderr
    assert any(path.endswith("report.html") for path in json.loads(answer.stdout)["written"])


def test_bench_times_a_step_and_the_floor():
    words = ["--model", "logistic", "--clients", "20", "-k", "2", "--steps", "20", "--json"]
    (row,) = json.loads(kasync("bench", *words).stdout)
    assert row["ms_per_step"] > 0
    assert row["floor_ms"] > 0


def test_the_demo_ends_with_a_table_a_picture_and_what_to_try_next(tmp_path):
    pytest.importorskip("mlxtend")
    answer = kasync("demo", "--steps", "20", "--out", tmp_path / "demo")
    assert answer.returncode == 0, answer.stderr
    rows = [line.split("\t") for line in answer.stdout.splitlines()[:5]]
    assert rows[0] == ["rule", "seeds", "last_accuracy", "seconds_to_0.8", "mean_staleness"]
    assert [row[0] for row in rows[1:]] == ["wait for everybody (FedAvg)", "FedBuff", "WKAFL", "Recall"]
    assert float(rows[1][4]) == 0 < float(rows[2][4]) == float(rows[3][4])
    assert "try next" in answer.stdout
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 5000
    assert str(tmp_path / "demo" / "report" / "report.html") in answer.stdout


def test_ctrl_c_before_anything_is_written_names_the_command_itself(tmp_path, monkeypatch, capsys):
    import typer

    from kasync.cli.training import _carry_out
    from kasync.experiments import runner
    from kasync.experiments.experiment import settings_for

    def interrupted(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["kasync", "run", "--out", "here"])
    settings = settings_for("wkafl", {"clients": 20, "k": 2, "steps": 10}, {}).resolved()
    with pytest.raises(typer.Exit):
        _carry_out(settings, tmp_path, None, False, True)
    assert "Go on with: kasync run --out here" in capsys.readouterr().err
    (tmp_path / "run.toml").touch()
    with pytest.raises(typer.Exit):
        _carry_out(settings, tmp_path, None, False, True)
    assert f"Go on with: kasync run {tmp_path / 'run.toml'}" in capsys.readouterr().err


def test_the_demo_says_how_the_shell_finds_kasync_only_where_it_does_not(monkeypatch, tmp_path):
    from kasync.cli import training

    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (words,) = training._first()
    assert "source .venv/bin/activate" in words
    program = tmp_path / "kasync"
    program.write_text("")
    program.chmod(0o755)
    assert training._first() == []


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "compare",
        "reproduce",
        "tune",
        "report",
        "rules",
        "plan",
        "theory",
        "data ls",
        "data get",
        "bench",
        "demo",
    ],
)
def test_every_command_has_help_with_an_example(command):
    from typer.testing import CliRunner

    from kasync.cli.app import app

    answer = CliRunner().invoke(app, [*command.split(), "--help"])
    assert answer.exit_code == 0
    assert f"kasync {command}" in answer.output
    assert "Example" in answer.output
    assert "--json" in answer.output


def test_help_does_not_import_torch():
    program = (
        "import sys\n"
        "sys.argv = ['kasync', '--help']\n"
        "from kasync.cli import main\n"
        "before = 'torch' in sys.modules\n"  # the package itself may import it; the command line must not
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert ('torch' in sys.modules) == before\n"
        "assert 'kasync.experiments.runner' not in sys.modules\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("verb", ["reproduce", "tune"])
def test_tf32_without_a_gpu_is_refused(verb, tmp_path, capsys, monkeypatch):
    import torch

    monkeypatch.setattr(
        sys, "argv", ["kasync", verb, "tuned", "--tf32", "--device", "cpu", "--out", str(tmp_path / "o")]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "precision = 'tf32' on device 'cpu'" in capsys.readouterr().err
    assert torch.get_float32_matmul_precision() == "highest"
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_runs_spread_over_workers_of_ray_have_the_numbers_of_one_machine(tmp_path):
    pytest.importorskip("ray")
    work = ["--work", "local:batch_size=4,epochs=1,lr=0.1,proximal=0.01", "--rule", "fedbuff"]
    for name, engine in (("here", []), ("there", ["--engine", "ray", "--workers", "1"])):
        assert kasync("run", *SMALL, *work, *engine, "--out", str(tmp_path / name)).returncode == 0
    assert (tmp_path / "here" / "metrics.csv").read_text() == (tmp_path / "there" / "metrics.csv").read_text()
    words = ["compare", *SMALL[:-2], "--rules", "fedbuff,sasgd", "--engine", "ray", "--workers", "1"]
    told = kasync(*words, "--out", str(tmp_path / "both"), "--json")
    assert told.returncode == 0, told.stderr
    assert len(json.loads(told.stdout)["rows"]) == 2
