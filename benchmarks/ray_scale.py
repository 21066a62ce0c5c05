"""How one run scales over the workers of a Ray cluster, what a piece costs beside its compute, and the server's share.

    python benchmarks/ray_scale.py [--workers 1 2] [--steps 12] [--turns 3] [--models "resnet8 GN" "small GPT"]
                                   [--only scale | server | forecast]

Every worker has one thread. In each turn, one after the other: the engine's own loop on one thread of one process; as
many bare processes of it as there are workers, which share nothing and send nothing, for what this machine gives at
most; and the run on Ray. Ratios are medians over the turns. A worker of Ray is as nice here as its driver. What the
run and Ray's processes take of processors beside the pieces is told too. A bare process's time of a processor for a
piece over that of the whole run is the share of linear where workers have every core, whatever else the machine does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own 15 would measure what else the machine does
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
import torch

import kasync
from kasync import data, models, rules, timelines

CLIENTS, K, BATCH, SIZE = 40, 10, 16, 64  # SIZE samples for each client: an epoch is four mini-batches
TOKENS, CONTEXT = 80, 64
MODELS = {
    "resnet8 GN": models.resnet8,
    "small GPT": partial(models.gpt, layers=4, width=128, heads=4, context=CONTEXT, vocabulary=TOKENS),
    "resnet18 GN": models.resnet18,
}
LARGE = "resnet18 GN"  # 11 million parameters
GPU_BATCHES = 400  # mini-batches of 16 images per second and GPU: an assumption, no GPU was there to measure it
WORKERS_PER_GPU = 4
NETWORK = 12.5e9  # bytes per second into the server, 100 Gbit/s: an assumption
READY = 2  # steps after which all workers are at work
AFTER = CLIENTS // K  # steps that are still to come when the measurement ends: all workers are still at work


def world(name, steps, size=SIZE):
    """Model, data, rule, timeline and work; the test set is of one sample, so that training is measured."""
    rng = np.random.default_rng(0)
    if "GPT" in name:
        lines = rng.integers(0, TOKENS, (CLIENTS * size, CONTEXT + 1))
        inputs, labels = lines[:, :-1], lines[:, 1:]
    else:
        inputs = rng.random((CLIENTS * size, 3, 32, 32), dtype=np.float32)
        labels = rng.integers(0, 10, CLIENTS * size)
    parts = np.split(np.arange(CLIENTS * size), CLIENTS)
    held = data.from_arrays(inputs, labels, inputs[:1], labels[:1], parts, classes=int(labels.max()) + 1)
    torch.manual_seed(0)
    work = kasync.Local(BATCH, epochs=1, lr=1e-3, optimizer=torch.optim.AdamW)
    timeline = timelines.uniform(CLIENTS, K, steps, seed=0)
    return MODELS[name](), held, rules.fedbuff(0.1), timeline, work


def alone(name, steps, begin=None):
    """The engine's own loop in this process: pieces per second, and seconds of a processor for each."""
    torch.set_num_threads(1)
    simulation = kasync.simulate(*world(name, steps), evaluate_every=10**6, backend="loop", hold="versions")
    records = iter(simulation)
    next(records)
    if begin is not None:
        begin()
    began, spent = time.perf_counter(), time.process_time()
    for _ in records:
        pass
    pieces = (steps - 1) * K
    return pieces / (time.perf_counter() - began), (time.process_time() - spent) / pieces


