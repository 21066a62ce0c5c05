"""Client updates per second of kasync, Flower, FLGo, APPFL and FLSim, side by side.

    python benchmarks/peers.py [--clients 100 1000] [--repetitions 12] [--seconds 1.5] [--out FOLDER] [--only NAME ...]

The same work for everybody: LeNet, CIFAR-shaped random pictures, k = 10, a client update is one SGD step on a batch
of 8. Each contestant runs in a process and (the others) a virtual environment of its own, made under --venvs on the
first run, and is stopped and started in turns. A bare PyTorch loop has a turn before and after each of them: the ratio
is to the mean of the two. On a machine that is shared, a turn waits until others keep at most --busy cores at work, and
one that began without (after --patience) is not counted by the clock. Updates per second of processor time are told
beside it, of all turns: they hardly change when others work. What a contestant needed in order to run at
all is printed, and written to contestants.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from quiet import wait_for_quiet
from running import CannotRun, Contestant, Running, python_of

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)

BARE = Contestant("bare loop", "with_bare.py")
FLOWER = "flwr[simulation]==1.41.0"
EVEN = {"RAY_worker_niceness": "0"}  # Ray's workers are nice by default: on a shared machine they would starve
CONTESTANTS = (
    Contestant("kasync", "with_kasync.py"),
    Contestant("kasync, all cores", "with_kasync.py", threads=CORES),
    Contestant("Flower simulation", "with_flower.py", FLOWER, 1, {"PEERS_ACTORS": "1", **EVEN}),
    Contestant("Flower simulation, all cores", "with_flower.py", FLOWER, 1, {"PEERS_ACTORS": str(CORES), **EVEN}),
    Contestant("FLGo", "with_flgo.py", "flgo==0.4.4"),
    Contestant("APPFL", "with_appfl.py", "appfl==1.12.0"),
    Contestant("FLSim", "with_flsim.py", "flsim==0.1.0"),
)
ON_REQUEST = (Contestant("APPFL, default memory option", "with_appfl.py", "appfl==1.12.0", 1, {"PEERS_MEMORY": "1"}),)


@dataclass(frozen=True)
class Turn:
    """What one contestant did in one turn, and the bare loop around it."""

    clients: int
    repetition: int
    name: str
    updates: int
    per_second: float
    bare_per_second: float  # of the bare loop, mean of the turns before and after
    per_processor_second: float
    bare_per_processor_second: float
    others: float  # cores that others kept busy when the turn began

    @property
    def ratio(self) -> float:
        return self.per_second / self.bare_per_second

    @property
    def processor_ratio(self) -> float:
        return self.per_processor_second / self.bare_per_processor_second


@dataclass(frozen=True)
class Row:
    """A contestant's medians, and the middle half of its ratios: by the clock over the quiet turns, and by processor
    time over all of them."""

    clients: int
    name: str
    quiet_turns: int
    per_second: float
    ratio: float
    ratio_from: float
    ratio_to: float
    turns: int
    processor_ratio: float
    processor_ratio_from: float
    processor_ratio_to: float


def table(turns: Sequence[Turn], busy: float = 0.3) -> list[Row]:
    """One row for each number of clients and contestant, in the order they first appear."""
    rows = []
    for clients, name in dict.fromkeys((turn.clients, turn.name) for turn in turns):
        mine = [turn for turn in turns if (turn.clients, turn.name) == (clients, name)]
        quiet = [turn for turn in mine if turn.others <= busy]
        rate = statistics.median(turn.per_second for turn in quiet) if quiet else math.nan
        low, middle, high = quartiles([turn.ratio for turn in quiet])
        least, half, most = quartiles([turn.processor_ratio for turn in mine])
        rows.append(Row(clients, name, len(quiet), rate, middle, low, high, len(mine), half, least, most))
    return rows


def quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return 3 * [*values, math.nan][:1]
    return statistics.quantiles(values, n=4, method="inclusive")


def write_task(clients: int, path: Path) -> None:
    """The model and the pictures that everybody trains on."""
    import torch
    from task import HELD

    from kasync import models

    torch.manual_seed(0)
    inputs = torch.rand(clients * HELD, 3, 32, 32)
    labels = torch.randint(0, 10, (clients * HELD,))
    torch.save({"model": models.lenet(), "inputs": inputs, "labels": labels, "clients": clients}, path)


def race(
    contestants: Sequence[Contestant],
    clients: int,
    repetitions: int,
    seconds: float,
    venvs: Path,
    facts: list[dict],
    busy: float = 0.3,
    patience: float = 0.0,
) -> Iterator[Turn]:
    """Interleaved turns; the order goes round, so that nobody is always first. Who cannot go on is left out."""
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.pt"
        write_task(clients, task)
        bare = Running(BARE, sys.executable, task)
        facts.append({"clients": clients, "name": BARE.name, **bare.facts})
        running: dict[str, Running] = {}
        try:
            for contestant in contestants:
                begin(contestant, venvs, task, running, facts, {"clients": clients, "name": contestant.name})
            bare.turn(seconds)
            for repetition in range(repetitions):
                names = list(running)
                first = repetition % max(1, len(names))
                for name in names[first:] + names[:first]:
                    seen = wait_for_quiet(busy, patience)
                    before = bare.turn(seconds / 2)
                    try:
                        done = running[name].turn(seconds)
                    except CannotRun as problem:
                        facts.append({"clients": clients, "name": name, "problem": str(problem)})
                        del running[name]
                        continue
                    after = bare.turn(seconds / 2)
                    rate, thrift = (before.rate + after.rate) / 2, (before.thrift + after.thrift) / 2
                    yield Turn(clients, repetition, name, done.updates, done.rate, rate, done.thrift, thrift, seen)
        finally:
            for process in (bare, *running.values()):
                process.end()


def begin(
    contestant: Contestant, venvs: Path, task: Path, running: dict[str, Running], facts: list[dict], told: dict
) -> None:
    """Install and start one, and let it do its first step: everybody's first work, caches, captures."""
    try:
        running[contestant.name] = Running(contestant, python_of(contestant, venvs), task)
        running[contestant.name].turn(0.0)
        facts.append(told | running[contestant.name].facts)
    except CannotRun as problem:
        running.pop(contestant.name, None)
        facts.append(told | {"problem": str(problem)})


