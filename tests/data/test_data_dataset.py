"""A dataset refuses arrays that do not belong together, and is loaded by a name."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kasync.data
from kasync.data import Dataset, Samples, load, names
from kasync.data.dataset import every_fifth
from kasync.errors import UserError

PICTURES = np.zeros((3, 1, 2, 2), np.uint8)
LABELS = np.array([0, 1, 2])


def test_samples_have_a_length_and_subsets_keep_inputs_labels_and_groups_together():
    inputs = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1)
    samples = Samples(inputs, LABELS, np.array([7, 8, 9]))
    chosen = samples.subset([2, 0])
    assert len(samples) == 3
    assert chosen.inputs.ravel().tolist() == [2, 0]
    assert chosen.labels.tolist() == [2, 0]
    assert chosen.groups.tolist() == [9, 7]
    assert len(samples.subset([])) == 0
    assert samples.subset(np.array([False, True, False])).groups.tolist() == [8]


@pytest.mark.parametrize(
    ("inputs", "labels", "groups", "says"),
    [
        (np.array(["a", "b", "c"]), LABELS, None, r"inputs are <U1 \[3\]: give an array"),
        (PICTURES.tolist(), LABELS, None, "inputs are list: give an array"),
        ({}, LABELS, None, "inputs is an empty dict"),
        ({"x": PICTURES, "mask": LABELS[:2]}, LABELS, None, "3 inputs but 2 mask"),
        ({"labels": PICTURES}, LABELS, None, "an input is called 'labels'"),
        (PICTURES, LABELS[:2], None, "3 inputs but 2 labels"),
        (PICTURES, LABELS.astype(np.int32), None, "labels are int32"),
        (PICTURES, LABELS - 1, None, "-1"),
        (PICTURES, LABELS, LABELS[:1], "3 inputs but 1 groups"),
    ],
)
def test_samples_that_do_not_belong_together_are_refused_in_a_sentence(inputs, labels, groups, says):
    with pytest.raises(UserError, match=says):
        Samples(inputs, labels, groups)


def test_a_dataset_refuses_labels_beyond_its_classes_and_parts_of_different_shapes():
    samples = Samples(PICTURES, LABELS)
    assert Dataset("toy", samples, samples, 3, "made up").shape == (1, 2, 2)
    with pytest.raises(UserError, match="toy train has the label 2, but its 2 classes are 0 to 1"):
        Dataset("toy", samples, samples, 2, "made up")
    with pytest.raises(UserError, match="both must agree"):
        Dataset("toy", samples, Samples(np.zeros((3, 1, 2, 3), np.uint8), LABELS), 3, "made up")


def test_the_catalogue_lists_the_paper_s_datasets_and_corrects_a_misspelt_name():
    assert set(names()) == {
        *("digits", "mnist", "emnist-mnist", "emnist-byclass"),
        *("cifar10", "celeba", "femnist", "mixture", "synthetic", "shakespeare", "newsgroups"),
    }
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        load("cifar-10")


def test_an_unknown_setting_is_refused_with_the_nearest_one():
    with pytest.raises(UserError, match="did you mean 'alpha'"):
        load("synthetic", alhpa=1.0)
    with pytest.raises(UserError, match="digits has no setting 'alpha'"):
        load("digits", alpha=1.0)


@pytest.mark.parametrize(
    "name", ["mnist", "emnist-mnist", "emnist-byclass", "cifar10", "celeba", "femnist", "shakespeare"]
)
def test_missing_files_are_named_with_the_place_to_put_them_and_the_command_that_gets_them(name, tmp_path):
    with pytest.raises(UserError) as without:
        load(name)
    assert "$KASYNC_DATA" in str(without.value)
    with pytest.raises(UserError) as refused:
        load(name, tmp_path)
    assert str(tmp_path / name) in str(refused.value)
    assert f"kasync data get {name}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_partitions_and_federated_data_are_found_in_the_package():
    assert kasync.data.partition.__name__ == "kasync.data.partition"
    assert kasync.data.federate.__name__ == "federate"
    with pytest.raises(AttributeError, match="partitions"):
        _ = kasync.data.partitions


def test_importing_the_package_imports_no_optional_library():
    code = (
        "import sys, kasync.data; print(sorted({'PIL', 'mlxtend', 'datasets', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@given(st.lists(st.integers(-3, 3), max_size=60))
def test_every_fifth_of_a_group_tests_and_the_rest_trains(groups):
    mask = every_fifth(np.array(groups, dtype=np.int64))
    seen: dict[int, int] = {}
    for group, testing in zip(groups, mask, strict=True):
        seen[group] = seen.get(group, 0) + 1
        assert testing == (seen[group] % 5 == 0)
