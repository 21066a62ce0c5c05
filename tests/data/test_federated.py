"""Federated data: what the simulator, tuning and servers with samples of their own rely on."""

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
        ({"inputs": np.ones(4)}, "inputs have the shape"),
        ({"labels": [0, 1]}, "4 inputs but 2 labels"),
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


def sentences(**change) -> FederatedData:
    """Twelve sentences of five tokens, each followed by its next token, of four authors."""
    tokens = np.arange(12 * 6).reshape(12, 6) % 9
    settings = {"inputs": tokens[:, :-1], "labels": tokens[:, 1:], "owners": ["d", "b", "a", "c"] * 3, **change}
    return from_arrays(**settings)


def test_tokens_with_a_label_each_belong_to_the_authors_by_name():
    data = sentences()
    assert (data.client_names, data.classes, data.sizes.tolist()) == (("a", "b", "c", "d"), 9, [3, 3, 3, 3])
    assert data.of(0).tolist() == [2, 6, 10]
    assert data.train.group_names[data.train.groups[0]] == "d"
    assert len(data.test) == 0
    tensors = data.tensors()
    assert (tensors.inputs.dtype, tensors.labels.shape) == (torch.int64, (12, 5))
    assert scaled(tensors.inputs.to(torch.int16), "unit").dtype == torch.int64


