"""Seconds to an accuracy on Flower: FedAvg and FedAvgM beside KAsync, with two of six clients ten times slower.

    python benchmarks/flower_race.py                          5 seeds in Flower's simulation engine
    python benchmarks/flower_race.py --deployment             3 seeds with a SuperLink and SuperNodes, TLS and keys
    python benchmarks/flower_race.py --equal                  all clients equally fast
    python benchmarks/flower_race.py --tune                   the rates of which TUNED has the fastest
    python benchmarks/flower_race.py --picture FILE           the table and the curves of what was run so far

One ClientApp for all (flower_race_client.py): local SGD on the embedded digits (eight labels each), then sleep until
the piece of work has taken the client's seconds. Everything else is Flower's: its simulation engine or its processes,
its records, its messages. A run ends when the server's test accuracy has been at the target twice in a row, or out of
time. The runs follow one another on the same warm federation, in an order that turns with the seed; each is a line in
the file `--out`, and what is there already is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from flower_race_client import client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedAvgM

from kasync import models, rules
from kasync.data import federate, load, partition
from kasync.data.federated import scaled
from kasync.live.flower import KAsync

CLIENTS, SLOW, FACTOR, K = 6, 2, 10.0, 2
LABELS, BATCH, RATE, STEPS, WIDTH = 8, 32, 0.05, 20, 32
SECONDS = {"simulation": 1.0, "deployment": 4.0}  # of a fast client's piece of work
RULES = {
    "fedbuff": lambda lr: rules.fedbuff(lr=lr),
    "wkafl": lambda lr: rules.wkafl(lr=lr),
    "recall": lambda lr: rules.recall(lr=lr, clients=CLIENTS),
}
DEFAULT = {"fedbuff": 1.0, "wkafl": 0.3, "recall": 0.02}  # what docs/flower.md gives to a stranger
TUNED = {"FedAvgM": 0.7, "fedbuff": 1.0, "wkafl": 0.6, "recall": 0.1}  # fastest of TRIED with the seeds of --tune
TRIED = {  # a momentum, or a server's rate
    "FedAvgM": (0.3, 0.5, 0.7, 0.9),
    "fedbuff": (0.7, 1.0, 1.5, 2.0),
    "wkafl": (0.3, 0.6, 1.0, 1.5),
    "recall": (0.02, 0.05, 0.1, 0.2, 0.4),
}
TUNING = (100, 101)  # seeds that no race has
SETTINGS = "KASYNC_RACE"  # a file of the runs to be made; a deployment has its name in its run config instead
Way = tuple[str, float]  # a strategy or rule, and its rate


def ways(tune: bool) -> list[Way]:
    """The strategies of a race, each once."""
    if tune:
        return [(name, rate) for name, rates in TRIED.items() for rate in rates]
    found = [("FedAvg", 1.0), ("FedAvgM", TUNED["FedAvgM"])]
    return found + [(name, rate) for name in RULES for rate in dict.fromkeys((DEFAULT[name], TUNED[name]))]


def label(way: Way) -> str:
    name, rate = way
    if name == "FedAvg":
        return name
    origin = [said for said, rates in (("default", DEFAULT), ("tuned", TUNED)) if rates.get(name) == rate]
    return f"{name}, {'momentum' if name == 'FedAvgM' else 'lr'} {rate:g}" + (
        f" ({', '.join(origin)})" if origin else ""
    )


class Reached(Exception):
    """The race is over."""


def network() -> torch.nn.Module:
    return models.mlp(784, WIDTH, classes=10)


def write_samples(folder: Path, seed: int) -> None:
    """What the clients have, in a file for each."""
    digits = load("digits")
    data = federate(digits, partition.labels(LABELS, size=(300, 500))(digits, CLIENTS, seed))
    for client in range(CLIENTS):
        mine = data.of(client)
        inputs = scaled(torch.from_numpy(data.train.inputs[mine]), "unit").flatten(1).numpy()
        np.savez(folder / f"samples-{seed}-{client}.npz", inputs=inputs, labels=data.train.labels[mine])


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    races = json.loads(Path(str(context.run_config.get("races", "")) or os.environ[SETTINGS]).read_text())
    torch.set_num_threads(1)
    while len(list(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.2)
    with tempfile.TemporaryDirectory() as folder:
        for number, race in enumerate(races["runs"]):
            write_samples(Path(folder), race["seed"])
            curve = raced(grid, race, {"folder": folder, "race": number})
            (Path(folder) / f"over-{number}").touch()
            with open(races["out"], "a") as file:
                machine = {"load": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}
                file.write(json.dumps({**race, "curve": curve, **machine}) + "\n")


def raced(grid: Grid, race: dict, places: dict) -> list[tuple[float, float]]:
    """One strategy from the untrained model to the target: its accuracy over the seconds."""
    torch.manual_seed(race["seed"])
    start = ArrayRecord(network().state_dict())
    held_out = load("digits").test
    inputs, labels = scaled(torch.from_numpy(held_out.inputs.copy()), "unit"), torch.from_numpy(held_out.labels.copy())
    model, curve, began = network(), [], [0.0]

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            accuracy = float((model(inputs).argmax(1) == labels).float().mean())
        if number == 0:
            began[0] = time.monotonic()
        curve.append((round(time.monotonic() - began[0], 2), round(accuracy, 4)))
        if all(found >= race["target"] for _, found in curve[-2:]) or curve[-1][0] > race["limit"]:
            raise Reached
        return MetricRecord({"accuracy": accuracy})

    config = {name: race[name] for name in ("seed", "steps", "seconds")}
    config |= {"fast": CLIENTS if race["equal"] else CLIENTS - SLOW, "factor": FACTOR}
    config |= {"batch": BATCH, "rate": RATE, **places}
    content = RecordDict({"arrays": start, "config": ConfigRecord(config)})
    everybody = list(grid.get_node_ids())
    asked = [Message(content, dst_node_id=node, message_type=MessageType.EVALUATE) for node in everybody]
    list(grid.send_and_receive(asked))  # nobody works any more, and processes, data and caches are warm
    common = {"fraction_evaluate": 0.0, "min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    name, rate = race["strategy"], race["rate"]
    if name == "FedAvg":
        strategy = FedAvg(**common)
    elif name == "FedAvgM":
        strategy = FedAvgM(**common, server_learning_rate=1.0, server_momentum=rate)
    else:
        strategy = KAsync(RULES[name](rate), k=K, min_available_nodes=CLIENTS, poll=0.1)
    with contextlib.suppress(Reached):
        strategy.start(grid, start, 10_000, train_config=ConfigRecord(config), evaluate_fn=evaluate)
    return curve


def simulated(races: Path) -> None:
    """Runs in this process, on Flower's simulation engine."""
    os.environ[SETTINGS] = str(races)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ["RAY_ADDRESS"] = "local"  # not a cluster that happens to run here
    from flwr.simulation import run_simulation

    os.environ["OMP_NUM_THREADS"] = "1"
    backend = {"client_resources": {"num_cpus": 0.3, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, CLIENTS, backend_config=backend)


def deployed(races: Path, folder: Path) -> None:
    """Runs on a SuperLink and six SuperNodes of their own."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "live"))
    from loopback import Loopback, Processes, wait_for

    folder.mkdir(parents=True)
    with Processes(folder) as processes:
        world = Loopback(processes, nodes=CLIENTS)
        for file in (Path(__file__), Path(__file__).with_name("flower_race_client.py")):
            shutil.copy(file, world.app / file.name)
        about = world.app / "pyproject.toml"
        text = about.read_text().replace("digits_app.server_app:app", "flower_race:server_app")
        text = text.replace("digits_app.client_app:app", "flower_race_client:client_app")
        about.write_text(text.replace('timeline = ""', 'races = ""\ntimeline = ""'))
        for number in range(CLIENTS):
            world.register(number)
            world.start_node(number, f"partition-id={number} num-partitions={CLIENTS}")
        command = world.start_run("race", f"races='{races}'")
        wait_for("the end", lambda: command.poll() is not None, 7200)
        print(processes.said("race")[-3000:])


def read(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def seconds_to(run: dict) -> float | None:
    """When the accuracy was at the target for the second time in a row, or None."""
    for (_, before), (when, now) in zip(run["curve"], run["curve"][1:], strict=False):
        if min(before, now) >= run["target"]:
            return when
    return None


def report(runs: list[dict], picture: str | None) -> None:
    """A table for each engine and fleet; the curves of all runs."""
    for engine, equal in groups(runs):
        these = [run for run in runs if (run["engine"], run["equal"]) == (engine, equal)]
        base = {run["seed"]: seconds_to(run) for run in these if run["strategy"] == "FedAvg"}
        fleet = "all equally fast" if equal else f"{SLOW} of {CLIENTS} {FACTOR:.0f} times slower"
        target, load, cores = these[0]["target"], statistics.mean(run["load"] for run in these), these[0]["cores"]
        print(f"\n{engine}, {fleet}: seconds to {target:.0%}; load of the machine {load:.1f}, {cores} cores\n")
        print("| | seeds | seconds, median (all) | FedAvg's over these, by seed |\n|---|---|---|---|")
        for way in in_order(these):
            found = {run["seed"]: seconds_to(run) for run in these if (run["strategy"], run["rate"]) == way}
            found = dict(sorted(found.items()))
            times = [when for when in found.values() if when is not None]
            shown = ", ".join(f"{when:.3g}" if when is not None else "never" for when in found.values())
            median = f"{statistics.median(times):.3g}" if len(times) == len(found) else "never"
            ratios = [base[s] / w for s, w in found.items() if w is not None and base.get(s) is not None]
            gained = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})" if ratios else ""
            print(f"| {label(way)} | {len(found)} | {median} ({shown}) | {gained} |")
    if picture:
        draw(runs, Path(picture))


def groups(runs: list[dict]) -> list[tuple[str, bool]]:
    """Engine, and whether all are equally fast: the simulation first."""
    found = {(run["engine"], run["equal"]) for run in runs}
    return sorted(found, key=lambda group: (group[1], group[0] != "simulation"))


def in_order(runs: list[dict]) -> list[Way]:
    names = ["FedAvg", "FedAvgM", *RULES]
    return sorted({(run["strategy"], run["rate"]) for run in runs}, key=lambda way: (names.index(way[0]), way[1]))


def draw(runs: list[dict], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = groups(runs)
    figure = Figure(figsize=(4.4 * len(shown), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (engine, equal) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown, strict=True):
        group = [run for run in runs if (run["engine"], run["equal"]) == (engine, equal)]
        for way in in_order(group):
            for number, run in enumerate(run for run in group if (run["strategy"], run["rate"]) == way):
                times, accuracies = zip(*run["curve"][1:], strict=True)
                line = "-" if DEFAULT.get(way[0], way[1]) == way[1] else "--"
                said = label(way) if number == 0 else None
                axes.plot(times, accuracies, line, color=COLOURS[way[0]], label=said, linewidth=1.2, alpha=0.8)
        axes.axhline(runs[0]["target"], color="black", linewidth=0.6)
        fleet = "all equally fast" if equal else f"{SLOW} of {CLIENTS} clients {FACTOR:.0f} times slower"
        axes.set(xlabel="seconds", ylabel="test accuracy", ylim=(0, 1), title=f"{engine}, {fleet}", xscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    lines, names = axes.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)


COLOURS = {"FedAvg": "#333333", "FedAvgM": "#8a8a8a", "fedbuff": "#1b7f5c", "wkafl": "#c7761b", "recall": "#6a5acd"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployment", action="store_true")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--tune", action="store_true", help="every rate that was tried, with seeds of its own")
    parser.add_argument("--seeds", type=int, nargs="*", help="their numbers; 0 to 4, or 0 to 2 in deployment")
    parser.add_argument("--seconds", type=float, help="of a fast client's piece of work; 1, or 4 in deployment")
    parser.add_argument("--target", type=float, default=0.7)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a run is out of time")
    parser.add_argument("--only", nargs="*", help="of FedAvg, FedAvgM, " + ", ".join(RULES))
    parser.add_argument("--out", help="flower-race.jsonl, or flower-race-tuning.jsonl")
    parser.add_argument("--picture")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        with tempfile.TemporaryDirectory() as folder:
            races = Path(folder) / "races.json"
            races.write_text(given.one)
            deployed(races, Path(folder) / "race") if given.deployment else simulated(races)
        raise SystemExit
    out = Path(given.out or f"flower-race{'-tuning' * given.tune}.jsonl").absolute()
    engine = "deployment" if given.deployment else "simulation"
    common = {"engine": engine, "equal": given.equal, "target": given.target}
    common |= {"seconds": given.seconds or SECONDS[engine], "steps": STEPS}
    taking_part = [way for way in ways(given.tune) if not given.only or way[0] in given.only]
    seeds = given.seeds or (TUNING if given.tune else range(3 if given.deployment else 5))
    wanted = []
    for seed in () if given.picture else seeds:
        turn = seed % len(taking_part)
        for name, rate in taking_part[turn:] + taking_part[:turn]:
            wanted.append({**common, "seed": seed, "strategy": name, "rate": rate})
    wanted = [race for race in wanted if not any(race.items() <= run.items() for run in read(out))]
    if wanted:
        wanted = [{**race, "limit": given.limit} for race in wanted]
        command = [sys.executable, __file__, "--one", json.dumps({"runs": wanted, "out": str(out)})]
        ended = subprocess.run([*command, *["--deployment"] * given.deployment], capture_output=True, text=True)
        if not any(wanted[-1].items() <= run.items() for run in read(out)):
            raise SystemExit(f"the runs did not end: {(ended.stdout + ended.stderr)[-3000:]}")
    runs = read(out)
    report(runs, given.picture)