def write(path: Path, rows: Sequence[dict]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def main() -> None:
    known = CONTESTANTS + ON_REQUEST
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    parser.add_argument("--busy", type=float, default=0.3, help="cores that others may keep busy")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for that, each turn")
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "kasync-peers")
    parser.add_argument("--out", type=Path, help="a folder for turns.csv, table.csv and contestants.csv")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of: " + "; ".join(c.name for c in known))
    given = parser.parse_args()
    chosen = CONTESTANTS if given.only is None else [c for c in known if c.name in given.only]
    facts: list[dict] = []
    turns: list[Turn] = []
    with contextlib.suppress(KeyboardInterrupt):  # what was measured until then is told and written
        for clients in given.clients:
            terms = (given.repetitions, given.seconds, given.venvs.expanduser(), facts, given.busy, given.patience)
            for turn in race(chosen, clients, *terms):
                turns.append(turn)
                seen = f"{turn.per_second:9.1f}/s {turn.ratio:6.2f} {turn.processor_ratio:6.2f}"
                print(f"{clients:>6} {turn.repetition:>3} {turn.name:<30} {seen}  others {turn.others:.2f}", flush=True)
    tell(table(turns, given.busy), facts)
    if given.out is not None:
        ratios = [{"ratio": turn.ratio, "processor_ratio": turn.processor_ratio} for turn in turns]
        given.out.mkdir(parents=True, exist_ok=True)
        write(given.out / "turns.csv", [asdict(turn) | more for turn, more in zip(turns, ratios, strict=True)])
        write(given.out / "table.csv", [asdict(row) for row in table(turns, given.busy)])
        write(given.out / "contestants.csv", facts)


def tell(rows: Sequence[Row], facts: Sequence[dict]) -> None:
    print(f"\n{'clients':>7} {'who':<30} {'turns':>5} {'updates/s':>10} {'to the bare loop':>23}    by processor time")
    for row in rows:
        clock = f"{row.ratio:.2f} ({row.ratio_from:.2f} to {row.ratio_to:.2f})"
        thrift = f"{row.processor_ratio:.2f} ({row.processor_ratio_from:.2f} to {row.processor_ratio_to:.2f})"
        print(f"{row.clients:>7} {row.name:<30} {row.quiet_turns:>5} {row.per_second:>10.1f} {clock:>23} {thrift:>23}")
    for fact in facts:
        print("  ".join(f"{key}: {value}" for key, value in fact.items() if value))


if __name__ == "__main__":
    main()
