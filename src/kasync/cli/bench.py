"""kasync bench: the speed of this machine."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, takes

SHAPES = {"lenet": (3, 32, 32), "celeba_cnn": (3, 84, 84)}  # the others take 1x28x28
SAMPLES = 1000
CLASSES = 10
DEFAULTS = {"model": "lenet", "clients": 1000, "k": 10, "steps": 200, "device": "cpu"}


@takes("model", "clients", "k", "batch_size", "steps", "device")
def bench(
    given: dict[str, Any],
    rule: Annotated[str, typer.Option(help="What the server does: see kasync rules, or module:name.")] = "wkafl",
    as_json: AsJson = False,
) -> None:
    """Time the simulator on random pixels, beside the floor: one forward and backward pass over the same samples.

    Without options: lenet, 1,000 clients, k = 10, 200 steps, on the CPU. The repository's benchmarks/ measure more,
    against other libraries; this one needs nothing but the package.

    Example: `kasync bench --model lenet --clients 3000 -k 10 --device cuda`
    """
    from kasync.experiments.experiment import settings_for

    given = {**DEFAULTS, **given}
    settings = settings_for(rule, given, {}).resolved()
    began = time.perf_counter()
    where = f"{settings.model} on {settings.device}, {settings.clients} clients, k = {settings.k}"
    show.note(f"timing {settings.steps} steps of {where}", as_json)
    measured: dict[str, Any] = timed(settings)
    row = {name: value for name, value in given.items() if name != "work"}
    show.rows([{**row, "rule": rule, **measured, "in_all_s": round(time.perf_counter() - began, 1)}], as_json)


def timed(settings: Any) -> dict[str, Any]:
    """Milliseconds per step once it is warm, client updates per second, and the floor, on random pixels.

    The records of a piece of steps come together when all of them are computed, so the clock is read between pieces.
    Steps are timed far from the end of the timeline: what is never delivered any more is not computed.
    """
    import numpy as np

    from kasync import models, simulate
    from kasync.data.federated import from_arrays
    from kasync.experiments.build import rule_of, timeline_of, work_of
    from kasync.simulator.plan import CHUNK

    rng = np.random.default_rng(settings.seed)
    shape = SHAPES.get(settings.model, (1, 28, 28))
    inputs = rng.integers(0, 256, (SAMPLES, *shape), dtype=np.uint8)  # [N, C, H, W]
    labels = rng.integers(0, CLASSES, SAMPLES)
    parts = [rng.integers(0, SAMPLES, 20) for _ in range(settings.clients)]
    data = from_arrays(inputs, labels, inputs[:10], labels[:10], parts, CLASSES)
    model = models.build(settings.model, shape, settings.seed, CLASSES)
    tail = 5 * settings.clients // settings.k
    whole = replace(settings, steps=CHUNK + settings.steps + tail)
    simulation = simulate(
        model,
        data,
        rule_of(settings, None),
        timeline_of(whole),
        work_of(settings),
        device=settings.device,
        evaluate_every=whole.steps,
    )
    ends = {}  # step -> when the piece that ends with it was there; the first one is the warm-up
    for record in simulation:
        if record.step == simulation.done:
            ends[record.step] = time.perf_counter()
            if record.step >= CHUNK + settings.steps:
                break
    first, last = min(ends), max(ends)
    pace = (ends[last] - ends[first]) / max(1, last - first)
    batch = settings.k * int(settings.work.settings["batch_size"])
    floor = _floor(settings, shape, batch)
    return {
        "ms_per_step": round(1000 * pace, 3),
        "updates_per_second": round(settings.k / max(pace, 1e-9)),
        "floor_ms": round(1000 * floor, 3),
        "times_floor": round(pace / floor, 2),
    }


def _floor(settings: Any, shape: tuple[int, ...], batch: int, tries: int = 20) -> float:
    """Seconds of one forward and backward pass over `batch` samples, the median of some."""
    import torch
    from torch.nn import functional

    from kasync import models

    model = models.build(settings.model, shape, settings.seed, CLASSES).to(settings.device)
    inputs = torch.rand(batch, *shape, device=settings.device)
    labels = torch.zeros(batch, dtype=torch.int64, device=settings.device)
    seconds = []
    for _ in range(tries):
        began = time.perf_counter()
        model.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        if settings.device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
