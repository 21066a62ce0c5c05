"""Time and memory of Algorithm 4 for a million clients, beside a plain Python loop.

    python benchmarks/partitions.py [clients]

Each case runs in a process of its own, so that its peak memory is its own. The plain loop runs at 1/100 of the clients.
"""

import random
import resource
import sys
from collections.abc import Callable
from multiprocessing import get_context
from time import perf_counter

import numpy as np

from kasync.data import partition

LABELS = np.repeat(np.arange(10), 5000)  # [50000] the label counts of CIFAR-10


def plain_loop(per_client: int, clients: int) -> int:
    """Algorithm 4 as its listing reads, client after client; returns the number of samples drawn."""
    rng = random.Random(0)
    by_label = [np.flatnonzero(label == LABELS).tolist() for label in range(10)]
    parts = []
    for _ in range(clients):
        labels = rng.sample(range(10), per_client)
        size = rng.randint(10, 49)
        weights = [rng.random() for _ in labels]
        shares = [max(1, round(size * weight / sum(weights))) for weight in weights]
        parts.append(
            [i for label, share in zip(labels, shares, strict=True) for i in rng.sample(by_label[label], share)]
        )
    return sum(map(len, parts))


def ours(per_client: int, clients: int) -> int:
    return len(partition.labels(per_client).over(LABELS, clients, 0).indices)


def dirichlet(_: int, clients: int) -> int:
    return len(partition.dirichlet(0.5, allow_empty=True).over(LABELS, clients, 0).indices)


def measured(case: Callable[[int, int], int], per_client: int, clients: int) -> tuple[float, float, int]:
    """Seconds, peak megabytes of the process and samples."""
    began = perf_counter()
    samples = case(per_client, clients)
    return perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, samples


def main() -> None:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    few = max(1, clients // 100)
    print(f"{'way':<24}{'clients':>10}{'samples':>12}{'seconds':>9}{'us/client':>11}{'peak MB':>9}")
    cases = [(f"labels({n})", ours, n, clients) for n in (1, 5, 10)]
    cases += [(f"plain loop, labels({n})", plain_loop, n, few) for n in (1, 5, 10)]
    cases += [("dirichlet(0.5)", dirichlet, 0, few)]
    for name, case, per_client, count in cases:
        with get_context("spawn").Pool(1) as process:
            seconds, megabytes, samples = process.apply(measured, (case, per_client, count))
        print(f"{name:<24}{count:>10,}{samples:>12,}{seconds:>9.2f}{seconds / count * 1e6:>11.1f}{megabytes:>9.0f}")


if __name__ == "__main__":
    main()
