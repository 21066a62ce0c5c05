"""Speed of the simulator beside a bare loop that computes the same gradients and does nothing else.

    python benchmarks/simulator.py [speed] [together] [growth] [memory] [--device cpu|cuda] [--steps N]

Everything is measured side by side in one run, in alternating blocks of N steps; ratios are of medians.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import kasync
from kasync import kernel, models, rules, timelines
from kasync.data.dataset import Samples
from kasync.data.federated import FederatedData

TASKS = {  # model, input shape, batch, classes
    "lenet": (models.lenet, (3, 32, 32), 8, 10),
    "cnn": (models.emnist_cnn, (1, 28, 28), 4, 10),
    "celeba": (models.celeba_cnn, (3, 84, 84), 4, 2),
}
BARS = {("cpu", "lenet"): (1.6, "15%"), ("cpu", "cnn"): (1.4, "30%")}  # over the bare loop; bookkeeping and rule
CHUNK = 100


def random_data(shape, clients, classes=10, size=20, samples=5000):
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (samples, *shape), dtype=np.uint8)
    labels = rng.integers(0, classes, samples)
    train, test = Samples(inputs, labels), Samples(inputs[:500], labels[:500])
    indices = rng.integers(0, samples, clients * size)
    return FederatedData(train, test, indices, np.arange(clients + 1) * size, classes)


def simulation(task, clients, k, steps, device, hold="auto"):
    build, shape, batch, classes = TASKS[task]
    data = random_data(shape, clients, classes)
    timeline = timelines.uniform(clients, k, steps, seed=0)
    work = kasync.Gradient(batch)
    settings = {"device": device, "hold": hold, "evaluate_every": 10**6}
    return kasync.simulate(build(), data, rules.wkafl(0.001), timeline, work, **settings)


def advance(sim, start, stop):
    for first in range(start, stop, CHUNK):
        for _ in sim.run.steps(first, min(first + CHUNK, stop)):
            pass


def seconds(work, device, times=1):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def bare_loop(task, k, device):
    """K gradients, one client after the other with autograd: what a user would write; and one centralised step."""
    build, shape, batch, classes = TASKS[task]
    model = build().to(device)
    inputs = torch.rand(k * batch, *shape, device=device)
    labels = torch.randint(0, classes, (k * batch,), device=device)

    def gradient(part):
        model.zero_grad()
        cross_entropy(model(inputs[part]), labels[part]).backward()

    def loop():
        for i in range(k):
            gradient(slice(i * batch, (i + 1) * batch))

    return loop, partial(gradient, slice(None))


def gradients_only(sim, k, batch, device):
    """The clients' part of a step alone."""
    rows = torch.empty(k, len(sim.params), device=device)
    samples = torch.randint(0, 5000, (k, 1, batch), device=device)
    weights = torch.full((k, 1, batch), 1 / batch, device=device)

    def work():
        with sim.run.context(), torch.no_grad():
            sim.run.clients.compute(sim.run.server.params, samples, weights, rows)

    return work


class Processor:
    """How much processor time a run spends on gradients and on everything else.

    On a CPU clients compute while the server steps on, so the time of a step less that of its gradients says nothing.
    """

    def __init__(self, run):
        self.compute, self.inside, self.shares = run._compute, [], []
        run._compute = self.timed

    def timed(self, *work):
        start = time.thread_time()
        self.compute(*work)
        self.inside.append(time.thread_time() - start)  # from several threads

    def watch(self, work):
        self.inside.clear()
        start = time.process_time()
        work()
        self.shares.append(1 - sum(self.inside) / (time.process_time() - start))


def on_one_thread(work):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    work()
    torch.set_num_threads(threads)


def speed_of(task, device, steps, k=10, clients=3000, repetitions=12):
    lengthy = CHUNK + repetitions * steps + 5 * clients // k  # work that is never delivered would not be computed
    sim = simulation(task, clients, k, lengthy, device)
    advance(sim, 0, CHUNK)  # computes the first gradient of every client, and on CUDA captures the graph
    batch = TASKS[task][2]
    loop, central = bare_loop(task, k, device)
    gradients = gradients_only(sim, k, batch, device)
    processor = Processor(sim.run)
    taken = {name: [] for name in ("whole step", "gradients", "central, all threads", "bare loop", "central")}
    for number in range(repetitions):
        start = CHUNK + number * steps
        block = partial(advance, sim, start, start + steps)
        watched = block if device == "cuda" else partial(processor.watch, block)
        taken["whole step"].append(seconds(watched, device) / steps)
        taken["gradients"].append(seconds(gradients, device, steps))
        taken["central, all threads"].append(seconds(central, device, steps))
        taken["bare loop"].append(seconds(partial(on_one_thread, loop), device, steps))
        taken["central"].append(seconds(partial(on_one_thread, central), device, steps))
    ms = {name: 1e3 * statistics.median(values) for name, values in taken.items()}
    share = 1 - ms["gradients"] / ms["whole step"] if device == "cuda" else statistics.median(processor.shares)
    return sim, ms, share


