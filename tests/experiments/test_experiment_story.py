"""Do the rows of metrics.csv and the arrays of steps.npz say what happened? On records written by hand."""

import numpy as np
import pytest

from kasync.data.federated import from_arrays
from kasync.experiments.story import COLUMNS, Story, csv_text
from kasync.experiments.tally import blocks_of, table, tally
from kasync.simulator import Record


def record(step, loss=1.0, staleness=(0, 0), weights=(0.5, 0.5), clients=(0, 1), dropped=0, accuracy=None):
    return Record(
        step=step,
        time=2.0 * step,
        loss=loss,
        lr=0.1,
        stage=1 if step < 3 else 2,
        dropped=dropped,
        skipped=False,
        clients=np.array(clients, np.int32),
        staleness=np.array(staleness, np.int32),
        weights=np.array(weights, np.float32),
        similarities=None,
        accuracy=accuracy,
        test_loss=None if accuracy is None else 1 - accuracy,
    )


@pytest.fixture
def records():
    return [
        record(1, loss=3.0, staleness=(0, 2), weights=(1.0, 0.0)),
        record(2, loss=1.0, staleness=(4, 2), accuracy=0.5, dropped=1),
        record(3, loss=0.5, staleness=(1, 3), weights=(0.2, 0.6), clients=(1, 2)),
        record(4, loss=0.5, staleness=(1, 3), weights=(0.0, 0.0), clients=(2, 0), accuracy=0.75),
    ]


def test_a_row_tells_of_the_steps_since_the_row_before(records):
    story = Story()
    for each in records:
        story.add(each, is_evaluation=each.accuracy is not None)
    first, second = story.rows
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
    lines = csv_text(story.rows).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert lines[1] == "2,4.0,3,0.5,0.5,2.0,0.1,1,2.0,1.5,1"


def test_the_arrays_count_deliveries_weights_and_people(records):
    pixels = np.zeros((4, 2), np.float32)
    data = from_arrays(pixels, np.array([0, 0, 1, 1]), pixels, np.zeros(4, np.int64), [[0, 1], [2], [2, 3]])
    arrays = tally(table(records), data)
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
def testblocks_of_cover_all_steps_and_are_equal_to_within_one(steps):
    bounds = blocks_of(steps)
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1]) == (0, steps)
    assert len(sizes) == min(steps, 1000)
    assert sizes.max() - sizes.min() <= 1