def test_several_named_inputs_stay_together_through_splits():
    ids = np.arange(40).reshape(20, 2).astype(np.int32)
    inputs = {"input_ids": ids, "attention_mask": ids % 3 > 0, "age": np.arange(20) / 2}
    data = from_arrays(inputs, np.arange(20) % 2, parts=[range(10), range(10, 20)], test_fraction=0.25)
    assert (len(data.train), len(data.test), data.name) == (15, 5, "arrays")
    for part in (data.train, data.test, data.server_sample(4, classes=2), data.validation(0.2).test):
        assert np.array_equal(part.inputs["input_ids"][:, 0] / 4, part.inputs["age"])
        assert np.array_equal(part.labels, part.inputs["input_ids"][:, 0] // 2 % 2)
        assert np.array_equal(part.inputs["attention_mask"], part.inputs["input_ids"] % 3 > 0)
    held = scaled(data.tensors().inputs, "unit")
    assert [held[name].dtype for name in inputs] == [torch.int64, torch.bool, torch.float32]


def test_there_may_be_no_labels_or_several_marks_each():
    alone = from_arrays(np.ones((4, 3)), parts=[[0, 1], [2, 3]])
    assert (alone.classes, alone.tensors().labels, alone.train.columns.keys()) == (0, None, {"inputs"})
    marks = from_arrays(np.ones((4, 3)), np.eye(4, 2, dtype=bool), parts=[[0, 1], [2, 3]])
    assert (marks.classes, marks.tensors().labels.dtype) == (0, torch.bool)
    targets = from_arrays(np.ones((4, 3)), np.ones((4, 2)) / 3, parts=[[0, 1], [2, 3]])
    assert targets.tensors().labels.shape == (4, 2)


def test_words_become_classes_and_keep_their_names():
    data = from_arrays(np.ones((3, 2)), ["dog", "cat", "dog"], np.ones((1, 2)), ["bird"], parts=[[0, 1, 2]])
    assert data.class_names == ("bird", "cat", "dog")
    assert (data.train.labels.tolist(), data.test.labels.tolist(), data.classes) == ([2, 1, 2], [0], 3)


def test_parts_may_be_named_or_a_partition():
    groups = {"north": np.array([0, 3]), "south": np.array([1]), ("far", 7): [2]}  # what groupby().indices gives
    data = from_arrays(np.ones((4, 3)), [0, 1, 1, 0], parts=groups)
    assert (data.client_names, data.sizes.tolist()) == (("north", "south", ("far", 7)), [2, 1, 1])
    split = partition.iid().over(np.zeros(4, np.int64), 2)
    assert from_arrays(np.ones((4, 3)), [0, 1, 1, 0], parts=split).of(1).tolist() == split.of(1).tolist()


def test_owners_of_several_types_keep_the_order_in_which_they_come():
    data = from_arrays(np.ones((4, 3)), owners=["b", 3, "b", ("a", 1)])
    assert data.client_names == ("b", 3, ("a", 1))
    assert data.of(0).tolist() == [0, 2]


def test_samples_that_all_have_owners_of_their_own_are_said():
    with pytest.warns(UserWarning, match="each of the 4 samples has an owner of its own"):
        from_arrays(np.ones((4, 3)), owners=range(4))
    with pytest.warns(UserWarning, match=r"a regression then, but all are whole numbers: pass \.astype\(int\)"):
        from_arrays(np.ones((4, 3)), [0.0, 1.0, 1.0, 0.0], parts=[[0, 1, 2, 3]])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parts": np.array([7, 7, 8, 8])}, "parts is one column of 4 int64: pass it as owners="),
        ({"parts": [7, 7, 8, 8]}, r"parts\[0\] is 7 and no list of rows"),
        ({"parts": ["ab", "cd"]}, r"parts\[0\] is 'ab' and no list of rows"),
        ({"parts": [[True, False, True, False]]}, r"parts\[0\] is a mask: pass the rows themselves"),
        ({"parts": {"a": [0.5]}}, r"parts\['a'\] is float64 \[1\]: pass a list of rows"),
        ({"parts": [[[0], [1]]]}, r"parts\[0\] is int64 \[2, 1\]"),
        ({"parts": [[0, [1, 2]], [3]]}, r"parts\[0\] is no list of rows"),
        (
            {"parts": [torch.utils.data.Subset([1, 2, 3, 4], [0, 1])]},
            r"parts\[0\] is a Subset: pass its rows, \.indices",
        ),
        ({"parts": None}, "not told: give parts or owners"),
        ({"owners": [1, 1, 2, 2]}, "told twice"),
        ({"parts": None, "owners": [1, 2]}, "there are 4 samples but 2 owners"),
        ({"parts": None, "owners": [1, None, 2, 2]}, "the owner of sample 1 is missing"),
        ({"parts": None, "owners": [1, 2, 2, float("nan")]}, "the owner of sample 3 is missing"),
        ({"parts": None, "owners": [[1], [1], [2], [2]]}, "the owner of sample 0 is a list"),
        ({"parts": None, "owners": "user"}, "owners is a str: pass one id for each sample"),
        ({"inputs": [[1.0, float("nan")]] * 4}, "inputs hold nan in row 0"),
        ({"inputs": {"x": np.ones((4, 2)), "y": [1, 2, 3, float("inf")]}}, r"inputs\['y'\] hold inf in row 3"),
        ({"inputs": {"the x": np.ones((4, 2))}}, "an input called 'the x': name each as forward's parameter"),
        ({"inputs": [["a"], ["b"], ["c"], ["d"]]}, "inputs are text, not numbers: turn it into token ids first"),
        ({"inputs": [[1], [1, 2], [1], [1]]}, "inputs make no array .*pad them to one length"),
        ({"inputs": np.array([{}, {}, {}, {}])}, r"inputs are objects \(dict\), not numbers"),
        ({"labels": [0.5, 0.5, float("nan"), 1]}, "labels hold nan in row 2"),
        ({"labels": [[0], [1], [1], [0]]}, r"labels have the shape \(4, 1\): pass one class each, labels\[:, 0\]"),
        ({"labels": ["a", None, "b", "a"]}, r"labels are objects \(NoneType, str\)"),
        ({"labels": 1}, "labels is the single value 1"),
        ({"labels": ["a", "b", "a", "b"], "classes": 3}, "classes is 3, but the labels are 2 different words"),
        ({"classes": 1}, "has the label 1, but its 1 classes are 0 to 0"),
        ({"test_labels": [0]}, "test_labels are given without test_inputs"),
        ({"test_inputs": np.ones((1, 3))}, "labels for one of its training and test sets only"),
        ({"test_inputs": np.ones((1, 2)), "test_labels": [0]}, "both must agree"),
        ({"test_inputs": np.ones((1, 3)), "test_labels": [0.5]}, r"labels int64 \['N'\] but tests on float32"),
        ({"test_inputs": np.ones((1, 3)), "test_labels": ["a"]}, "words in one of the training and test sets"),
        ({"test_inputs": np.ones((1, 3)), "test_labels": [0], "test_fraction": 0.5}, "test_fraction is 0.5, but"),
    ],
)
def test_what_is_ambiguous_or_no_number_is_refused(change, sentence):
    fitting = {"inputs": np.ones((4, 3)), "labels": [0, 1, 1, 0], "parts": [[0, 1], [2, 3]]}
    with pytest.raises(UserError, match=sentence):
        from_arrays(**{**fitting, **change})


def test_classes_that_are_left_out_of_the_loss_may_be_among_the_labels_of_a_sequence():
    data = from_arrays(np.ones((2, 3)), [[-100, 2], [1, -100]], parts=[[0], [1]])
    assert data.classes == 3


