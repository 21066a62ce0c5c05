"""Compares the k that `kasync plan --pilot` recommends with the best k of a full sweep.

    python benchmarks/planning.py [--clients 1000] [--seeds 3] [--out planning.json]

A log-normal fleet, two tasks on the embedded digits. The pilots and the sweep use different seeds, so other data, other
starts and other arrivals: the question is whether the recommendation carries over, not whether it repeats itself. The
learning rate is the same for every k, as `kasync plan --lr RATE` does.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

from kasync import theory
from kasync.experiments.build import OpenRun
from kasync.experiments.experiment import settings_for
from kasync.theory import Pilot, race

KS = (1, 2, 5, 10, 20, 50, 100, 200)
FLEET = {"kind": "clock", "durations": {"kind": "log_normal"}, "speeds": {"kind": "log_normal"}}
CAP = 2.5  # the sweep stops a k after this many times the pilots' best time: it cannot be the best any more


@dataclass(frozen=True)
class Task:
    """What is trained, and the accuracy to be reached."""

    name: str
    rule: str
    lr: float
    labels: int
    target: float

    def run(self, clients: int, k: int, seed: int) -> OpenRun:
        given = {
            "dataset": "digits",
            "model": "mlp",
            "clients": clients,
            "k": k,
            "seed": seed,
            "partition": {"kind": "labels", "per_client": self.labels},
            "arrivals": FLEET,
        }
        return OpenRun(settings_for(self.rule, given, {"lr": self.lr}).resolved())


TASKS = (
    Task("digits, one label per client, WKAFL", "wkafl", 0.05, 1, 0.8),
    Task("digits, five labels per client, K-async SGD", "kasync_sgd", 0.02, 5, 0.8),
)


def compare(task: Task, ks: tuple[int, ...], clients: int, seeds: int) -> dict:
    """Pilots, sweep, and how the recommended k does in the sweep."""
    fitting = tuple(k for k in ks if k <= clients)

    def describe(k: int, lr: float | None, seed: int) -> OpenRun:
        return task.run(clients, k, seed)

    began = time.process_time()
    pilots = race(describe, fitting, target=task.target, seeds=range(seeds), tell=print)
    pilot_seconds = time.process_time() - began
    rows = theory.plan(fitting, lambda k, steps: describe(k, None, 0).timeline(steps))
    chosen = theory.recommend(rows, pilots, task.target)
    print(chosen.reason)

    began = time.process_time()
    limit = CAP * min(pilot.typical_seconds for pilot in pilots)
    others = range(100, 100 + seeds)
    sweep = race(describe, fitting, target=task.target, seeds=others, limit=limit, thorough=True)
    sweep_seconds = time.process_time() - began
    times = {pilot.k: pilot.typical_seconds for pilot in sweep}
    best = min(times, key=lambda k: times[k])
    show(pilots, sweep, limit)
    ratio = times[chosen.k] / times[best]
    print(
        f"{task.name}: recommended k={chosen.k}, {times[chosen.k]:.2f} s in the sweep; best k={best}, "
        f"{times[best]:.2f} s; {ratio - 1:+.1%} ({'within' if ratio <= 1.1 else 'NOT within'} 10%); "
        f"pilots took {pilot_seconds:.0f} s of processor time, the sweep {sweep_seconds:.0f} s\n"
    )
    return {
        "task": task.name,
        "target": task.target,
        "recommended": chosen.k,
        "best": best,
        "ratio": ratio,
        "reason": chosen.reason,
        "sweep": {pilot.k: list(pilot.seconds) for pilot in sweep},
        "pilots": {pilot.k: list(pilot.seconds) for pilot in pilots},
        "pilot_seconds": pilot_seconds,
        "sweep_seconds": sweep_seconds,
    }


def show(pilots: tuple[Pilot, ...], sweep: tuple[Pilot, ...], limit: float) -> None:
    """A line for each k."""
    print("   k  pilots' seconds      sweep's seconds  by seed")
    for pilot, full in zip(pilots, sweep, strict=True):
        short = f"{pilot.typical_seconds:.2f}" if pilot.reached else f"stopped at {pilot.until:.1f}"
        long = f"{full.typical_seconds:.2f}" if full.reached else f"above {limit:.1f}"
        print(f"{pilot.k:4}  {short:>16}  {long:>16}  {', '.join(f'{second:.1f}' for second in full.seconds)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", type=int, choices=range(len(TASKS)), help="only this one")
    parser.add_argument("--target", type=float, help="another accuracy to be reached")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    chosen = TASKS if given.task is None else TASKS[given.task : given.task + 1]
    told = []
    for task in chosen:
        print(f"== {task.name}, {given.clients} clients")
        wanted = replace(task, target=given.target or task.target)
        told.append(compare(wanted, KS, given.clients, given.seeds))
    if given.out:
        given.out.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
