"""Runs every rule under every fault and writes docs/faults.md and its picture: `python benchmarks/faults.py`.

Every rule, every kind of fault, 5, 10 and 20% of the clients, three seeds. What is in results/faults/accuracy.csv is
not run again, nor are runs that kasync.compare finished in kasync-runs/faults, so an interrupted table goes on where it
was. `--page` only writes the page and the picture from that file; `--tune` tries four learning rates for each rule
without faults, on a seed that the table does not use.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from faults_page import write_page

import kasync
from kasync import Comparison, Gradient, data, faults, models, rules, timelines
from kasync.data import FederatedData, partition
from kasync.faults import Fault
from kasync.timelines import Timeline

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "results" / "faults" / "accuracy.csv"
RUNS = ROOT / "kasync-runs" / "faults"
COLUMNS = ("rule", "fault", "share", "seed", "accuracy", "dropped", "skipped", "seconds")
CLIENTS, K, STEPS, BATCH, EVERY, LAST = 60, 10, 100, 8, 10, 3
SEEDS, SHARES, TUNING_SEED = (0, 1, 2), (0.05, 0.1, 0.2), 99

FAULTS: Mapping[str, Callable[[float], Fault]] = {
    "leave": faults.Leave,
    "return": faults.LeaveAndReturn,
    "stall": faults.Stall,
    "twice": faults.DeliverTwice,
    "nan": faults.SendNaN,
    "inf": faults.SendInfinity,
    "zero": faults.SendZero,
    "huge": faults.SendHuge,
    "noise": lambda share: faults.AddNoise(share, factor=100.0),
    "flip_labels": faults.FlipLabels,
    "flip_sign": faults.FlipSign,
    "flip_sign x 5": lambda share: faults.FlipSign(share, factor=5.0),
}
RULES: Mapping[str, dict[str, Any]] = {  # learning rates: the best of four without faults (--tune)
    "kasync_sgd": {"lr": 0.3},
    "wkafl": {"lr": 0.1, "loss_threshold": 0.2},
    "twafl": {"lr": 0.3},
    "sasgd": {"lr": 1.0},
    "gsgm": {"lr": 0.1, "momentum": 0.1, "clients": CLIENTS},
    "fedasync": {"mixing": 0.3},
    "fedbuff": {"lr": 1.0},
    "ca2fl": {"lr": 0.3, "clients": CLIENTS},
    "recall": {"lr": 0.1, "clients": CLIENTS},
    "ace": {"lr": 0.03, "clients": CLIENTS},
    "fadas": {"lr": 0.003},
    "ringmaster": {"lr": 0.3, "max_staleness": CLIENTS / K},
    "ringleader": {"lr": 0.03, "clients": CLIENTS},
    "delay_adaptive": {"lr": 0.3, "concurrency": CLIENTS / K},
    "krum": {"lr": 0.1, "byzantine": 3},
    "geometric_median": {"lr": 0.3},
    "centered_clip": {"lr": 0.3, "radius": 1.0},
    "zeno": {"lr": 0.1},
    "fltrust": {"lr": 0.3},
    "aflguard": {"lr": 0.3, "radius": 3.0},
    "fedstale": {"lr": 0.3, "clients": CLIENTS},
    "area": {"lr": 1.0, "clients": CLIENTS},
    "fedfa": {"lr": 1.0, "queue": K},
    "rescaled_asgd": {"lr": 0.3, "clients": CLIENTS},
    "asyncfeded": {"lr": 0.3},
    "port": {"lr": 0.3},
    "gap_aware": {"lr": 0.3},
    "dc_asgd": {"lr": 0.3},
    "momentum_approximation": {"lr": 0.1},
    "momentum_look_ahead": {"lr": 0.3},
    "heloco": {"lr": 1.0, "weight": CLIENTS**-0.5},
    "delayed_nesterov": {"lr": 0.3},
    "fedavgm": {"lr": 0.01},
    "fedadam": {"lr": 0.001},
    "fedyogi": {"lr": 0.001},
    "ringmaster_lmo": {"lr": 0.03, "max_staleness": CLIENTS / K},
}
TRUSTING = ("zeno", "fltrust", "aflguard")  # they have samples at the server
GRIDS: Mapping[str, tuple[float, ...]] = {
    "fadas": (0.0003, 0.001, 0.003, 0.01),
    "recall": (0.01, 0.03, 0.1, 0.3),
    "sasgd": (0.1, 0.3, 1.0, 3.0),
    "ringleader": (0.003, 0.01, 0.03, 0.1),
    "momentum_look_ahead": (0.01, 0.03, 0.1, 0.3),
    "heloco": (0.1, 0.3, 1.0, 3.0),
    "delayed_nesterov": (0.01, 0.03, 0.1, 0.3),
    "fedavgm": (0.01, 0.03, 0.1, 0.3),
    "fedadam": (0.001, 0.003, 0.01, 0.03),
    "fedyogi": (0.001, 0.003, 0.01, 0.03),
    "ringmaster_lmo": (0.003, 0.01, 0.03, 0.1),
}
GRID = (0.03, 0.1, 0.3, 1.0)


@cache
def federation(seed: int) -> FederatedData:
    """The embedded digits over sixty clients with somewhat different labels: Dirichlet shares with alpha = 1."""
    digits = data.load("digits")
    return data.federate(digits, partition.build("dirichlet", alpha=1.0)(digits, CLIENTS, seed), "unit")


def network(seed: int) -> torch.nn.Module:
    return models.mlp(784, (32,), 10, seed)


@cache
def arrivals(fault: str, share: float, seed: int, in_rounds: bool) -> Timeline:
    """As many steps as are wanted, though some deliveries are lost."""
    make = timelines.once_per_round if in_rounds else timelines.uniform
    plain = make(CLIENTS, K, 2 * STEPS, seed)
    return faults.inject(plain, FAULTS[fault](share) if share else None, seed).head(STEPS)


def rule_of(name: str, **more: Any) -> Any:
    """The rule, or what kasync.compare makes one of where it needs samples of the server's."""
    settings = {**RULES[name], **more}
    return (name, settings) if name in TRUSTING else rules.build(name, **settings)


