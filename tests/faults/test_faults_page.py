"""docs/faults.md has the numbers of the committed runs, and the command that makes them works."""

import csv
import importlib.util
import sys
from itertools import product
from pathlib import Path

import pytest

from kasync import faults, rules

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import faults_page  # noqa: E402


@pytest.fixture(scope="module")
def command():
    """benchmarks/faults.py as a module."""
    spec = importlib.util.spec_from_file_location("faults_command", ROOT / "benchmarks" / "faults.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_runs_make(command):
    page = (ROOT / "docs" / "faults.md").read_text()
    made = faults_page.rewritten(page, command.read(), list(command.RULES), list(command.FAULTS), command.SHARES)
    assert page == made, "run python benchmarks/faults.py --page"


def test_every_rule_and_every_kind_of_fault_is_in_the_table(command):
    assert command.RULES.keys() == rules.RULES.keys() - {"wkafl_as_coded"}  # which is for no other purpose
    kinds = {make(0.1).kind for make in command.FAULTS.values()}
    assert kinds == faults.KINDS.keys()
    assert faults_page.WORDS.keys() == command.FAULTS.keys()
    page = (ROOT / "docs" / "faults.md").read_text()
    for kind, made in faults.KINDS.items():
        assert f"| `{kind}` | `{made.__name__}` |" in page


def test_every_cell_has_been_run(command):
    done = {(row["rule"], row["fault"], row["share"], row["seed"]) for row in command.read()}
    spoilt = [("none", 0.0), *product(command.FAULTS, command.SHARES)]
    assert done == {(rule, *each, seed) for rule, each, seed in product(command.RULES, spoilt, command.SEEDS)}


def test_a_run_of_the_table_is_made_again_to_the_same_number(command, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "RUNS", tmp_path)
    committed = {(row["rule"], row["fault"], row["share"], row["seed"]): row for row in command.read()}
    for rule, fault, share, seed in [("fltrust", "huge", 0.2, 0), ("kasync_sgd", "twice", 0.1, 1)]:
        (made,) = command.rows([rule], fault, share, [seed])
        wanted = committed[rule, fault, share, seed]
        assert made["accuracy"] == pytest.approx(wanted["accuracy"], abs=0.01)
        assert made["dropped"] == wanted["dropped"]


def test_an_interrupted_table_goes_on_where_it_was(command, tmp_path, monkeypatch):
    small = {
        "TABLE": tmp_path / "accuracy.csv",
        "RUNS": tmp_path / "runs",
        "STEPS": 30,
        "SHARES": (0.2,),
        "SEEDS": (0,),
    }
    for name, value in {**small, "RULES": {"kasync_sgd": {"lr": 0.3}}, "FAULTS": {}}.items():
        monkeypatch.setattr(command, name, value)
    command.arrivals.cache_clear()
    command.make_all()
    before = command.TABLE.read_text()
    monkeypatch.setattr(command, "FAULTS", {"nan": faults.SendNaN})
    command.make_all()
    command.arrivals.cache_clear()
    assert command.TABLE.read_text().startswith(before)
    with command.TABLE.open(newline="") as file:
        assert [row["fault"] for row in csv.DictReader(file)] == ["none", "nan"]
    assert command.read()[1]["dropped"] > 0


def test_who_holds_is_who_loses_little():
    rows = [
        {"rule": rule, "fault": fault, "share": share, "seed": seed, "accuracy": accuracy}
        for rule, fault, share, accuracies in [
            ("kasync_sgd", "none", 0.0, (0.9, 0.88)),
            ("kasync_sgd", "huge", 0.2, (0.1, 0.12)),
            ("fltrust", "none", 0.0, (0.85, 0.85)),
            ("fltrust", "huge", 0.2, (0.82, 0.84)),
        ]
        for seed, accuracy in enumerate(accuracies)
    ]
    text = "\n".join(faults_page.tables(faults_page.Runs(rows), ["kasync_sgd", "fltrust"], ["huge"], [0.2]))
    assert "| a million times too long | .11 | fltrust | kasync_sgd .78 |" in text
    assert "| fltrust | .85 ± .00 | .83 ± .13 |" in text
    assert "| kasync_sgd | .89 ± .13 | **.11 ± .13** |" in text


def test_the_picture_is_drawn(tmp_path, command):
    pytest.importorskip("matplotlib")
    faults_page.draw(
        faults_page.Runs(command.read()), list(command.RULES), list(command.FAULTS), 0.2, tmp_path / "p.png"
    )
    assert (tmp_path / "p.png").stat().st_size > 20_000
