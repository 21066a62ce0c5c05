"""Partitions through flwr_datasets are the same as ours."""

import subprocess
import sys

import numpy as np
import pytest

from kasync.data import partition
from kasync.errors import UserError

LABELS = np.random.default_rng(5).permutation(np.repeat(np.arange(10), 60))  # [600]


@pytest.fixture
def rows():
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("flwr_datasets")
    return datasets.Dataset.from_dict(
        {"row": list(range(600)), "label": LABELS.tolist(), "writer": [f"w{number % 7}" for number in range(600)]}
    )


def test_flower_gets_algorithm_four_sample_for_sample(rows):
    partitioner = partition.flower.LabelsPartitioner(num_partitions=30, labels_per_partition=2, seed=3)
    partitioner.dataset = rows
    ours = partition.labels(2).over(LABELS, 30, 3)
    assert partitioner.num_partitions == 30
    for client in (0, 17, 29):
        assert partitioner.load_partition(client)["row"][:] == ours.of(client).tolist()
        assert len(set(partitioner.load_partition(client)["label"])) == 2


def test_flower_gets_every_other_way_and_writers_as_clients(rows):
    from flwr_datasets.partitioner import Partitioner

    dealt = partition.flower.SplitPartitioner(partition.dirichlet(0.5), num_partitions=5, seed=1)
    natural = partition.flower.SplitPartitioner(partition.natural(), group_by="writer")
    for partitioner in (dealt, natural):
        assert isinstance(partitioner, Partitioner)
        partitioner.dataset = rows
        parts = [partitioner.load_partition(client)["row"][:] for client in range(partitioner.num_partitions)]
        assert sorted(row for part in parts for row in part) == list(range(600))
    assert natural.num_partitions == 7
    assert set(natural.load_partition(3)["writer"]) == {"w3"}


def test_a_column_that_is_not_there_is_named(rows):
    partitioner = partition.flower.LabelsPartitioner(3, partition_by="lable")
    partitioner.dataset = rows
    with pytest.raises(UserError, match=r"no column 'lable': it has row, label, writer"):
        partitioner.load_partition(0)


def test_without_the_extra_the_error_names_it():
    program = (
        "import sys; sys.modules['flwr_datasets'] = None\n"
        "from kasync.data import partition\n"
        "try: partition.flower\n"
        "except ValueError as error: print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "kasync[data]" in printed
