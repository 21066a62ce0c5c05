"""How fast is the simulator, beside a bare loop that computes the same gradients and does nothing else?

    python benchmarks/simulator.py [speed] [growth] [memory] [--device cpu|cuda] [--steps N]

Everything is measured side by side in one run, in alternating blocks; ratios are of medians.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import kasync
from kasync import models, rules, timelines
from kasync.data.federated import FederatedData
from kasync.data.dataset import Samples

TASKS = {
    "lenet": (lambda: models.lenet(), (3, 32, 32), 8),
    "cnn": (lambda: models.emnist_cnn(10), (1, 28, 28), 4),
    "celeba": (lambda: models.celeba_cnn(), (3, 84, 84), 4),
}


def random_data(shape, clients, classes=10, size=20, samples=5000):
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (samples, *shape), dtype=np.uint8)
    labels = rng.integers(0, classes, samples)
    indices = rng.integers(0, samples, clients * size)
    train, test = Samples(inputs, labels), Samples(inputs[:500], labels[:500])
    return FederatedData(train, test, indices, np.arange(clients + 1) * size, classes)


def simulation(task, clients, k, steps, device, hold="auto", rule=None):
    build, shape, batch = TASKS[task]
    data = random_data(shape, clients, classes=2 if task == "celeba" else 10)
    timeline = timelines.uniform(clients, k, steps, seed=0)
    rule = rule or rules.wkafl(0.001)
    return kasync.simulate(
        build(), data, rule, timeline, kasync.Gradient(batch), device=device, hold=hold, evaluate_every=10**6
    )


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work, device):
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def bare_loop(task, k, device):
    """K gradients, one client after the other, on one thread, with autograd: what a user would write."""
    build, shape, batch = TASKS[task]
    model = build().to(device)
    inputs = torch.rand(k * batch, *shape, device=device)
    labels = torch.randint(0, 2, (k * batch,), device=device)

    def loop():
        for i in range(k):
            part = slice(i * batch, (i + 1) * batch)
            model.zero_grad()
            cross_entropy(model(inputs[part]), labels[part]).backward()

    def central():
        model.zero_grad()
        cross_entropy(model(inputs), labels).backward()

    return loop, central


def speed(device, steps, k=10, clients=3000, tasks=("lenet", "cnn")):
    for task in tasks:
        sim = simulation(task, clients, k, 100 + 40 * steps, device)
        run, made = sim.run, 0

        def block(count, sim=sim):
            nonlocal made
            with sim.run.context():
                for start in range(made, made + count, 100):
                    sim.run.steps(start, min(start + 100, made + count))
            made += count

        block(20)  # computes the first gradient of every client
        loop, central = bare_loop(task, k, device)
        rows = torch.empty(k, len(sim.params), device=device)
        batch = TASKS[task][2]
        samples = torch.randint(0, 5000, (k, 1, batch), device=device)
        weights = torch.full((k, 1, batch), 1 / batch, device=device)

        def gradients(run=run, rows=rows, samples=samples, weights=weights):
            with run.context(), torch.no_grad():
                run.clients.compute(run.server.params, samples, weights, rows)

        threads = torch.get_num_threads()
        taken = {name: [] for name in ("bare loop", "central", "central, all threads", "gradients", "whole step")}
        for _ in range(12):
            taken["whole step"].append(timed(lambda: block(steps), device) / steps)
            taken["gradients"].append(timed(lambda: [gradients() for _ in range(steps)], device) / steps)
            taken["central, all threads"].append(timed(lambda: [central() for _ in range(steps)], device) / steps)
            torch.set_num_threads(1)
            taken["bare loop"].append(timed(lambda: [loop() for _ in range(steps)], device) / steps)
            taken["central"].append(timed(lambda: [central() for _ in range(steps)], device) / steps)
            torch.set_num_threads(threads)
        ms = {name: 1e3 * statistics.median(values) for name, values in taken.items()}
        whole = ms["whole step"]
        print(
            f"\n{task}: {clients} clients, k = {k}, batch {batch}, {len(sim.params):,} parameters, {device}, {sim.memory.hold}"
        )
        for name, value in ms.items():
            print(f"  {name:24s} {value:8.3f} ms")
        print(f"  client updates per second {1e3 * k / whole:12,.0f}")
        print(
            f"  over the bare loop        {ms['bare loop'] / whole:12.2f}  (bar: {'20' if device == 'cuda' else 1.6 if task == 'lenet' else 1.4})"
        )
        print(
            f"  over one centralised step {ms['central'] / whole:12.2f}  (one thread; all threads {ms['central, all threads'] / whole:.2f})"
        )
        if device == "cpu":
            print(
                f"  bookkeeping and rule      {1 - ms['gradients'] / whole:12.1%}  (bar: {'15%' if task == 'lenet' else '30%'})"
            )
        del sim, run


def together(device, steps, jobs=(1, 2, 4, 8), task="lenet", k=10, clients=3000):
    """Several seeds at once on one GPU: a thread and a stream each."""
    for count in jobs:
        sims = [simulation(task, clients, k, 100 + 4 * steps, device) for _ in range(count)]

        def go(sim, start, stop):
            with sim.run.context():
                for a in range(start, stop, 100):
                    sim.run.steps(a, min(a + 100, stop))

        ready = threading.Barrier(count + 1)

        def work(sim, ready=ready):
            go(sim, 0, 100)  # each chunk of steps ends with its log on the host, so nothing is left to wait for
            ready.wait()
            go(sim, 100, 100 + 4 * steps)

        workers = [threading.Thread(target=work, args=(sim,)) for sim in sims]
        for worker in workers:
            worker.start()
        ready.wait()

        def all_of_them(workers=workers):
            for worker in workers:
                worker.join()

        seconds = timed(all_of_them, device)
        print(f"  {task}: {count} runs at once: {1e3 * seconds / (4 * steps) / count:.3f} ms per step and run")
        del sims


def growth(device, steps, k=10):
    print("\nstep time against the number of clients (LeNet, k = 10)")
    first = None
    for clients in (100, 1_000, 10_000, 100_000):
        sim = simulation("lenet", clients, k, 60 + 6 * steps, device, hold="versions")
        with sim.run.context():
            sim.run.steps(0, 60)
            blocks = [
                timed(lambda s=s, sim=sim: sim.run.steps(s, s + steps), device)
                for s in range(60, 60 + 6 * steps, steps)
            ]
        each = 1e3 * statistics.median(blocks) / steps
        first = first or each
        print(f"  {clients:7,} clients: {each:7.3f} ms a step, {each / first:.2f} of the first; {sim.memory}")


def memory(device):
    """Peak memory of whole runs, each in a process of its own."""
    for task, clients, k, steps, bar in (("celeba", 2000, 15, 300, 6), ("lenet", 100_000, 100, 1000, 4)):
        code = (
            "import sys, time; sys.path.insert(0, 'benchmarks'); import simulator as s\n"
            f"sim = s.simulation({task!r}, {clients}, {k}, {steps}, {device!r}, hold='versions'); t = time.time()\n"
            "for _ in sim: pass\n"
            "print(sim.memory, round(time.time() - t))"
        )
        start = time.perf_counter()
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(
            f"\n{task}: {clients:,} clients, k = {k}, {steps} steps: largest process so far {peak:.2f} GiB (bar: {bar} GB), "
            f"{time.perf_counter() - start:.0f} s\n  {out.strip()}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["speed", "growth", "memory"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    chosen = parser.parse_args()
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, kernel {kasync.kernel.available()}"
        if hasattr(kasync, "kernel")
        else f"torch {torch.__version__}"
    )
    if chosen.device == "cuda":
        print(torch.cuda.get_device_name())
    if "speed" in chosen.what:
        speed(chosen.device, chosen.steps)
    if "together" in chosen.what:
        together(chosen.device, chosen.steps)
    if "growth" in chosen.what:
        growth(chosen.device, chosen.steps)
    if "memory" in chosen.what:
        memory(chosen.device)
