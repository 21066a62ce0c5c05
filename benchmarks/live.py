"""Cost of the live engines, and what asynchrony gains on a clock that really ticks.

    python benchmarks/live.py                         server cost per delivery; Ray beside a bare loop
    python benchmarks/live.py --race docs/live.png    K-async, K-sync and full sync with slow clients, on Ray

The server's cost: a reply is decoded, checked, given to the rule with k - 1 others, and the new model is encoded, all
of it through the strategy's own functions, beside FedAvg's aggregate_train on the same replies, in turn, in processor
time; and the most memory that a process of its own holds, in models. Ray: updates per second of two warm actors
beside two processes that do nothing but the same work in a loop; 1.0 per core is all there is to gain.
"""

import argparse
import logging
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from kasync import LocalSGD, models, rules
from kasync.data import federate, load, partition
from kasync.data.federated import from_arrays, scaled
from kasync.live.clients import DataClient, clients_of
from kasync.timelines.durations import Trace
from kasync.work.clients import one_thread_each
from kasync.work.loop import flat_parameters

SIZES = (  # parameters, k, repetitions
    (100_000, 10, 40),
    (25_000_000, 4, 5),
    (25_000_000, 10, 5),
    (100_000_000, 4, 3),
)
SAMPLES, BATCH = 500, 32  # a local epoch
LEAST_PER_CORE = 0.8


