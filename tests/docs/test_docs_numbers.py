"""Every mean ± interval in README.md and docs is one that the results in this repository give, to its last digit."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from kasync import report
from kasync.report import checking, tables
from kasync.statistics import estimate, paired

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.name != "faults.md"]

PRINTED = re.compile(r"```text\n.*?```", re.S)  # what the code above it printed


@pytest.fixture(scope="module")
def known():
    return checking.known_of(report.read(path.parent) for path in sorted((ROOT / "results").rglob("experiments.json")))


def test_no_number_on_a_page_is_one_that_no_run_gives(known):
    texts = {path.relative_to(ROOT).as_posix(): PRINTED.sub("", path.read_text()) for path in PAGES}
    claims = {name: len(checking.CLAIM.findall(text)) for name, text in texts.items()}
    assert claims["docs/recall.md"] > 100
    assert {name: wrong for name, text in texts.items() if (wrong := checking.unfounded(text, known))} == {}


def test_a_number_that_is_changed_is_found(known):
    text = (ROOT / "docs" / "recall.md").read_text()
    mean, half = next(pair for pair in checking.CLAIM.findall(text) if pair[0].startswith(".5"))
    other = f"{mean[:-1]}{(int(mean[-1]) + 5) % 10}77"  # digits that nobody's mean has
    assert checking.unfounded(f"{other} ± {half}", known) == [f"{other} ± {half}"]


def test_the_leaderboard_is_what_its_store_gives():
    written = (ROOT / "docs" / "leaderboard.md").read_text()
    assert written == tables.leaderboard(report.read(ROOT / "results" / "tables"), "results/tables")


def test_the_page_of_faults_has_the_numbers_of_its_table():
    with (ROOT / "results" / "faults" / "accuracy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells: dict[tuple[str, ...], dict[int, float]] = {}
    for row in rows:
        cells.setdefault((row["fault"], row["share"], row["rule"]), {})[int(row["seed"])] = float(row["accuracy"])
    found = {cell: estimate(values.values()) for cell, values in cells.items()}
    plain = {rule: values for (fault, _, rule), values in cells.items() if fault == "none"}
    losses = [paired(plain[rule], values) for (_, _, rule), values in cells.items()]
    known = np.array([(each.mean, each.half) for each in [*found.values(), *losses] if each and each.half is not None])
    text = (ROOT / "docs" / "faults.md").read_text()
    assert len(checking.CLAIM.findall(text)) > 300
    assert checking.unfounded(text, known) == []