@given(st.floats(0.01, 0.95), st.integers(0, 2**40), st.integers(1, 80), st.booleans())
@settings(deadline=None, max_examples=80)
def test_held_out_rows_are_each_clients_own_and_nobody_trains_on_them(fraction, seed, clients, shared):
    dataset = pictures()
    way = partition.labels(2, size=(1, 30)) if shared else partition.quantity(allow_empty=True)
    before = federate(dataset, way.over(dataset.train.labels, clients, seed))
    data = before.held_out(fraction, seed)
    tested = {row for client in range(clients) for row in data.tests_of(client).tolist()}
    assert tested.isdisjoint(data.indices.tolist())
    for client in range(clients):
        mine, test, train = before.of(client), data.tests_of(client), data.of(client)
        assert sorted([*test.tolist(), *train.tolist()]) == sorted(mine.tolist())
        assert len(train) >= min(1, len(mine))
        if not shared and len(mine) >= 2:
            assert len(test) == min(max(1, round(fraction * len(mine))), len(mine) - 1)
    assert data.train is before.train


def test_tuning_and_servers_never_see_what_clients_keep_for_testing():
    data = federate(pictures(), partition.iid()(pictures(), 10, 0)).held_out(0.3, seed=1)
    kept = {client: set(numbers_of(data.train)[data.tests_of(client)]) for client in range(10)}
    everything = set.union(*kept.values())
    tuning = data.validation(0.2, seed=3)
    assert everything.isdisjoint(numbers_of(tuning.test))
    for client in range(10):
        assert set(numbers_of(tuning.train)[tuning.tests_of(client)]) == kept[client]
    assert everything.isdisjoint(numbers_of(data.server_sample(200, seed=5)))
    indices, offsets = data.tensors().client_test
    assert (indices.dtype, offsets.tolist()) == (torch.int64, [9 * client for client in range(11)])
    with pytest.raises(UserError, match="call held_out once"):
        data.held_out()


def test_rows_kept_for_testing_are_no_training_rows():
    train = pictures().train
    with pytest.raises(UserError, match="client_test holds rows that clients train on"):
        FederatedData(train, train, np.arange(3), np.array([0, 3]), 5, client_test=(np.array([2]), np.array([0, 1])))
    with pytest.raises(UserError, match=r"client_test's indices must lie in 0\.\.299"):
        FederatedData(train, train, np.arange(3), np.array([0, 3]), 5, client_test=(np.array([300]), np.array([0, 1])))
    with pytest.raises(UserError, match="client_test has 2 clients, the data 1"):
        FederatedData(train, train, np.arange(3), np.array([0, 3]), 5, client_test=(np.array([9]), np.array([0, 1, 1])))


def test_a_natural_partition_says_whose_each_test_sample_is():
    dataset = pictures()
    test = Samples(dataset.test.inputs, dataset.test.labels, np.array([3, 0, 99, 10, 3, 5, 1]))
    natural = Dataset("numbers", dataset.train, test, 5, "by hand")
    assert federate(natural, partition.natural()(natural)).test_clients.tolist() == [3, 0, -1, 10, 3, 5, 1]
    assert federate(natural, partition.iid()(natural, 4)).test_clients is None
    some = federate(natural, partition.natural("first")(natural, 5))
    assert some.test_clients.tolist() == [3, 0, -1, -1, 3, -1, 1]


def test_ways_that_share_classes_out_refuse_samples_without_one():
    data = sentences()
    dataset = Dataset("sentences", data.train, data.test, 9, "made")
    for way in (partition.dirichlet(1.0), partition.labels(2), partition.shards()):
        with pytest.raises(UserError, match="shares classes out, and the samples of sentences have no class each"):
            way(dataset, 3)
    assert partition.iid()(dataset, 3).sizes.tolist() == [4, 4, 4]
    assert partition.quantity()(dataset, 3).sizes.sum() == 12
    assert federate(dataset, partition.natural()(dataset)).clients == 4
    with pytest.raises(UserError, match=r"a server sample of 2 classes needs labels .* they are int64 \[12, 5\]"):
        data.server_sample(4, classes=2)


def test_numbers_beyond_float32_are_refused_with_their_row():
    inputs = np.array([[1.0, 2.0], [3.0, -1e300], [5.0, 6.0]])
    with pytest.raises(UserError, match=r"inputs hold numbers too large for float32 \(1e\+300\) in row 1"):
        from_arrays(inputs, [0, 1, 0], owners=[0, 0, 1], test_fraction=0.3)
    with pytest.raises(UserError, match="labels hold numbers too large"):
        from_arrays(inputs[::2], [0.5, 1e39], owners=[0, 1], test_fraction=0.3)
    with pytest.raises(UserError, match="inputs make no array"):
        from_arrays([torch.ones(2, requires_grad=True)] * 2, [0, 1], owners=[0, 1], test_fraction=0.3)


@pytest.mark.parametrize("given", [partition.iid(), [[0, 1], [2]]])
def test_what_is_no_partition_yet_is_refused(given):
    with pytest.raises(UserError, match=r"partition is a .* which says not yet who holds what"):
        federate(from_arrays(np.ones((4, 2)), [0, 1, 0, 1], owners=[0, 0, 1, 1], test_fraction=0.3), given)