class Server:
    """What a server does with k replies, through FedAvg's own function or through ours."""

    def __init__(self, way: str, size: int, k: int) -> None:
        from flwr.serverapp.strategy import FedAvg
        from flwr.supercore.task_identity import TaskIdentity

        from kasync.live.flower_messages import Layout, Reader
        from kasync.live.loop import Federation
        from kasync.live.terms import Terms

        logging.getLogger("flwr").setLevel(logging.ERROR)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.k, self.turn = k, 0
        width = min(size, 1_000_000)  # arrays of a million numbers each
        draw = np.random.default_rng(0)
        start = {f"layer {n}": draw.normal(size=width).astype(np.float32) for n in range(size // width)}
        self.arrays = record(start)
        self.fedavg = FedAvg(fraction_evaluate=0.0) if way == "FedAvg" else None
        if way != "FedAvg":
            self.layout = Layout.of(start)
            self.reader = Reader(self.layout, "num-examples")
            first = self.layout.vector({name: torch.from_numpy(array) for name, array in start.items()})
            rule = {"fedbuff": rules.fedbuff(1.0), "wkafl": rules.wkafl(0.1)}[way]
            self.federation = Federation(rule, first, Terms(k=k, weigh="examples"))

    def update(self, replies: Iterator[Any]) -> None:
        """The next model, encoded, from replies that are made when they are asked for."""
        from kasync.live.deliveries import Delivery
        from kasync.live.flower_messages import encoded

        self.turn += 1
        if self.fedavg is not None:
            arrays, _ = self.fedavg.aggregate_train(self.turn, list(replies))
            assert arrays is not None
            self.arrays = arrays
            return
        federation, now = self.federation, float(self.turn)
        federation.present(range(self.k), now)
        for order in federation.dispatch(now):
            brought = self.reader.read(next(replies))
            assert isinstance(brought, Delivery)
            assert federation.collect(order.ticket, order.node, brought, now) == "accepted"
            del brought
        assert federation.step(now) is not None
        arrays = self.layout.arrays(federation.server.params, federation.buffers)
        self.arrays = ArrayRecord({name: encoded(array) for name, array in arrays.items()})


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def reply(arrays: ArrayRecord) -> Message:
    """What a client brings that moved every parameter a little."""
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    moved = ArrayRecord({name: Array(array.numpy() + np.float32(0.01)) for name, array in arrays.items()})
    metrics = MetricRecord({"train_loss": 1.0, "num-examples": 10})
    return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=asked)


def server_costs(size: int, k: int, turns: int) -> None:
    """Milliseconds of processor time per delivery, FedAvg's and ours in turn on the same replies; and the memory."""
    found = {way: beside_fedavg(way, size, k, turns) for way in ("fedbuff", "wkafl")}
    base = statistics.median(cost for costs, _ in found.values() for cost in costs)
    cells = []
    for fedavg, ours in found.values():
        ratio = statistics.median(a / b for a, b in zip(ours, fedavg, strict=True))
        cells.append(f"{statistics.median(ours):.3g} ({ratio:.2f})")
    held = " | ".join(memory(way, size, k) for way in ("FedAvg", *found)) if size >= 1_000_000 else " | | "
    print(f"| {size / 1e6:g} million | {k} | {base:.3g} | {' | '.join(cells)} | {held} |", flush=True)


def beside_fedavg(way: str, size: int, k: int, turns: int) -> tuple[list[float], list[float]]:
    """FedAvg's milliseconds in every turn, and those of this way."""
    servers = [Server("FedAvg", size, k), Server(way, size, k)]
    replies = [reply(servers[0].arrays) for _ in range(k)]
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for server, costs in zip(servers, taken, strict=True):
            began = time.process_time()
            server.update(iter(replies))
            if turn:  # the first has pages to fault in
                costs.append(1e3 * (time.process_time() - began) / k)
    return taken


def memory(way: str, size: int, k: int) -> str:
    """The most that a server of its own holds at a time, in models."""
    command = [sys.executable, __file__, "--memory", way, str(size), str(k)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]


def measure_memory(way: str, size: int, k: int) -> None:
    """Print the largest resident memory beyond that of an idle server, in models."""
    Server(way, 1000, 1).update(iter([reply(record({"layer 0": np.zeros(1000, np.float32)}))]))
    idle = resident("VmRSS")
    server = Server(way, size, k)
    for _ in range(3):
        before = server.arrays
        server.update(reply(before) for _ in range(k))
        del before
    print(f"{(resident('VmHWM') - idle) / (4 * size):.1f}")


def resident(line: str) -> int:
    """Bytes of this process, now (VmRSS) or at most (VmHWM)."""
    return 1024 * int(re.findall(rf"{line}:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def ray_beside_a_bare_loop(seconds: float, turns: int = 3) -> None:
    """Updates per second of two warm actors, beside two bare loops on the same two cores, in turn."""
    from kasync.live.ray import RayFederation, WarmClients

    rng = np.random.default_rng(0)
    pictures, labels = rng.integers(0, 256, (400, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 400)
    data = from_arrays(pictures, labels, pictures[:10], labels[:10], [np.arange(200), np.arange(200, 400)], classes=10)
    model, work = models.lenet(), LocalSGD(steps=SAMPLES // BATCH + 1, lr=0.01, batch_size=BATCH)  # a local epoch
    clients = clients_of(model, data, work)
    start, found = flat_parameters(model), []
    with WarmClients(clients) as warm, get_context("spawn").Pool(2) as pool:
        run = RayFederation(rules.kasync_sgd(1.0), start, 1, warm).run(10**9)
        for _ in range(6):
            next(run)  # everybody has built what it needs
        pool.starmap(bare_loop, [(client, start, 0.1) for client in clients], chunksize=1)
        for _ in range(turns):
            bare = sum(pool.starmap(bare_loop, [(client, start, seconds) for client in clients], chunksize=1))
            for _ in range(2):
                next(run)  # what was under way while the bare loops ran
            began, done = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                next(run)
                done += 1
            live = done / (time.perf_counter() - began)
            found.append(live / bare)
            print(f"Ray, 2 actors: {live:5.1f} updates/s; two bare loops: {bare:5.1f}/s; {live / bare:.2f} per core")
    per_core = statistics.median(found)
    verdict = "met" if per_core >= LEAST_PER_CORE else "MISSED"
    print(f"{per_core:.2f} per core; bar of {LEAST_PER_CORE}: {verdict}")


def bare_loop(client: DataClient, params: torch.Tensor, seconds: float) -> float:
    """Updates per second of a loop that does the client's work and the server's, in one process."""
    torch.set_num_threads(1)
    client(params, 0)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        params = params - client(params, done).values
        done += 1
    return done / (time.perf_counter() - began)


def race(path: Path, seconds: float) -> None:
    """Accuracy over the wall clock: eight clients, two of them ten times slower, on the embedded digits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from kasync.live.ray import RayFederation, WarmClients

    digits = load("digits")
    data = federate(digits, partition.labels(4, size=(200, 300))(digits, 8))
    model, work = models.mlp(784, 32), LocalSGD(steps=5, lr=0.05, batch_size=16)
    inputs, labels = (
        scaled(torch.from_numpy(digits.test.inputs.copy()), "unit"),
        torch.from_numpy(digits.test.labels.copy()),
    )
    slowness, start = uneven(8, slow=2), flat_parameters(model).clone()
    ways = {
        "K-async, k = 4": {"k": 4},
        "K-sync, k = 4": {"k": 4, "max_staleness": 0},
        "full sync, k = 8": {"k": 8},
    }
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    with WarmClients(clients_of(model, data, work), slowness=slowness) as warm:
        for (name, terms), colour in zip(ways.items(), ("#1b7f5c", "#c7761b", "#6a5acd"), strict=True):
            federation = RayFederation(rules.kasync_sgd(1.0), start, clients=warm, **terms)
            times, accuracies = [0.0], [accuracy(model, federation.params, inputs, labels)]
            for update in federation.run(10**9):
                times.append(update.time)
                accuracies.append(accuracy(model, federation.params, inputs, labels))
                if update.time > seconds:
                    break
            found = f"{len(times) - 1} updates in {seconds:.0f} s, accuracy {accuracies[-1]:.3f}"
            print(f"{name}: {found}; {federation.federation.tally}")
            left.plot(times, accuracies, label=name, color=colour, linewidth=1.6)
            right.plot(times, range(len(times)), label=name, color=colour, linewidth=1.6)
            import ray

            ray.get([actor.ready.remote() for actor in warm.actors])  # what is under way ends before the next begins
    left.set(xlabel="seconds on the wall clock", ylabel="test accuracy", ylim=(0, 1), title="how fast it learns")
    right.set(xlabel="seconds on the wall clock", ylabel="updates", title="how often the model moves")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Eight clients on Ray, two of them ten times slower; the embedded digits, four labels each")
    figure.savefig(path, dpi=150)


def uneven(clients: int, slow: int) -> Trace:
    """About 0.1 s for a piece of work, and ten times that for the last `slow` clients."""
    rng = np.random.default_rng(0)
    base = np.where(np.arange(clients) >= clients - slow, 1.0, 0.1)
    seconds = base[:, None] * rng.uniform(0.8, 1.2, (clients, 50))  # [clients, pieces]
    return Trace(seconds.ravel(), np.arange(clients) * 50)


def accuracy(model: torch.nn.Module, params: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    torch.nn.utils.vector_to_parameters(params, model.parameters())
    with torch.no_grad():
        return float((model(inputs).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--race", type=Path, help="draw the race into this file")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--small", action="store_true", help="the server's cost up to 25 million parameters only")
    parser.add_argument("--server", action="store_true", help="the server's cost only")
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory is not None:
        with one_thread_each():
            measure_memory(given.memory[0], int(given.memory[1]), int(given.memory[2]))
    elif given.race is not None:
        race(given.race, given.seconds)
    else:
        with one_thread_each():
            print("| parameters | k | FedAvg, ms | fedbuff, ms (over FedAvg) | wkafl, ms (over FedAvg) ", end="")
            print("| models held: FedAvg | fedbuff | wkafl |")
            print("|---|---|---|---|---|---|---|---|")
            for size, k, turns in SIZES[: 3 if given.small else None]:
                server_costs(size, k, turns)
        if given.small or given.server:
            raise SystemExit
        ray_beside_a_bare_loop(given.seconds)
