"""Is federated data what the simulator, tuning and servers with samples of their own rely on?"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kasync.data import Dataset, Samples, federate, partition
from kasync.data.federated import FederatedData, from_arrays, scaled
from kasync.errors import UserError


def pictures(count: int = 300) -> Dataset:
    """Samples whose first two pixels spell their own number, so that each can be recognised."""
    numbers = np.arange(count)
    pixels = np.zeros((count, 1, 2, 2), np.uint8)
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = numbers // 256, numbers % 256
    train = Samples(pixels, (numbers % 5).astype(np.int64), (numbers % 11).astype(np.int64))
    return Dataset("numbers", train, Samples(pixels[:7], train.labels[:7]), 5, "by hand")


def numbers_of(samples: Samples) -> np.ndarray:
    return samples.inputs[:, 0, 0, 0].astype(int) * 256 + samples.inputs[:, 0, 0, 1]


def test_federate_puts_data_and_partition_together():
    split = partition.labels(2).over(pictures().train.labels, 20, 0)
    data = federate(pictures(), split, scale="raw")
    assert (data.clients, data.classes, data.scale, data.name) == (20, 5, "raw", "numbers")
    assert np.array_equal(data.sizes, split.sizes)
    assert np.array_equal(data.of(3), split.of(3))


def test_tensors_keep_pixels_as_bytes_and_count_in_int64():
    tensors = federate(pictures(), partition.labels(2)(pictures(), 20, 0)).tensors("cpu")
    assert tensors.inputs.dtype == tensors.test_inputs.dtype == torch.uint8
    assert {t.dtype for t in (tensors.labels, tensors.indices, tensors.offsets, tensors.test_labels)} == {torch.int64}
    assert tensors.offsets.shape == (21,)
    assert tensors.indices.shape == (tensors.offsets[-1],)


def test_tensors_of_read_only_arrays_raise_no_warning(recwarn):
    dataset = pictures()
    dataset.train.inputs.flags.writeable = False
    federate(dataset, partition.iid()(dataset, 3, 0)).tensors()
    assert not recwarn.list


@pytest.mark.parametrize(
    ("scale", "expected"), [("unit", [0.0, 0.2, 1.0]), ("raw", [0.0, 51.0, 255.0]), ("symmetric", [-1.0, -0.6, 1.0])]
)
def test_pixels_are_scaled_by_the_named_choice(scale, expected):
    found = scaled(torch.tensor([0, 51, 255], dtype=torch.uint8), scale)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor(expected))


def test_floats_pass_unscaled():
    values = torch.randn(4)
    assert scaled(values, "unit") is values


@given(st.floats(0.01, 0.6), st.integers(0, 2**40), st.sampled_from([1, 4, 60]))
@settings(deadline=None, max_examples=60)
def test_validation_holds_samples_out_of_every_client_and_never_touches_the_test_set(fraction, seed, clients):
    dataset = pictures()
    data = federate(dataset, partition.labels(2, size=(2, 60)).over(dataset.train.labels, clients, seed))
    tuning = data.validation(fraction, seed)
    held = set(numbers_of(tuning.test))
    assert len(held) == max(1, round(fraction * 300))
    assert tuning.sizes.min() >= 1
    assert np.array_equal(tuning.test.labels, numbers_of(tuning.test) % 5)
    for client in range(clients):
        before = numbers_of(data.train)[data.of(client)].tolist()
        after = numbers_of(tuning.train)[tuning.of(client)].tolist()
        assert after == [number for number in before if number not in held]
    assert held.isdisjoint(numbers_of(tuning.train))


def test_validation_never_takes_a_clients_last_sample():
    data = from_arrays(np.zeros((10, 1)), np.zeros(10, int), np.zeros((1, 1)), [0], [[0], [1], [], [2, 3]])
    for seed in range(50):
        assert data.validation(0.5, seed).sizes[[0, 1, 3]].min() >= 1
    with pytest.raises(UserError, match=r"fraction 0\.9 would leave a client without"):
        data.validation(0.9)
    with pytest.raises(UserError, match="fraction is 1"):
        data.validation(1)


def test_a_server_sample_comes_from_the_training_samples_without_repeats():
    data = federate(pictures(), partition.iid()(pictures(), 10, 0))
    sample = data.server_sample(100, seed=4)
    assert len(set(numbers_of(sample))) == 100
    assert np.array_equal(sample.labels, numbers_of(sample) % 5)
    assert np.array_equal(numbers_of(sample), numbers_of(data.server_sample(100, seed=4)))
    assert not np.array_equal(numbers_of(sample), numbers_of(data.server_sample(100, seed=5)))


@pytest.mark.parametrize("classes", [1, 2, 3, 5])
def test_a_server_sample_of_some_classes_shares_evenly(classes):
    data = federate(pictures(), partition.iid()(pictures(), 10, 0))
    counts = np.bincount(data.server_sample(32, classes=classes).labels, minlength=5)
    held = counts[counts > 0]
    assert counts.sum() == 32
    assert len(held) == classes
    assert held.max() - held.min() <= 1


def test_a_server_cannot_ask_for_more_than_there_is():
    data = federate(pictures(), partition.iid()(pictures(), 10, 0))
    for ask, sentence in [
        (lambda: data.server_sample(301), "count is 301"),
        (lambda: data.server_sample(0), "count is 0"),
        (lambda: data.server_sample(61, classes=1), "needs 61 samples of label"),
        (lambda: data.server_sample(0, classes=1), "count is 0"),
        (lambda: data.server_sample(4, classes=5), "count is 4"),
        (lambda: data.server_sample(9, classes=6), "classes is 6"),
    ]:
        with pytest.raises(UserError, match=sentence):
            ask()


def test_own_arrays_need_no_catalogue_and_floats_of_any_shape_are_kept():
    data = from_arrays(np.ones((4, 3, 2, 2)), [0, 2, 1, 0], np.ones((1, 3, 2, 2)), [3], [[0, 1], [2, 3, 0]])
    assert (data.clients, data.classes, data.train.inputs.dtype) == (2, 4, np.float32)
    assert data.of(1).tolist() == [2, 3, 0]
    assert data.server_sample(2).inputs.shape == (2, 3, 2, 2)


def test_own_arrays_can_be_a_regression():
    data = from_arrays(np.ones((4, 3)), [0.5, 1.5, 0, 0], np.ones((1, 3)), [0.25], [[0, 1], [2, 3]])
    assert data.classes == 0
    assert data.tensors().labels.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"inputs": np.ones((4, 3), int)}, "inputs are int64"),
        ({"inputs": np.ones(4)}, "inputs have the shape"),
        ({"labels": [0, 1]}, "labels of shape"),
        ({"labels": [0, 1, -1, 0]}, "labels go down to -1"),
        ({"parts": []}, "parts is empty"),
        ({"parts": [[0, 4]]}, r"indices must lie in 0\.\.3"),
        ({"parts": [[-1]]}, r"indices must lie in 0\.\.3"),
        ({"scale": "units"}, "did you mean 'unit'"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, sentence):
    fitting = {"inputs": np.ones((4, 3)), "labels": [0, 1, 1, 0], "parts": [[0, 1]]}
    with pytest.raises(UserError, match=sentence):
        from_arrays(test_inputs=np.ones((1, 3)), test_labels=[0], **{**fitting, **change})


@pytest.mark.parametrize("offsets", [[0], [1, 3], [0, 2], [0, 3, 2, 3]])
def test_offsets_that_are_no_running_sum_are_refused(offsets):
    train = pictures().train
    with pytest.raises(UserError, match="offsets"):
        FederatedData(train, train, np.arange(3), np.array(offsets), 5)
