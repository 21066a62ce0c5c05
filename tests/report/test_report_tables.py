"""The tables have the numbers of the runs and of the paper."""

import csv
import io

import numpy as np
import pytest

from kasync.experiments import experiment as catalogue
from kasync.experiments.store import Store, run_in
from kasync.report import results as reading
from kasync.report import tables as sheets
from kasync.report.results import ACCURACY, STABILITY
from kasync.report.tables import difference, markdown, number, sections
from kasync.statistics import Estimate

PRINTED = {  # a few of each table of the paper
    "staleness": (".9734", ".9620", ".9319", ".8753", ".4433", ".2029"),
    "noniid": (".9057", ".0834", ".9754", ".4454", ".0464", ".2874"),
}


def cells_of(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_numbers_stand_in_the_table_before_a_single_run_is_made(tmp_path, name):
    experiment = catalogue.load(name, "full")
    Store(tmp_path).record(experiment.key, experiment.record(), [cell.record() for cell in experiment.cells(range(1))])
    text = markdown(reading.read(tmp_path))
    for printed in PRINTED[name]:
        assert f"| 0{printed} |" in text
    assert "not finished" in text


def test_a_row_has_the_papers_number_and_ours_under_both_semantics(experiments):
    text = sections(experiments["staleness-quick"])[0]
    head, row = text.splitlines()[2], next(row for row in text.splitlines() if "25/5" in row and "WKAFL" in row)
    for column in ("final accuracy: paper", "final accuracy: true staleness", "final accuracy: published code"):
        assert column in head
    lines = experiments["staleness-quick"].lines
    for line in (line for line in lines if line.task.name == "digits-25" and line.rule.label == "wkafl"):
        mean = np.mean(list(ACCURACY.by_seed(line).values()))
        assert f"{mean:.4f} ± " in row
    assert "| 0.9734 |" in row
    assert "| 0.0060 |" in row


def test_numbers_say_how_many_seeds_they_rest_on():
    assert number(Estimate(0.97123, 0.0021, 3), 4, 3) == "0.9712 ± 0.0021 (3)"
    assert number(Estimate(0.97123, None, 1), 4, 3) == "0.9712 (1 of 3)"
    assert number(None, 4, 3) == "–"
    assert difference(Estimate(0.02, 0.01, 3)) == "**+0.0200 ± 0.0100 (3)**"
    assert difference(Estimate(-0.02, 0.03, 3)) == "-0.0200 ± 0.0300 (3)"


def test_every_row_of_a_table_has_as_many_cells_as_its_head(small):
    tables = [block for block in markdown(reading.read(small)).split("\n\n") if block.startswith("|")]
    assert len(tables) >= 7
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_the_differences_are_those_of_the_runs(small, experiments):
    lines = {line.rule.label: line for line in experiments["staleness-quick"].lines[:5] if line.staleness == "true"}
    ours, theirs = (STABILITY.by_seed(lines[label]) for label in ("wkafl", "twafl"))
    by_hand = [ours[seed] - theirs[seed] for seed in (0, 1)]
    rows = cells_of(sheets.differences(reading.read(small)))
    place = {"task": "digits-25", "staleness": "true", "rule": "wkafl", "minus": "twafl", "number": "stability"}
    found = next(row for row in rows if place.items() <= row.items() and row["experiment"] == "staleness-quick")
    assert float(found["mean"]) == pytest.approx(np.mean(by_hand))
    half = 12.7062 * np.std(by_hand, ddof=1) / np.sqrt(2)
    assert float(found["high"]) - float(found["mean"]) == pytest.approx(half, rel=1e-4)


def test_the_sheets_hold_every_number_of_every_run(small):
    results = reading.read(small)
    by_run = cells_of(sheets.by_run(results))
    accuracies = [row for row in by_run if row["number"] == "final_accuracy"]
    assert len(accuracies) == 20 + 8
    for row in accuracies[:5]:
        assert float(row["value"]) == runs_summary(small, row["run"])["final_accuracy"]
    by_line = cells_of(sheets.by_line(results))
    printed = [row for row in by_line if row["paper"]]
    assert {(row["number"], row["paper"]) for row in printed} >= {("final_accuracy", "0.9734"), ("stability", "0.006")}


def runs_summary(folder, name):
    return run_in(folder / "runs" / name).summary


def test_appendix_d_stands_beside_what_was_found(experiments):
    (text,) = sections(experiments["appendix-d-quick"])
    assert "least by Appendix D" in text
    assert "| 5.50 ± 0.00 (2) |" in text  # (K/2P)(1+n)n with n = 10
