"""What every rule costs, beside a weighted mean of the rows it is given and beside one copy of them.

    python benchmarks/rules.py [rule ...]

For every rule, D and K: the whole call of the rule (checks, passes over the rows, the update), params - lr * (weights @
rows) as a PyTorch user writes it, and rows.clone(), in turn, each time on other rows than the last. Medians of
processor time, which other people's programs disturb less than the clock; with --threads 1 the two agree on a quiet
machine. Rules that ask for no inner products may cost at most 1.3 times the mean. A rule whose tables do not fit into
the memory that is free is measured with K clients, which the line says, or left out and named.
"""

import argparse
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kasync import Arrivals, Rule, ServerState, kernel, rules

LENGTHS = (62_006, 582_026, 11_000_000)  # D: the paper's two networks, and a ResNet-18
COUNTS = (10, 20, 100)  # K
INPUTS = 3  # deliveries that take turns, fewer where they are large
CLIENTS_PER_K = 3  # clients of rules with a table, for each arrival, where they fit
VECTORS = 16  # as long as the model: parameters, what a rule remembers, results
SPARE = 0.1  # of the memory that is free
LAZY = ("kasync_sgd", "fedbuff", "sasgd", "twafl", "delay_adaptive", "ringmaster")
MOST = 1.3  # times the weighted mean

SETTINGS: dict[str, dict[str, Any]] = {
    "gsgm": {"momentum": 0.5},
    "fedasync": {"mixing": 0.6},
    "ringmaster": {"max_staleness": 30},
    "ringmaster_lmo": {"max_staleness": 30},
    "delay_adaptive": {"concurrency": 10.0},
    "krum": {"byzantine": 2},
    "centered_clip": {"radius": 100.0},
    "fedfa": {"queue": 100},
}


def deliveries(columns: int, k: int, count: int) -> list[Arrivals]:
    """Gradients that agree in part, staleness up to 50, clients in turn."""
    draw = torch.Generator().manual_seed(columns + k)
    common = torch.randn(columns, generator=draw)
    return [
        Arrivals(
            gradients=torch.randn(k, columns, generator=draw).add_(common),
            staleness=torch.randint(0, 50, (k,), generator=draw).double(),
            losses=torch.rand(k, generator=draw).double() + 1.0,
            batch_sizes=torch.randint(4, 16, (k,), generator=draw).double(),
            clients=torch.arange(k) + k * (turn % CLIENTS_PER_K),
        )
        for turn in range(count)
    ]


def built(name: str, clients: int) -> Rule:
    """The rule with the settings above, and a server's gradient of one where it asks for it."""
    offered: dict[str, Any] = {
        "lr": 0.005,
        "clients": clients,
        "server_gradient": lambda params: torch.ones_like(params),
    }
    wanted = rules.facts(name).settings
    return rules.build(name, **{key: value for key, value in offered.items() if key in wanted} | SETTINGS.get(name, {}))


def measured(rule: Rule, given: list[Arrivals], repetitions: int) -> tuple[float, float, float]:
    """Median seconds of processor time of the rule, a weighted mean and a copy, taken in turn."""
    k, columns = given[0].matrix.shape
    params = torch.zeros(columns)
    server = rule.prepared(ServerState.initial(params))
    weights = torch.rand(k)

    def step(arrivals: Arrivals) -> None:
        nonlocal server
        server, _ = rule.advance(server, arrivals)

    def mean(arrivals: Arrivals) -> None:
        params - 0.005 * (weights @ arrivals.matrix)

    def copy(arrivals: Arrivals) -> None:
        arrivals.matrix.clone()

    seconds: dict[Callable[[Arrivals], None], list[float]] = {step: [], mean: [], copy: []}
    together = len(given) > 1  # gigabytes that were just freed slow what comes next, so that such copies are made last
    for calls in [(step, mean, copy)] if together else [(step, mean), (copy,)]:
        for repetition in range(-2, repetitions):
            for shift, call in enumerate(calls):
                start = time.process_time()
                call(given[(repetition + shift) % len(given)])
                if repetition >= 0:
                    seconds[call].append(time.process_time() - start)
    of_rule, of_mean, of_copy = (statistics.median(times) for times in seconds.values())
    return of_rule, of_mean, of_copy


def fitting(name: str, columns: int, k: int) -> Rule | None:
    """The rule for as many clients as there is memory for, beside the deliveries; None where K are too many."""
    for each in (CLIENTS_PER_K, 1):
        rule = built(name, each * k)
        if fits(k + 2 * rule.table_rows, columns):  # a copy of the rows; the tables, and what a step reads of them
            return rule
    return None


def fits(rows: int, columns: int) -> bool:
    """Whether there is memory for so many rows, and for some vectors."""
    return 4.0 * columns * (rows + VECTORS) < (1.0 - SPARE) * free_memory()


def free_memory() -> float:
    """Bytes."""
    info = Path("/proc/meminfo")
    lines = dict(line.split(":") for line in info.read_text().splitlines()) if info.exists() else {}
    return 1024.0 * int(lines.get("MemAvailable", "8000000 kB").split()[0])


def machine() -> str:
    """The processor and what computes on it, in words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor() or platform.machine()
    code = f"compiled kernel, {kernel.instructions()} instructions" if kernel.available() else "torch, no kernel built"
    return f"{processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}; {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", choices=[[], *rules.RULES], metavar="rule", help="all of them by default")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="D")
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="K")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    gc.disable()
    print(machine())
    if os.getloadavg()[0] > 0.5:
        print(f"others are computing here (load {os.getloadavg()[0]:.1f}): take these numbers as ratios, and loosely")
    print(f"{'rule':24}{'D':>11}{'K':>5}{'rule ms':>10}{'mean ms':>10}{'copy ms':>9}{'means':>8}{'copies':>8}")
    over = []
    for columns in chosen.lengths:
        for k in chosen.counts:
            count = INPUTS if columns * k < 1e8 else 1
            given = deliveries(columns, k, count) if fits((count + 1) * k, columns) else []
            for name in chosen.rules or rules.RULES:
                rule = fitting(name, columns, k) if given else None
                if rule is None:
                    print(f"{name:24}{columns:11,}{k:5}  left out: not enough memory", flush=True)
                    continue
                few = rule.table_rows > 0 and rule.clients == k
                seconds, mean, copy = measured(rule, given[:1] if few else given, chosen.repetitions)
                times = f"{1e3 * seconds:10.2f}{1e3 * mean:10.2f}{1e3 * copy:9.2f}"
                ratios = f"{seconds / mean:8.2f}{seconds / copy:8.2f}" + ("  with K clients" if few else "")
                print(f"{name:24}{columns:11,}{k:5}{times}{ratios}", flush=True)
                if name in LAZY and seconds > MOST * mean:
                    over.append(f"{name} at D = {columns:,}, K = {k}: {seconds / mean:.2f}")
                gc.collect()
    print(f"rules without inner products at most {MOST} times the mean: " + ("; ".join(over) or "all of them"))


if __name__ == "__main__":
    main()
