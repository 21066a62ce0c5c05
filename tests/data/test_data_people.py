"""CelebA and FEMNIST come with the person behind each sample; synthetic data with its client."""

import json
import zipfile

import numpy as np
import pytest
from official_files import characters, leaf, picture, write_celeba

from kasync.data import load
from kasync.errors import UserError

SIZES = {11: 5, 4: 7, 30: 4, 2: 10}  # pictures of each celebrity; 30 has too few


def check_celeba(dataset, listed):
    kept = [row for row in listed if row[1] != 30]
    assert len(dataset.train) + len(dataset.test) == len(kept)
    seen: dict[int, int] = {}
    expected = {"train": [], "test": []}
    for name, who, smiles in kept:
        seen[who] = seen.get(who, 0) + 1
        shade = next(row for row, entry in enumerate(listed) if entry[0] == name)
        expected["test" if seen[who] % 5 == 0 else "train"].append((shade, who, smiles))
    for part, rows in expected.items():
        samples = getattr(dataset, part)
        assert samples.groups.tolist() == [who for _, who, _ in rows]
        assert samples.labels.tolist() == [smiles for _, _, smiles in rows]
        assert samples.inputs[:, 0, 40, 40].tolist() == [shade for shade, _, _ in rows]
        assert samples.inputs[:, 1, 40, 40].tolist() == [255 - shade for shade, _, _ in rows]
        assert samples.inputs.shape[1:] == (3, 84, 84)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("side", [(84, 84), (178, 218)])
def test_celeba_is_read_as_distributed_from_a_zip_or_a_folder_at_any_size(tmp_path, packed, side):
    listed = write_celeba(tmp_path / "celeba", SIZES, packed, side)
    check_celeba(load("celeba", tmp_path), listed)


def test_celeba_follows_the_split_leaf_has_made(tmp_path):
    listed = write_celeba(tmp_path / "celeba" / "data" / "raw", SIZES)
    for part, rows in (("train", listed[:9]), ("test", listed[9:])):
        who = {str(c): [row for row in rows if row[1] == c] for c in SIZES}
        folder = tmp_path / "celeba" / "data" / part
        folder.mkdir()
        data = {c: ([row[0] for row in own], [float(row[2]) for row in own]) for c, own in who.items()}
        (folder / "all_data.json").write_text(leaf(data))
    celeba = load("celeba", tmp_path)
    assert (len(celeba.train), len(celeba.test)) == (9, len(listed) - 9)
    assert set(celeba.train.groups) | set(celeba.test.groups) == set(SIZES)
    assert sorted(celeba.train.labels) == sorted(row[2] for row in listed[:9])


def test_celeba_without_a_split_of_leaf_s_is_split_by_celebrity(tmp_path):
    listed = write_celeba(tmp_path / "celeba", {1: 5, 2: 10})
    (tmp_path / "celeba" / "all_data").mkdir()
    data = {str(c): ([r[0] for r in listed if r[1] == c], [r[2] for r in listed if r[1] == c]) for c in (1, 2)}
    (tmp_path / "celeba" / "all_data" / "all_data.json").write_text(leaf(data))
    celeba = load("celeba", tmp_path)
    assert np.bincount(celeba.test.groups).tolist() == [0, 1, 2]
    assert "LEAF" in celeba.source


def test_a_picture_that_is_listed_but_not_there_is_named(tmp_path):
    write_celeba(tmp_path, SIZES, packed=False)
    (tmp_path / "img_align_celeba" / "004002.jpg").unlink()
    with pytest.raises(UserError, match=r"'004002.jpg', which identity_CelebA.txt lists, is not among the pictures"):
        load("celeba", tmp_path)


