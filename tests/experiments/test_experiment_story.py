"""The rows of metrics.csv and the arrays of steps.npz, on columns written by hand."""

import numpy as np
import pytest

from kasync.data.federated import from_arrays
from kasync.experiments.metrics import blocks_of, rows_of, tally
from kasync.files import csv_text
from kasync.report.results import OURS


@pytest.fixture
def columns():
    return {
        "time": np.array([2.0, 4.0, 6.0, 8.0]),
        "loss": np.array([3.0, 1.0, 0.5, 0.5]),
        "lr": np.full(4, 0.1),
        "stage": np.array([1.0, 1.0, 2.0, 2.0]),
        "dropped": np.array([0.0, 1.0, 0.0, 0.0]),
        "skipped": np.zeros(4),
        "evaluated": np.array([np.nan, 1.0, np.nan, 1.0]),
        "accuracy": np.array([np.nan, 0.5, np.nan, 0.75]),
        "test_loss": np.array([np.nan, 0.5, np.nan, 0.25]),
        "weights": np.array([[1.0, 0.0], [0.5, 0.5], [0.2, 0.6], [0.0, 0.0]], np.float32),
        "similarities": np.full((4, 2), np.nan, np.float32),
        "staleness": np.array([[0, 2], [4, 2], [1, 3], [1, 3]], np.int32),
        "clients": np.array([[0, 1], [0, 1], [1, 2], [2, 0]], np.int32),
    }


def test_a_row_tells_of_the_steps_since_the_row_before(columns):
    first, second = rows_of(columns)
    assert first == {
        "step": 2,
        "time": 4.0,
        "updates": 3,
        "accuracy": 0.5,
        "test_loss": 0.5,
        "train_loss": 2.0,
        "lr": 0.1,
        "stage": 1,
        "staleness": 2.0,
        "selected": 1.5,
        "dropped": 1,
    }
    assert (second["updates"], second["train_loss"], second["staleness"], second["dropped"]) == (7, 0.5, 2.0, 0)
    lines = csv_text([first, second]).splitlines()
    assert lines[0] == ",".join(OURS)
    assert lines[1] == "2,4.0,3,0.5,0.5,2.0,0.1,1,2.0,1.5,1"


def test_a_step_without_anything_usable_has_no_training_loss(columns):
    columns["loss"][0] = np.nan
    columns["skipped"][0] = 1.0
    assert rows_of(columns)[0]["train_loss"] == 1.0
    columns["skipped"][1] = 1.0
    assert rows_of(columns)[0]["train_loss"] is None


def test_what_comes_after_the_last_evaluation_is_not_told_yet(columns):
    columns["evaluated"][3] = np.nan
    (only,) = rows_of(columns)
    assert (only["step"], only["staleness"]) == (2, 2.0)
    columns["evaluated"][1] = np.nan
    assert rows_of(columns) == []


def test_the_arrays_count_deliveries_weights_and_people(columns):
    pixels = np.zeros((4, 2), np.float32)
    data = from_arrays(pixels, np.array([0, 0, 1, 1]), pixels, np.zeros(4, np.int64), [[0, 1], [2], [2, 3]])
    arrays = tally(columns, data)
    assert arrays["step"].tolist() == [1, 2, 3, 4]
    assert arrays["staleness_count"].tolist() == [1, 2, 2, 2, 1]
    assert arrays["staleness_weight"].tolist() == pytest.approx([1.0, 0.25, 0.5, 0.75, 0.5])
    assert arrays["selected"].tolist() == [1, 2, 2, 0]
    assert arrays["effective"].tolist() == pytest.approx([1.0, 2.0, 1.6, 0.0])
    assert arrays["selected_count"].tolist() == [1, 1, 2]
    assert arrays["predominant_count"].tolist() == [1, 1, 2]
    assert arrays["deliveries"].tolist() == [3, 3, 2]
    assert arrays["client_weight"].tolist() == pytest.approx([1.5, 0.75, 0.75])
    assert arrays["label_deliveries"].tolist() == pytest.approx([3 / 8, 5 / 8])
    assert arrays["label_weight"].tolist() == pytest.approx([0.5, 0.5])
    assert np.isnan(arrays["similarity"]).all()
    assert arrays["stage"].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("steps", [1, 999, 1000, 1001, 10_000])
def test_blocks_cover_all_steps_and_are_equal_to_within_one(steps):
    bounds = blocks_of(steps)
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1]) == (0, steps)
    assert len(sizes) == min(steps, 1000)
    assert sizes.max() - sizes.min() <= 1
