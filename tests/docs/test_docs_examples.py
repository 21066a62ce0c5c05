"""The examples are short and do what they say."""

import re
import subprocess
import sys
import tempfile

import pytest
from pages import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def printed_by(name: str) -> str:
    program = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_under_sixty_lines_and_says_how_it_is_run(example):
    text = example.read_text()
    assert len(text.splitlines()) < 60
    assert f"python examples/{example.name}" in text


def test_a_first_run_learns_something():
    rows = [line.split() for line in printed_by("first_run").splitlines()[-6:]]
    assert [int(row[0]) for row in rows] == [100, 200, 300, 400, 500, 600]
    assert float(rows[-1][-1]) > 0.6


@pytest.mark.slow
def test_five_rules_are_compared_on_the_same_arrivals():
    *table, verdict = printed_by("compare_rules").splitlines()
    finals = [float(re.findall(r" (0\.\d+)", row)[0]) for row in table[2:]]
    assert len(finals) == 5
    assert min(finals) > 0.5
    assert "has the highest final accuracy" in verdict


@pytest.mark.slow
def test_an_own_rule_is_compared_with_published_ones():
    *table, verdict = printed_by("mine").splitlines()
    assert {row.split()[0] for row in table[2:]} == {"fair", "FedBuff", "WKAFL"}
    assert "5 seeds" in verdict


@pytest.mark.slow
def test_an_own_model_learns_from_own_data():
    errors = [float(value) for value in re.findall(r"rows (\S+)", printed_by("own_model_and_data"))]
    assert len(errors) == 4
    assert errors[-1] < 0.8 * errors[0]


def test_staleness_is_seen_without_training():
    rows = [line.split() for line in printed_by("timelines_without_training").splitlines()[1:4]]
    for row, expected in zip(rows, (999, 99, 9), strict=True):
        assert 0.8 * expected < float(row[3]) <= expected