def test_a_name_that_leads_out_of_the_folder_is_not_followed(tmp_path):
    write_celeba(tmp_path / "celeba", {1: 5}, packed=False)
    (tmp_path / "outside.jpg").write_bytes(picture(1))
    lists = [tmp_path / "celeba" / name for name in ("identity_CelebA.txt", "list_attr_celeba.txt")]
    for path in lists:
        path.write_text(path.read_text().replace("001000.jpg", "../../outside.jpg"))
    with pytest.raises(UserError, match="is not among the pictures"):
        load("celeba", tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("identity_CelebA.txt", lambda t: "", "0 pictures"),
        ("identity_CelebA.txt", lambda t: t.replace(" 11\n", " eleven\n"), "invalid literal"),
        ("list_attr_celeba.txt", lambda t: t.replace("Smiling", "Frowning"), "not a list of attributes with Smiling"),
        ("list_attr_celeba.txt", lambda t: t[: len(t) // 2], "other columns|it holds"),
        ("list_attr_celeba.txt", lambda t: "", "not a list of attributes"),
    ],
)
def test_a_wrong_list_of_celeba_is_named(tmp_path, name, change, says):
    write_celeba(tmp_path, SIZES)
    path = tmp_path / name
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=says) as refused:
        load("celeba", tmp_path)
    assert name in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"not a picture", picture(5)[:100], picture(0, (3000, 3000))])
def test_a_picture_that_is_none_or_is_huge_is_named(tmp_path, content):
    write_celeba(tmp_path, SIZES, packed=False)
    (tmp_path / "img_align_celeba" / "002003.jpg").write_bytes(content)
    with pytest.raises(UserError, match=r"002003.jpg is not a"):
        load("celeba", tmp_path)


def test_a_zip_file_cut_short_is_named(tmp_path):
    write_celeba(tmp_path, SIZES)
    path = tmp_path / "img_align_celeba.zip"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"img_align_celeba.zip is not a zip file of pictures"):
        load("celeba", tmp_path)
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(UserError, match="22 of 22 are not"):
        load("celeba", tmp_path)


def write_femnist(folder, parts):
    made = {}
    for part, files in parts.items():
        (folder / part).mkdir(parents=True)
        for number, writers in enumerate(files):
            data = {}
            for seed, (writer, count) in enumerate(writers.items()):
                pixels, shades, labels = characters(count, seed + 10 * number)
                data[writer] = shades, labels
                made[part, writer] = pixels, labels
            (folder / part / f"all_data_{number}.json").write_text(leaf(data))
    return made


def test_femnist_keeps_every_shade_and_every_writer_of_leaf_s_json(tmp_path):
    parts = {"train": [{"f0001_02": 3, "f0000_14": 2}, {"f0003_00": 4}], "test": [{"f0000_14": 1, "f0003_00": 2}]}
    made = write_femnist(tmp_path / "femnist" / "data", parts)
    femnist = load("femnist", tmp_path)
    assert femnist.train.groups.tolist() == [1, 1, 1, 0, 0, 2, 2, 2, 2]
    assert femnist.test.groups.tolist() == [0, 2, 2]
    np.testing.assert_array_equal(femnist.train.inputs[5:, 0], made["train", "f0003_00"][0])
    assert femnist.train.labels[:3].tolist() == made["train", "f0001_02"][1]
    assert femnist.classes == 62


def test_femnist_that_was_not_split_is_split_by_writer(tmp_path):
    write_femnist(tmp_path, {"all_data": [{"a": 5, "b": 11}]})
    femnist = load("femnist", tmp_path)
    assert np.bincount(femnist.train.groups).tolist() == [4, 9]
    assert np.bincount(femnist.test.groups).tolist() == [1, 2]


