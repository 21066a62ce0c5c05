"""Frames and data sets of other libraries become federated data: the same samples, by the same owners."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from kasync.data import from_dataset
from kasync.errors import UserError

pd = pytest.importorskip("pandas")


def frame(**change):
    columns = {"user": ["b", "a", "b", "c"], "age": [1, 2, 3, 4], "size": [0.5, 1.5, 2.5, 3.5], "label": [0, 1, 1, 0]}
    return pd.DataFrame({**columns, **change})


def test_a_frame_becomes_a_row_of_numbers_for_each_sample():
    data = from_dataset(frame(), owner="user")
    assert data.client_names == ("a", "b", "c")
    assert data.train.inputs.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5], [4, 3.5]]
    assert (data.of(1).tolist(), data.train.labels.tolist()) == ([0, 2], [0, 1, 1, 0])


def test_columns_of_a_frame_may_be_named_and_a_second_frame_tests():
    sizes = frame().sort_values("size", ascending=False)  # its index is not 0, 1, 2 ...
    data = from_dataset(sizes, inputs="age", label="size", owner="user", test=frame().drop(columns="user"))
    assert data.train.inputs.tolist() == [[4], [3], [2], [1]]
    assert data.train.labels.tolist() == [3.5, 2.5, 1.5, 0.5]
    assert (len(data.test), data.classes) == (4, 0)
    groups = frame().groupby("user").indices
    assert from_dataset(frame(), ["age", "size"], parts=groups).client_names == ("a", "b", "c")


def test_a_second_frame_is_read_in_the_order_of_the_columns_that_are_trained_on():
    turned = frame()[["size", "label", "age"]]
    data = from_dataset(frame(), owner="user", test=turned)
    assert data.test.inputs.tolist() == data.train.inputs.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5], [4, 3.5]]
    with pytest.raises(UserError, match="unknown column 'age'"):
        from_dataset(frame(), owner="user", test=turned.rename(columns={"age": "old"}))


@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        ({}, {"owner": "usr"}, "unknown column 'usr': did you mean 'user'"),
        ({}, {"inputs": ["agee"], "owner": "user"}, "did you mean 'age'"),
        ({}, {}, "who holds which samples is not told"),
        ({}, {"owner": "user", "owners": [1, 1, 2, 2]}, "owner='user' and owners are both given"),
        ({"age": [1, None, 3, 4]}, {"owner": "user"}, "column 'age' holds nan in row 1"),
        ({"age": ["x", "y", "x", "y"]}, {"owner": "user"}, "column 'age' holds .* no numbers: leave it out"),
        ({"user": ["b", None, "b", "c"]}, {"owner": "user"}, "the owner of sample 1 is missing"),
        ({"label": [0, None, 1, 0]}, {"owner": "user"}, "labels hold nan in row 1"),
    ],
)
def test_a_frame_that_says_too_little_is_refused(change, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        from_dataset(frame(**change), **settings)


def test_a_hugging_face_data_set_gives_named_inputs_and_the_names_of_its_classes():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "ids": datasets.Sequence(datasets.Value("int64")),
            "mask": datasets.Sequence(datasets.Value("bool")),
            "author": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["ham", "spam"]),
        }
    )
    columns = {
        "ids": [[1, 2], [3, 4], [5, 6]],
        "mask": [[True, False]] * 3,
        "author": ["x", "y", "x"],
        "label": [0, 0, 1],
    }
    made = datasets.Dataset.from_dict(columns, features=features)
    data = from_dataset(datasets.DatasetDict({"train": made, "test": made.select([2])}), owner="author")
    assert data.train.inputs["ids"].tolist() == columns["ids"]
    assert data.train.inputs["mask"].dtype == bool
    assert (data.class_names, data.client_names, len(data.test)) == (("ham", "spam"), ("x", "y"), 1)
    assert from_dataset(made, inputs="ids", owner="author").train.inputs.shape == (3, 2)
    with pytest.raises(UserError, match="did you mean 'author'"):
        from_dataset(made, owner="autor")
    with pytest.raises(UserError, match="has no split 'train' but valid"):
        from_dataset({"valid": made}, owner="author")


def test_pictures_of_a_hugging_face_data_set_have_their_channels_first():
    datasets, pictures = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    columns = {"image": [pictures.fromarray(p) for p in pixels], "label": [0, 1, 0, 1]}
    made = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    data = from_dataset(made, parts=[[0, 1], [2, 3]])
    np.testing.assert_array_equal(data.train.inputs, pixels.transpose(0, 3, 1, 2))
    grey = datasets.Dataset.from_dict({"image": [pictures.fromarray(p[..., 0]) for p in pixels]})
    grey = grey.cast_column("image", datasets.Image())
    assert from_dataset(grey, parts=[[0, 1], [2, 3]]).train.inputs.shape == (4, 1, 5, 6)


class Pairs(Dataset):
    """Samples that are dicts with two inputs, a label and an owner."""

    def __len__(self):
        return 6

    def __getitem__(self, place):
        left, right = torch.full((3,), float(place)), torch.tensor([place])
        return {"left": left, "right": right, "labels": place % 2, "who": torch.tensor(place // 2)}


def test_a_torch_data_set_of_dicts_gives_named_inputs():
    data = from_dataset(Pairs(), owner="who")
    assert (data.client_names, data.classes) == ((0, 1, 2), 2)
    assert {name: column.shape for name, column in data.train.inputs.items()} == {"left": (6, 3), "right": (6, 1)}
    assert data.train.inputs["right"].dtype == np.int64


def test_a_torch_data_set_of_tuples_is_input_and_label():
    tensors = TensorDataset(torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]))
    data = from_dataset(Subset(tensors, [5, 0, 3]), owners=["x", "y", "x"], test=tensors)
    assert torch.equal(torch.from_numpy(data.train.inputs), tensors.tensors[0][[5, 0, 3]])
    assert (data.train.labels.tolist(), data.classes, len(data.test)) == ([2, 0, 0], 3, 6)
    alone = from_dataset(TensorDataset(torch.randn(4, 3)), parts=[[0, 1], [2, 3]])
    assert alone.train.labels is None
    three = TensorDataset(torch.randn(4, 3), torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    named = from_dataset(three, inputs=("first", "second"), parts=[[0, 1], [2, 3]])
    assert named.train.shape == {"first": (3,), "second": (2,)}


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1)


@pytest.mark.parametrize(
    ("dataset", "settings", "sentence"),
    [
        (Endless(), {}, "dataset is a Endless: pass a pandas frame"),
        ([], {}, "the data set is empty"),
        ([(torch.zeros(2), torch.zeros(2), 1)], {}, "a sample has 3 parts, but the inputs are inputs"),
        ([(torch.zeros(2), 1)], {"owner": "who"}, "the samples are no dicts: pass owners="),
        ([(torch.zeros(2), 0), (torch.zeros(3), 1)], {}, "inputs cannot be stacked .*: pad it to one length"),
        (3, {}, "dataset is a int"),
    ],
)
def test_data_sets_that_cannot_be_read_are_refused(dataset, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        from_dataset(dataset, **{"parts": [[0]] if "owner" not in settings else None, **settings})


def test_a_picture_of_pil_asks_for_a_transform():
    picture = pytest.importorskip("PIL.Image").new("L", (2, 2))
    with pytest.raises(UserError, match="inputs is a picture of PIL: give the data set a transform"):
        from_dataset([(picture, 1)], parts=[[0]])


def test_no_other_library_is_imported_before_it_is_used():
    program = "import sys; from kasync.data import from_dataset; print({'pandas', 'datasets'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