def processes(name, steps, count):
    """The same in so many processes at once, of each (pieces per second, seconds of a processor)."""
    command = [sys.executable, __file__, "--alone", name, "--steps", str(steps)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    begun = [subprocess.Popen(command, **pipes) for _ in range(count)]
    for one in begun:
        assert one.stdout.readline().strip() == "ready"
    for one in begun:
        one.stdin.write("go\n")
        one.stdin.flush()
    return [tuple(map(float, one.communicate()[0].splitlines()[-1].split())) for one in begun]


def spread(name, steps, workers, size=SIZE):
    """What a run on so many workers takes while all of them are at work: neither its first steps nor its last."""
    torch.set_num_threads(1)
    simulation = kasync.simulate(
        *world(name, steps + AFTER, size), evaluate_every=10**6, backend="loop", engine="ray", workers=workers
    )
    crew = simulation.run.crew
    for record in simulation:
        if record.step == READY:
            first, began, mine = state(crew), time.perf_counter(), time.thread_time()
        if record.step == steps:
            seconds, mine = time.perf_counter() - began, time.thread_time() - mine
            last = state(crew)
            break
    took = {name: last[name] - first[name] for name in first}
    pieces = took["made"]
    return {
        "rate": pieces / seconds,
        "compute": 1e3 * took["busy"] / pieces,
        "overhead": 1e3 * (seconds * workers - took["busy"]) / pieces,
        "cpu": 1e3 * took["computing"] / pieces,
        "cpu beside": 1e3 * (took["processors"] - took["computing"]) / pieces,
        "sending": 1e3 * took["sending"] / pieces,
        "stepping": 1e3 * mine / (steps - READY),
        "share": 1 - took["waited"] / seconds,
        "parameters": len(simulation.params),
    }


def state(crew):
    """Sums so far; `processors` has the seconds of this process, of the workers and of all that Ray started here."""
    told = {name: getattr(crew, name) for name in ("made", "busy", "waited", "computing", "sending")}
    return told | {"processors": sum(map(taken, [me := psutil.Process(), *me.children(recursive=True)]))}


def taken(process):
    """Seconds of a processor; none where it has ended meanwhile."""
    try:
        return sum(process.cpu_times()[:2])
    except psutil.Error:
        return 0.0


def scale(names, workers, steps, turns):
    from kasync.simulator import ray as farm

    print("| model | workers | pieces/s | over one process's loop | bare processes over one "
          "| of what they give | a piece, ms | beside it, ms | CPU ms in a bare process | in a piece | beside it "
          "| of linear by CPU |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        found = {count: [] for count in workers}
        spread(name, 3, max(workers))  # everything is imported
        for _ in range(turns):
            for count in workers:
                farm.disconnect()  # bare processes have nothing beside them: no Ray that waits
                (before,) = processes(name, steps, 1)
                rates, spent = zip(*(processes(name, steps, count) if count > 1 else [before]), strict=True)
                ray = spread(name, steps, count)
                farm.disconnect()
                (after,) = processes(name, steps, 1)
                one, own = (before[0] + after[0]) / 2, 1e3 * statistics.mean(spent)
                found[count].append({**ray, "one": one, "bare": sum(rates), "bare cpu": own})
        for count, rows in found.items():
            columns = {
                "rate": [row["rate"] for row in rows],
                "speed": [row["rate"] / row["one"] for row in rows],
                "ceiling": [row["bare"] / row["one"] for row in rows],
                "reached": [row["rate"] / row["bare"] for row in rows],
                "compute": [row["compute"] for row in rows],
                "overhead": [row["overhead"] for row in rows],
                "bare cpu": [row["bare cpu"] for row in rows],
                "cpu": [row["cpu"] for row in rows],
                "cpu beside": [row["cpu beside"] for row in rows],
                "by cpu": [row["bare cpu"] / (row["cpu"] + row["cpu beside"]) for row in rows],
            }
            told = " | ".join(f"{statistics.median(values):.2f}" for values in columns.values())
            print(f"| {name} | {count} | {told} |", flush=True)
            print(json.dumps({"model": name, "workers": count, "turns": rows}), file=sys.stderr)


def forecast(workers, piece, sending, stepping, row, network, k):
    """Pieces per second: of so many workers, the sending thread, the thread that makes steps, the network; the least.

    Seconds for a piece, for sending and taking one, and for a step; bytes of a row and bytes per second.
    """
    limits = {"workers": workers / piece, "sending": 1 / sending, "steps": k / stepping, "network": network / row}
    return min(limits.values()), min(limits, key=limits.get)


def forecasts(rows):
    """What a million clients need on GPUs, each once: with the server measured here, and GPUs as they are assumed."""
    sending, stepping = rows["sending"] / 1e3, rows["stepping"] / 1e3
    print("\n| mini-batches a piece | GPUs | pieces/s | limited by | hours for a million | GPUs at work |")
    print("|---|---|---|---|---|---|")
    for batches in (4, 32, 160, 1600):
        for gpus in (8, 64, 512):
            piece = WORKERS_PER_GPU * batches / GPU_BATCHES
            found, limit = forecast(
                gpus * WORKERS_PER_GPU, piece, sending, stepping, 4 * rows["parameters"], NETWORK, K
            )
            used = found * batches / GPU_BATCHES
            print(f"| {batches} | {gpus} | {found:.0f} | {limit} | {1e6 / found / 3600:.1f} | {used:.0f} |")


def server(names, workers, steps):
    """The server's part of a step, at sizes up to 11 million parameters."""
    print(
        "\n| model | parameters | workers | share of the time | its step, CPU ms | sending and taking a piece, CPU ms |"
    )
    print("|---|---|---|---|---|---|")
    for name in names:
        count = max(workers)
        found = spread(name, READY + steps, count, 16 if name == LARGE else SIZE)
        print(
            f"| {name} | {found['parameters']:,} | {count} | {100 * found['share']:.1f} % | {found['stepping']:.1f} "
            f"| {found['sending']:.2f} |",
            flush=True,
        )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--only", choices=["scale", "server", "forecast"])
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:

        def begin():
            print("ready", flush=True)
            sys.stdin.readline()

        print(*alone(given.alone, given.steps, begin))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, {Path(__file__).name}\n")
    if given.only in (None, "scale"):
        scale([name for name in given.models if name != LARGE], given.workers, given.steps, given.turns)
    if given.only in (None, "server", "forecast"):
        names = [LARGE] if given.only == "forecast" else given.models
        forecasts(server(names, given.workers, given.steps // 3))


if __name__ == "__main__":
    main()
