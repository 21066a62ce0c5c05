"""What do the live engines cost, and what does asynchrony gain on a clock that really ticks?

    python benchmarks/live.py                         server cost per accepted update; Ray beside a bare loop
    python benchmarks/live.py --race docs/live.png    K-async, K-sync and full sync with slow clients, on Ray

The server's share: a reply is decoded, checked, given to the rule with k - 1 others, and the new model is encoded, all
of it through the strategy's own functions, beside one local epoch of the same network. Ray: updates per second of two
warm actors beside two processes that do nothing but the same work in a loop; 1.0 per core is all there is to gain.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from kasync import LocalSGD, models, rules
from kasync.data import federate, load, partition
from kasync.data.federated import from_arrays, scaled
from kasync.live.clients import DataClient, clients_of
from kasync.timelines.durations import Trace
from kasync.work.clients import flat_parameters, one_thread_each

K = 10
SAMPLES, BATCH = 500, 32  # a local epoch
LEAST_PER_CORE = 0.8


def median_ms(call: Callable[[], object], times: int) -> float:
    call()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken)


def server_costs(name: str, model: torch.nn.Module, shape: tuple[int, ...]) -> None:
    """Milliseconds per accepted update, part by part, and their share of one local epoch."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from kasync.live.flower_replies import Reader
    from kasync.live.layout import Layout
    from kasync.live.loop import Federation
    from kasync.live.terms import Terms

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    arrays = {key: value.numpy() for key, value in model.state_dict().items()}
    layout = Layout.of(arrays)
    trained = {key: Array(value + 0.01 * np.random.default_rng(0).normal(size=value.shape).astype("float32"))
               for key, value in arrays.items()}  # fmt: skip
    content = RecordDict(
        {"arrays": ArrayRecord(trained), "metrics": MetricRecord({"train_loss": 1.0, "num-examples": 10})}
    )
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    reply = Message(content, reply_to=asked)
    reader = Reader(layout, "num-examples")
    federation = Federation(rules.wkafl(1.0), layout.vector(arrays), Terms(k=K))
    federation.present(range(K), 0.0)
    parts: dict[str, list[float]] = {"decode": [], "check": [], "rule": [], "encode": []}
    for _ in range(15):
        orders = federation.dispatch(0.0)
        for order in orders:
            began = time.perf_counter()
            delivery = reader.read(reply)
            decoded = time.perf_counter()
            assert federation.collect(order.ticket, order.node, delivery, 0.0) == "accepted"  # type: ignore[arg-type]
            parts["decode"].append(decoded - began)
            parts["check"].append(time.perf_counter() - decoded)
        began = time.perf_counter()
        assert federation.step(0.0) is not None
        stepped = time.perf_counter()
        ArrayRecord({key: Array(value) for key, value in layout.arrays(federation.server.params).items()})
        parts["rule"].append((stepped - began) / K)
        parts["encode"].append((time.perf_counter() - stepped) / K)
    costs = {part: 1e3 * statistics.median(seconds) for part, seconds in parts.items()}
    epoch = median_ms(lambda: local_epoch(model, shape), 3)
    total = sum(costs.values())
    said = "  ".join(f"{part} {cost:6.3f}" for part, cost in costs.items())
    share = f"{100 * total / epoch:.2f}% of an epoch ({epoch:.0f} ms)"
    print(f"{name:<10} D = {layout.size:>9,}  {said}  total {total:6.3f} ms = {share}")


def local_epoch(model: torch.nn.Module, shape: tuple[int, ...]) -> None:
    inputs, labels = torch.rand(SAMPLES, *shape), torch.zeros(SAMPLES, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for start in range(0, SAMPLES, BATCH):
        optimizer.zero_grad()
        cross_entropy(model(inputs[start : start + BATCH]), labels[start : start + BATCH]).backward()
        optimizer.step()


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
    given = parser.parse_args()
    if given.race is not None:
        race(given.race, given.seconds)
    else:
        with one_thread_each():
            server_costs("LeNet", models.lenet(), (3, 32, 32))
            server_costs("CelebA CNN", models.celeba_cnn(), (3, 84, 84))
        ray_beside_a_bare_loop(given.seconds)