def runs(chosen: Mapping[str, Any], fault: str, share: float, seeds: Sequence[int], in_rounds: bool) -> Comparison:
    """These rules, by label, under this fault; what is finished is not run again."""
    wrong = FAULTS[fault](share) if share else None
    sending = None if isinstance(wrong, faults.kinds.ArrivalFault) else wrong
    return kasync.compare(
        network,
        federation,
        chosen,
        lambda seed: arrivals(fault, share, seed, in_rounds),
        seeds,
        Gradient(BATCH),
        faults=sending,
        evaluate_every=EVERY,
        folder=RUNS,
        name=f"{fault} {share:g}",
        progress=False,
    )


def rows(names: Sequence[str], fault: str, share: float, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Of the table: the mean accuracy of the last three evaluations, and what was not used."""
    for in_rounds in (False, True):  # GSGM calls its clients in rounds
        chosen = {name: rule_of(name) for name in names if (name == "gsgm") == in_rounds}
        found = runs(chosen, "leave" if fault == "none" else fault, share, seeds, in_rounds) if chosen else None
        for name, seed in itertools.product(chosen, seeds):
            run = found.runs[name][seed]
            yield {
                "rule": name,
                "fault": fault,
                "share": share,
                "seed": seed,
                "accuracy": round(float(run.rows["accuracy"][-LAST:].mean()), 4),
                **{name: run.summary[name] for name in ("dropped", "skipped")},
                "seconds": round(run.summary["seconds"], 2),
            }


def read() -> list[dict[str, Any]]:
    """The rows there are."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        kinds = {"share": float, "seed": int, "accuracy": float, "dropped": int, "skipped": int, "seconds": float}
        return [{name: kinds.get(name, str)(value) for name, value in row.items()} for row in csv.DictReader(file)]


def make_all() -> None:
    """Append the rows that are missing, seed by seed, so that an unfinished table has whole rows."""
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["rule"], row["fault"], row["share"], row["seed"]) for row in read()}
    fresh = not TABLE.exists()
    with TABLE.open("a", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if fresh:
            table.writeheader()
        for seed, (fault, share) in itertools.product(SEEDS, [("none", 0.0), *itertools.product(FAULTS, SHARES)]):
            missing = [name for name in RULES if (name, fault, share, seed) not in done]
            table.writerows(rows(missing, fault, share, [seed]))
            file.flush()
            if missing:
                print(f"{fault} {share:.0%} seed {seed}: {len(missing)} rules", flush=True)


def tune() -> None:
    """The four rates of each rule, without faults."""
    for name in RULES:
        knob, grid = "mixing" if name == "fedasync" else "lr", GRIDS.get(name, GRID)
        chosen = {f"{rate:g}": rule_of(name, **{knob: rate}) for rate in grid}
        found = runs(chosen, "leave", 0.0, [TUNING_SEED], name == "gsgm").runs
        tried = {rate: float(by_seed[TUNING_SEED].rows["accuracy"][-LAST:].mean()) for rate, by_seed in found.items()}
        print(name, tried, "best", max(tried, key=lambda rate: tried[rate]), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--page", action="store_true", help="only write the page and the picture")
    options.add_argument("--tune", action="store_true", help="only try learning rates")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.tune:
        tune()
        return
    if not given.page:
        make_all()
    write_page(read(), list(RULES), list(FAULTS), SHARES, ROOT / "docs")


if __name__ == "__main__":
    main()
