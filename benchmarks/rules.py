"""What does a rule cost, beside its plain formulas and beside one copy of the rows it is given?

    python benchmarks/rules.py [rule ...]

For every rule, D and K: the whole call of the rule (checks, both passes, the update), the formulas as a careful PyTorch
user writes them (benchmarks/plain_rules.py) and gradients.clone(), in turn, each time on other inputs than the last so
that no cache flatters. Medians. Both ways must arrive at the same parameters, or the benchmark stops. On a machine that
others use as well take --threads 1: threads wait for each other.
"""

import argparse
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plain_rules
import torch
from plain_rules import LR, Given

from kasync import Arrivals, ServerState, kernel, rules

SIZES = [(62_006, 10), (62_006, 20), (582_026, 10), (582_026, 20)]  # (D, K): the paper's two networks
INPUTS = 4  # deliveries that take turns
CLIENTS_PER_K = 3  # clients of rules with a table, for each arrival
BAR = ("wkafl", 582_026, 10)
LEAST_SPEEDUP, MOST_COPIES = 3.0, 2.5

SETTINGS: dict[str, dict[str, Any]] = {
    "gsgm": {"momentum": 0.5},
    "fedasync": {"mixing": 0.6},
    "ringmaster": {"max_staleness": 30},
    "delay_adaptive": {"concurrency": 10.0},
    "krum": {"byzantine": 2},
    "centered_clip": {"radius": 100.0},
}


@dataclass(frozen=True)
class Cost:
    """Medians, in seconds."""

    rule: float
    plain: float
    copy: float

    @property
    def speedup(self) -> float:
        return self.plain / self.rule

    @property
    def copies(self) -> float:
        return self.rule / self.copy


def deliveries(columns: int, k: int) -> list[Given]:
    """Gradients that agree in part, staleness up to 50, clients in turn."""
    draw = torch.Generator().manual_seed(columns + k)
    common = torch.randn(columns, generator=draw)
    return [
        Given(
            gradients=common + torch.randn(k, columns, generator=draw),
            staleness=torch.randint(0, 50, (k,), generator=draw).float(),
            losses=torch.rand(k, generator=draw) + 1.0,
            sizes=torch.randint(4, 16, (k,), generator=draw).float(),
            clients=torch.arange(k) + k * (turn % CLIENTS_PER_K),
            server_gradient=common,
            everyone=CLIENTS_PER_K * k + 1,
        )
        for turn in range(INPUTS)
    ]


def built(name: str, given: Given) -> Any:
    """The rule with the settings its plain formulas have."""
    offered: dict[str, Any] = {
        "lr": LR,
        "clients": given.everyone,
        "server_gradient": lambda params: given.server_gradient,
    }
    wanted = rules.RULES[name].__signature__.parameters  # type: ignore[attr-defined]
    return rules.build(
        name, **{key: value for key, value in offered.items() if key in wanted}, **SETTINGS.get(name, {})
    )


def measured(name: str, given: list[Given], repetitions: int) -> Cost:
    """The medians of the rule, its plain formulas and a copy of the rows, taken in turn."""
    arrivals = [Arrivals(each.gradients, each.staleness, each.losses, each.sizes, each.clients) for each in given]
    rule, formula = built(name, given[0]), getattr(plain_rules, name)
    params = torch.zeros(given[0].gradients.shape[1])
    server, memory = rule.prepared(ServerState.initial(params)), {}

    def step(turn: int) -> None:
        nonlocal server
        server, _ = rule.advance(server, arrivals[turn])

    def plainly(turn: int) -> None:
        nonlocal params
        params = formula(params, memory, given[turn])

    def copied(turn: int) -> None:
        given[turn].gradients.clone()

    seconds: dict[Callable[[int], None], list[float]] = {step: [], plainly: [], copied: []}
    for repetition in range(-INPUTS, repetitions):
        for shift, call in enumerate(seconds):
            turn = (repetition if call is not copied else repetition + shift) % INPUTS
            start = time.perf_counter()
            call(turn)
            if repetition >= 0:
                seconds[call].append(time.perf_counter() - start)
    apart = (server.params - params).norm() / params.norm().clamp(min=1e-30)
    if apart > 1e-3:
        raise SystemExit(f"{name}: the rule and its plain formulas are {apart:.1g} apart, so the times compare nothing")
    return Cost(*(statistics.median(times) for times in seconds.values()))


def machine() -> str:
    """The processor and what computes on it, in words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor() or platform.machine()
    code = f"compiled kernel, {kernel.instructions()} instructions" if kernel.available() else "torch, no kernel built"
    threads = torch.get_num_threads()
    return f"{processor}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}; {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", choices=[[], *rules.RULES], metavar="rule", help="all of them by default")
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    gc.disable()
    print(machine())
    if os.getloadavg()[0] > 0.5:
        print(f"others are computing here (load {os.getloadavg()[0]:.1f}): these times are not worth quoting")
    print(f"{'rule':18}{'D':>9}{'K':>4}{'rule ms':>10}{'plain ms':>10}{'copy ms':>9}{'times faster':>14}{'copies':>8}")
    bar = None
    for columns, k in SIZES:
        given = deliveries(columns, k)
        for name in chosen.rules or rules.RULES:
            cost = measured(name, given, chosen.repetitions)
            times = f"{1e3 * cost.rule:10.2f}{1e3 * cost.plain:10.2f}{1e3 * cost.copy:9.2f}"
            print(f"{name:18}{columns:9,}{k:4}{times}{cost.speedup:14.1f}{cost.copies:8.2f}", flush=True)
            if (name, columns, k) == BAR:
                bar = cost
            gc.collect()
    if bar:
        met = bar.speedup >= LEAST_SPEEDUP and bar.copies < MOST_COPIES
        asked = f"at least {LEAST_SPEEDUP:g} times faster than plain and under {MOST_COPIES:g} copies"
        found = f"{bar.speedup:.1f} times, {bar.copies:.2f} copies"
        print(f"WKAFL, D = {BAR[1]:,}, K = {BAR[2]}: {asked} is {'met' if met else 'NOT met'}: {found}")


if __name__ == "__main__":
    main()
