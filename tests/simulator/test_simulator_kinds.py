"""Training on other things than classes: regression, a loss of the user's, partly broken data."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from agreement import agree
from naive import simulate_naively
from small_worlds import CLASSES, CLIENTS, finished, make_rule, mlp, vectors
from torch.nn import functional

from kasync import Gradient, rules, simulate, timelines
from kasync.simulator.records import Progress

TIMELINE = timelines.uniform(CLIENTS, 3, 60, seed=3)
REGRESSION = vectors(classes=1)


def test_regression_trains_and_agrees_with_the_naive_simulator():
    agree(mlp(1), REGRESSION, "kasync_sgd", TIMELINE.head(30), Gradient(4))
    records, _ = finished(
        mlp(1), REGRESSION, rules.kasync_sgd(0.02), timelines.uniform(CLIENTS, 3, 300), evaluate_every=50
    )
    tested = [record for record in records if record.test_loss is not None]
    assert len(tested) == 6
    assert tested[-1].test_loss < 0.7 * tested[0].test_loss
    assert all(record.accuracy is None for record in records)


def test_classification_learns():
    records, _ = finished(
        mlp(), vectors(), rules.kasync_sgd(0.1), timelines.uniform(CLIENTS, 3, 300), evaluate_every=50
    )
    tested = [record for record in records if record.test_loss is not None]
    assert tested[-1].accuracy > 0.5
    assert tested[-1].test_loss < tested[0].test_loss


@pytest.mark.parametrize("hold", ["gradients", "versions"])
def test_a_loss_of_one_s_own_is_used_in_training_and_test(hold):
    def smoothed(outputs, labels):
        return functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=0.2)

    expected = simulate_naively(
        mlp(),
        vectors(),
        rules.kasync_sgd(0.05),
        TIMELINE,
        Gradient(4),
        loss=lambda outputs, labels: smoothed(outputs, labels).mean(),
    )
    records, simulation = finished(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, loss=smoothed, hold=hold)
    assert (simulation.params - expected.params[-1]).abs().max() < 1e-5
    assert records[-1].test_loss == pytest.approx(expected.test_loss, abs=1e-4)


def broken_at(client, value):
    """Data in which all inputs of one client are not numbers, and no other client holds these samples."""
    data = vectors()
    extra = np.full((4, data.train.inputs.shape[1]), value, np.float32)
    inputs = np.concatenate([data.train.inputs, extra])
    labels = np.concatenate([data.train.labels, np.zeros(4, np.int64)])
    parts = [data.of(c) for c in range(data.clients)]
    parts[client] = np.arange(len(data.train.labels), len(labels))
    sizes = np.array([len(part) for part in parts])
    return replace(
        data,
        train=replace(data.train, inputs=inputs, labels=labels),
        indices=np.concatenate(parts),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
    )


@pytest.mark.parametrize("hold", ["gradients", "versions"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["wkafl", "ca2fl"])
def test_a_client_that_brings_no_numbers_is_dropped_and_counted_and_the_run_goes_on(name, value, hold):
    data, timeline = broken_at(5, value), TIMELINE.head(30)
    expected = simulate_naively(mlp(), data, make_rule(name, mlp(), data), timeline, Gradient(4))
    records, simulation = finished(mlp(), data, make_rule(name, mlp(), data), timeline, hold=hold)
    assert [record.dropped for record in records] == (timeline.clients == 5).sum(1).tolist()
    assert sum(record.dropped for record in records) > 3
    assert all(record.weights[record.clients == 5].sum() == 0 for record in records)
    assert simulation.params.isfinite().all()
    assert (simulation.params - expected.params[-1]).abs().max() < 1e-5
    assert np.isfinite([record.loss for record in records]).all()


@pytest.mark.parametrize("hold", ["gradients", "versions"])
def test_a_step_without_anything_usable_is_skipped_and_says_so(hold):
    alone = timelines.uniform(CLIENTS, 1, 40, seed=3)
    simulation = simulate(
        mlp(), broken_at(5, np.nan), rules.kasync_sgd(0.05), alone, Gradient(4), hold=hold, evaluate_every=1
    )
    before = simulation.params.clone()
    for record in simulation:
        assert record.skipped == (record.clients[0] == 5)
        assert torch.equal(simulation.params, before) == record.skipped
        before = simulation.params.clone()


def test_a_record_says_what_happened():
    records, _ = finished(mlp(), vectors(), make_rule("wkafl", mlp(), vectors()), TIMELINE, evaluate_every=25)
    for step, record in enumerate(records):
        assert record.clients.tolist() == TIMELINE.clients[step].tolist()
        assert record.weights.sum() == pytest.approx(1.0, abs=1e-5)
        assert record.similarities.shape == (3,)
        assert record.lr > 0
        assert record.stage in (1, 2)
        assert not record.skipped
        assert (record.accuracy is None) == ((step + 1) % 25 != 0 and step + 1 != 60)
    assert records[-1].stage == 2
    assert records[0].stage == 1
    plain, _ = finished(mlp(), vectors(), rules.kasync_sgd(0.1), TIMELINE.head(3))
    assert plain[0].similarities is None


def test_a_diverged_model_is_told_as_such_and_not_as_one_that_was_not_evaluated():
    records, _ = finished(mlp(CLASSES), vectors(), rules.kasync_sgd(1e30), TIMELINE.head(10))
    assert records[-1].test_loss is not None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere():
    records, simulation = finished(mlp(), vectors(), rules.kasync_sgd(0.1), TIMELINE, evaluate_every=20)
    for stream in (Terminal(), io.StringIO()):
        progress = Progress(TIMELINE.steps, TIMELINE.k, str(simulation.memory), stream)
        for record in records:
            progress.show(record)
        if stream.isatty():
            assert stream.getvalue().startswith("memory: ")
            assert "step 60/60  accuracy 0." in stream.getvalue()
            assert stream.getvalue().count("\n") == 2
        else:
            assert stream.getvalue() == ""
