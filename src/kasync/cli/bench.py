"""kasync bench: the speed of this machine."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, Device


def bench(
    model: Annotated[str, typer.Option(help="lenet, emnist_cnn, celeba_cnn, mlp or logistic.")] = "lenet",
    clients: Annotated[int, typer.Option(help="How many clients there are.")] = 1000,
    k: Annotated[int, typer.Option("-k", "--k", help="Deliveries per step.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Samples per gradient.")] = 8,
    steps: Annotated[int, typer.Option(help="Steps to time.")] = 200,
    rule: Annotated[str, typer.Option(help="The rule.")] = "wkafl",
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Time the simulator on random pixels, beside the floor: one forward and backward pass over the same samples.

    The repository's benchmarks/ measure more, against other libraries; this one needs nothing but the package.

    Example: `kasync bench --model lenet --clients 3000 -k 10 --device cuda`
    """
    from kasync.experiments import timing
    from kasync.experiments.experiment import settings_for

    given = {"model": model, "clients": clients, "k": k, "steps": steps, "device": device}
    settings = settings_for(rule, {**given, "work": {"kind": "gradient", "batch_size": batch_size}}, {}).resolved()
    began = time.perf_counter()
    show.note(f"timing {steps} steps of {model} on {device}, {clients} clients, k = {k}", as_json)
    measured: dict[str, Any] = timing.timed(settings)
    show.rows([{**given, "rule": rule, **measured, "in_all_s": round(time.perf_counter() - began, 1)}], as_json)
