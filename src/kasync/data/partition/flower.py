"""These ways to share samples out as partitioners of flwr_datasets, for Hugging Face data sets."""

import numpy as np

from kasync.data.partition.algorithm4 import ByLabels
from kasync.data.partition.lists import Partition, Split
from kasync.errors import UserError

try:
    from datasets import Dataset
    from flwr_datasets.partitioner import Partitioner
except ImportError as error:
    raise UserError("Flower partitioners need flwr-datasets: pip install 'kasync[data]'.") from error


class SplitPartitioner(Partitioner):
    """Any way of kasync.data.partition for FederatedDataset(partitioners={"train": ...}).

    partition_by and group_by name the columns of labels and of who made each sample (only `natural` needs the latter,
    and only it can leave num_partitions out). The split is made once, when it is first asked for.
    """

    def __init__(
        self,
        split: Split,
        num_partitions: int | None = None,
        partition_by: str = "label",
        group_by: str | None = None,
        seed: int = 42,
    ) -> None:
        super().__init__()
        self.split = split
        self.partition_by = partition_by
        self.group_by = group_by
        self.seed = seed
        self._asked = num_partitions
        self._partition: Partition | None = None

    @property
    def partition(self) -> Partition:
        """The partition itself, with its counts, measures and picture."""
        if self._partition is None:
            groups = self._column(self.group_by) if self.group_by else None
            self._partition = self.split.over(self._column(self.partition_by), self._asked, self.seed, groups)
        return self._partition

    @property
    def num_partitions(self) -> int:
        return self._asked if self._asked is not None else self.partition.clients

    def load_partition(self, partition_id: int) -> Dataset:
        return self.dataset.select(self.partition.of(partition_id))

    def _column(self, name: str) -> np.ndarray:
        """A column as numbers 0, 1, 2 ... in the order of its values, whatever they are, [N]."""
        if name not in self.dataset.column_names:
            raise UserError(f"the data set has no column {name!r}: it has {', '.join(self.dataset.column_names)}.")
        return np.unique(np.asarray(self.dataset[name]), return_inverse=True)[1]


class LabelsPartitioner(SplitPartitioner):
    """Algorithm 4 with the constructor habits of Flower's own partitioners."""

    def __init__(
        self,
        num_partitions: int,
        partition_by: str = "label",
        labels_per_partition: int = 1,
        size: tuple[int, int] = (10, 49),
        seed: int = 42,
    ) -> None:
        super().__init__(ByLabels(labels_per_partition, size), num_partitions, partition_by, seed=seed)