GOOD = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0.5] * 784], "y": [61]}}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"users": ["b"]}, "users and num_samples are not those"),
        ({"num_samples": [2]}, "users and num_samples are not those"),
        ({"users": None}, "users and num_samples are not those"),
        ({"user_data": {"a": {"x": [[0.5] * 784]}}}, "'a' has no lists x and y"),
        ({"user_data": {"a": {"x": [[0.5] * 783], "y": [1]}}}, "784 numbers from 0 to 1"),
        ({"user_data": {"a": {"x": [[1.5] * 784], "y": [1]}}}, "784 numbers from 0 to 1"),
        ({"user_data": {"a": {"x": [[float("nan")] * 784], "y": [1]}}}, "784 numbers from 0 to 1"),
        ({"user_data": {"a": {"x": [[[0.5] * 784] * 2], "y": [1]}}}, "784 numbers from 0 to 1"),
        ({"user_data": {"a": {"x": [["x"] * 784], "y": [1]}}}, "784 numbers from 0 to 1"),
        ({"user_data": {"a": {"x": [[0.5] * 784], "y": [62]}}}, "labels from 0 to 61"),
        ({"user_data": {"a": {"x": [[0.5] * 784], "y": [1.5]}}}, "labels from 0 to 61"),
        ({"user_data": []}, "is expected at character"),
    ],
)
def test_json_that_is_not_leaf_s_is_named_with_what_is_wrong(tmp_path, change, says):
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "wrong.json").write_text(json.dumps(GOOD | change))
    with pytest.raises(UserError, match=says) as refused:
        load("femnist", tmp_path)
    assert "wrong.json" in str(refused.value)


def test_a_client_s_synthetic_samples_do_not_depend_on_how_many_clients_there_are():
    few, many = load("synthetic", clients=3), load("synthetic", clients=9)
    for client in range(3):
        np.testing.assert_array_equal(
            few.train.inputs[few.train.groups == client], many.train.inputs[many.train.groups == client]
        )


def test_a_mixture_has_a_gaussian_for_each_group_around_its_centre():
    data = load("mixture", components=6, classes=3, dimension=20, samples=6000, deviation=0.5, distance=2.0)
    inputs, groups = data.train.inputs, data.train.groups
    centres = np.stack([inputs[groups == group].mean(0) for group in range(6)])
    assert np.abs((inputs - centres[groups]).std() - 0.5) < 0.01
    assert np.abs(centres.std() - 2.0) < 0.3
    assert np.array_equal(data.train.labels, groups % 3)
    with pytest.raises(UserError, match="deviation is 0"):
        load("mixture", deviation=0)


def test_synthetic_clients_have_fifty_samples_or_more_and_another_seed_makes_others():
    data = load("synthetic", clients=20, seed=3, classes=4, dimension=8)
    sizes = np.bincount(data.train.groups) + np.bincount(data.test.groups)
    assert sizes.min() >= 50
    assert data.shape == (8,)
    assert data.train.inputs.dtype == np.float32
    assert data.classes == 4
    other = load("synthetic", clients=20, seed=4, classes=4, dimension=8)
    assert not np.array_equal(data.train.inputs[:50], other.train.inputs[:50])


def test_beta_spreads_the_inputs_of_synthetic_clients_and_alpha_does_not():
    def spread(**settings):
        data = load("synthetic", clients=60, **settings).train
        return np.std([data.inputs[data.groups == client].mean() for client in range(60)])

    assert spread(beta=5.0) > 5 * spread(beta=0.0)
    assert spread(beta=0.0, alpha=5.0) == spread(beta=0.0, alpha=0.0)


def test_the_variance_of_synthetic_inputs_falls_as_j_to_the_minus_1_2():
    data = load("synthetic", clients=1, seed=5).train
    many = [load("synthetic", clients=12, seed=seed).train for seed in range(4)]
    within = np.concatenate(
        [
            part.inputs[part.groups == c] - part.inputs[part.groups == c].mean(0)
            for part in [data, *many]
            for c in set(part.groups)
        ]
    )
    np.testing.assert_allclose(within.var(0), np.arange(1, 61) ** -1.2, rtol=0.15)


@pytest.mark.parametrize(
    "setting", [{"clients": 0}, {"classes": 1}, {"dimension": 0}, {"alpha": -1.0}, {"beta": float("nan")}, {"seed": -1}]
)
def test_impossible_synthetic_settings_are_refused(setting):
    with pytest.raises(UserError, match=next(iter(setting))):
        load("synthetic", **setting)