def speed(device, steps):
    for task in ("lenet", "cnn"):
        sim, ms, share = speed_of(task, device, steps)
        whole, k = ms["whole step"], sim.timeline.k
        bar, most = BARS.get((device, task), (20, "none"))
        print(
            f"\n{task}: {sim.timeline.population} clients, k = {k}, {len(sim.params):,} parameters, {sim.memory.hold}"
        )
        for name, value in ms.items():
            print(f"  {name:24s} {value:9.3f} ms")
        print(f"  client updates per second {1e3 * k / whole:12,.0f}")
        print(f"  over the bare loop        {ms['bare loop'] / whole:12.2f}  (bar: {bar})")
        print(f"  over a centralised step   {ms['central'] / whole:12.2f}  (one thread)")
        print(f"  ... with all threads      {ms['central, all threads'] / whole:12.2f}")
        print(f"  bookkeeping and rule      {share:12.1%}  (bar: {most}; of processor time on a CPU)")
        del sim


def together(device, steps, k=10, clients=3000):
    """Several seeds at once on one GPU: a thread and a stream each."""
    for task in ("lenet", "cnn"):
        for count in (1, 2, 4, 8, 16):
            sims = [simulation(task, clients, k, 4 * steps + 5 * clients // k, device) for _ in range(count)]
            ready = threading.Barrier(count + 1)

            def work(sim, ready=ready):
                advance(sim, 0, CHUNK)
                ready.wait()
                advance(sim, CHUNK, CHUNK + 4 * steps)

            workers = [threading.Thread(target=work, args=(sim,)) for sim in sims]
            for worker in workers:
                worker.start()
            ready.wait()
            start = time.perf_counter()
            for worker in workers:
                worker.join()
            each = 1e3 * (time.perf_counter() - start) / (4 * steps) / count
            print(f"  {task}: {count:2d} runs at once: {each:.3f} ms for a step of one run")


def growth(device, steps, k=10):
    print("\nstep time against the number of clients (LeNet, k = 10)")
    first = None
    for clients in (100, 1_000, 10_000, 100_000):
        sim = simulation("lenet", clients, k, CHUNK + 6 * steps, device, hold="versions")
        advance(sim, 0, CHUNK)
        starts = range(CHUNK, CHUNK + 6 * steps, steps)
        blocks = [seconds(partial(advance, sim, start, start + steps), device) for start in starts]
        each = 1e3 * statistics.median(blocks) / steps
        first = first or each
        print(f"  {clients:7,} clients: {each:7.3f} ms a step, {each / first:.2f} of the first; {sim.memory}")


def memory(device):
    """Peak memory of whole runs, each in a process of its own, the smaller one first."""
    for task, clients, k, steps, bar in (("lenet", 100_000, 100, 1000, 4), ("celeba", 2000, 15, 600, 6)):
        code = (
            "import sys; sys.path.insert(0, 'benchmarks'); import simulator\n"
            f"sim = simulator.simulation({task!r}, {clients}, {k}, {steps}, {device!r}, hold='versions')\n"
            "for _ in sim: pass\n"
            "print(sim.memory)"
        )
        start = time.perf_counter()
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # the largest child so far
        print(f"\n{task}: {clients:,} clients, k = {k}, {steps} steps, {time.perf_counter() - start:.0f} s")
        print(f"  peak of the process {peak:.2f} GiB (bar: {bar} GB); foretold: {out.strip()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["speed", "growth", "memory"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, kernel: {kernel.instructions()}")
    if chosen.device == "cuda":
        print(torch.cuda.get_device_name())
    for name, measure in (("speed", speed), ("together", together), ("growth", growth)):
        if name in chosen.what:
            measure(chosen.device, chosen.steps)
    if "memory" in chosen.what:
        memory(chosen.device)
