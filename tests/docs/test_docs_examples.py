"""Are the examples short, and do they do what they say?"""

import re
import subprocess
import sys

import pytest
from pages import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def printed_by(name: str) -> str:
    program = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
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
    accuracies = re.findall(r"accuracy (\S+)", printed_by("compare_rules"))
    assert len(accuracies) == 5
    assert min(map(float, accuracies)) > 0.5


@pytest.mark.slow
def test_an_own_model_learns_from_own_data():
    errors = [float(value) for value in re.findall(r"rows (\S+)", printed_by("own_model_and_data"))]
    assert len(errors) == 4
    assert errors[-1] < 0.8 * errors[0]


def test_staleness_is_seen_without_training():
    rows = [line.split() for line in printed_by("timelines_without_training").splitlines()[1:4]]
    for row, expected in zip(rows, (999, 99, 9), strict=True):
        assert 0.8 * expected < float(row[3]) <= expected
