"""Seconds to an accuracy on Flower: FedAvg and FedAvgM beside KAsync, with two of six clients ten times slower.

    python benchmarks/flower_race.py                          5 seeds in Flower's simulation engine
    python benchmarks/flower_race.py --deployment             3 seeds with a SuperLink and SuperNodes, TLS and keys
    python benchmarks/flower_race.py --equal                  all clients equally fast
    python benchmarks/flower_race.py --picture FILE           the table and the curves of what was run so far

One ClientApp for all: local SGD on the embedded digits (eight labels each), then sleep until the piece of work
has taken the client's seconds. Everything else is Flower's: its simulation engine or its processes, its records, its
messages. A run ends when the server's test accuracy has been at the target twice in a row, or out of time. Every run
is a process of its own and a line in the file `--out`; what is there already is not run again.
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
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedAvgM
from torch.nn.functional import cross_entropy

from kasync import models, rules
from kasync.data import federate, load, partition
from kasync.data.federated import scaled
from kasync.live.flower import KAsync

CLIENTS, SLOW, FACTOR, K = 6, 2, 10.0, 2
LABELS, STEPS, BATCH, RATE, WIDTH = 8, 10, 32, 0.05, 32
RULES = {  # a rule at the rate that docs/flower.md gives to a stranger, and at another
    "fedbuff, lr 1": lambda: rules.fedbuff(lr=1.0),
    "fedbuff, lr 1.5": lambda: rules.fedbuff(lr=1.5),
    "wkafl, lr .3": lambda: rules.wkafl(lr=0.3),
    "recall, lr .02": lambda: rules.recall(lr=0.02, clients=CLIENTS),
    "recall, lr .05": lambda: rules.recall(lr=0.05, clients=CLIENTS),
}
WAYS = ("FedAvg", "FedAvgM", *RULES)
SETTINGS = "KASYNC_RACE"  # of one run, as json; a deployment has it in its run config instead


class Reached(Exception):
    """The race is over."""


def settings_of(context: Context) -> dict:
    return json.loads(str(context.run_config.get("race", "")) or os.environ[SETTINGS])


def network() -> torch.nn.Module:
    return models.mlp(784, WIDTH, classes=10)


def samples(client: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    digits = load("digits")
    data = federate(digits, partition.labels(LABELS, size=(300, 500))(digits, CLIENTS, seed))
    mine = data.of(client)
    return scaled(torch.from_numpy(data.train.inputs[mine]), "unit"), torch.from_numpy(data.train.labels[mine])


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    began = time.monotonic()
    torch.set_num_threads(1)
    race, client = settings_of(context), int(context.node_config["partition-id"])
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = samples(client, race["seed"])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in torch.randint(len(labels), (STEPS, BATCH)):
        loss = cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    slow = client >= CLIENTS - SLOW and not race["equal"]
    time.sleep(max(race["seconds"] * (FACTOR if slow else 1.0) - (time.monotonic() - began), 0.0))
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@client_app.evaluate()
def warm(message: Message, context: Context) -> Message:
    samples(int(context.node_config["partition-id"]), settings_of(context)["seed"])
    time.sleep(5.0)  # so that no process does it for two
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    race = settings_of(context)
    torch.set_num_threads(1)
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
        curve.append((round(time.monotonic() - began[0], 2), accuracy))
        Path(race["result"]).write_text(json.dumps({**race, "curve": curve, "load": os.getloadavg()}))
        if all(found >= race["target"] for _, found in curve[-2:]) or curve[-1][0] > race["limit"]:
            raise Reached
        return MetricRecord({"accuracy": accuracy})

    while len(nodes := list(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.2)
    content = RecordDict({"arrays": start, "config": ConfigRecord({"server-round": 0})})
    asked = [Message(content, dst_node_id=node, message_type=MessageType.EVALUATE) for node in nodes]
    list(grid.send_and_receive(asked))  # processes, data and caches are there before the clock starts
    common = {"fraction_evaluate": 0.0, "min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    if race["way"] == "FedAvg":
        strategy = FedAvg(**common)
    elif race["way"] == "FedAvgM":
        strategy = FedAvgM(**common, server_learning_rate=1.0, server_momentum=0.5)
    else:
        strategy = KAsync(RULES[race["way"]](), k=K, min_available_nodes=CLIENTS, poll=0.1)
    with contextlib.suppress(Reached):
        strategy.start(grid, start, num_rounds=10_000, evaluate_fn=evaluate)


def simulated(race: dict) -> None:
    """One run in this process, on Flower's simulation engine."""
    os.environ[SETTINGS] = json.dumps(race)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ["RAY_ADDRESS"] = "local"  # not a cluster that happens to run here
    from flwr.simulation import run_simulation

    backend = {"client_resources": {"num_cpus": 0.3, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, CLIENTS, backend_config=backend)


def deployed(race: dict, folder: Path) -> None:
    """One run on a SuperLink and six SuperNodes of its own."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "live"))
    from loopback import Loopback, Processes, wait_for

    folder.mkdir(parents=True)
    with Processes(folder) as processes:
        world = Loopback(processes, nodes=CLIENTS)
        shutil.copy(__file__, world.app / "flower_race.py")
        about = world.app / "pyproject.toml"
        text = about.read_text().replace("digits_app.server_app:app", "flower_race:server_app")
        text = text.replace("digits_app.client_app:app", "flower_race:client_app")
        about.write_text(text.replace('timeline = ""', 'race = ""\ntimeline = ""'))
        for number in range(CLIENTS):
            world.register(number)
            world.start_node(number, f"partition-id={number} num-partitions={CLIENTS}")
        race_text = json.dumps(race).replace('"', '\\"')
        world.start_run("race", f'race="{race_text}"')
        wait_for("the end", lambda: "Finished" in processes.said("race") or done(race) or failed(processes), 3600)


def done(race: dict) -> bool:
    path = Path(race["result"])
    if not path.exists():
        return False
    curve = json.loads(path.read_text())["curve"]
    return all(found >= race["target"] for _, found in curve[-2:]) or curve[-1][0] > race["limit"]


def failed(processes) -> bool:
    if "Run failed" in processes.said("race"):
        raise SystemExit(processes.said("race")[-3000:])
    return False


def seconds_to(run: dict) -> float | None:
    """When the accuracy was at the target for the second time in a row, or None."""
    for (_, before), (when, now) in zip(run["curve"], run["curve"][1:], strict=False):
        if min(before, now) >= run["target"]:
            return when
    return None


def report(runs: list[dict], picture: str | None) -> None:
    """A table for each engine and fleet; the curves of all runs."""
    for engine, equal in sorted({(run["engine"], run["equal"]) for run in runs}):
        these = [run for run in runs if (run["engine"], run["equal"]) == (engine, equal)]
        base = {run["seed"]: seconds_to(run) for run in these if run["way"] == "FedAvg"}
        fleet = "all equally fast" if equal else f"{SLOW} of {CLIENTS} {FACTOR:.0f} times slower"
        target, load = these[0]["target"], statistics.mean(run["load"][0] for run in these)
        print(f"\n{engine}, {fleet}: seconds to {target:.0%}; load of the machine {load:.1f}, {os.cpu_count()} cores\n")
        print("| | seeds | seconds, median (all) | FedAvg's over these, by seed |\n|---|---|---|---|")
        for way in WAYS:
            found = {run["seed"]: seconds_to(run) for run in these if run["way"] == way}
            times = [when for when in found.values() if when is not None]
            if not found:
                continue
            shown = ", ".join(f"{when:.0f}" if when is not None else "never" for when in found.values())
            median = f"{statistics.median(times):.0f}" if len(times) == len(found) else "never"
            ratios = [base[s] / w for s, w in found.items() if w is not None and base.get(s) is not None]
            gained = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})" if ratios else ""
            print(f"| {way} | {len(found)} | {median} ({shown}) | {gained} |")
    if picture:
        draw(runs, Path(picture))


def draw(runs: list[dict], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = sorted(
        {(run["engine"], run["equal"]) for run in runs}, key=lambda group: (group[1], group[0] != "simulation")
    )
    figure = Figure(figsize=(6.2 * len(groups), 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    colours = dict(zip(WAYS, COLOURS, strict=True))
    for axes, (engine, equal) in zip(np.atleast_1d(figure.subplots(1, len(groups))), groups, strict=True):
        for way in WAYS:
            these = [r for r in runs if (r["engine"], r["equal"], r["way"]) == (engine, equal, way)]
            for number, run in enumerate(these):
                times, accuracies = zip(*run["curve"], strict=True)
                label = way if number == 0 else None
                line = "--" if way.endswith(("1.5", ".05")) else "-"
                axes.plot(times, accuracies, line, color=colours[way], label=label, linewidth=1.2, alpha=0.8)
        axes.axhline(runs[0]["target"], color="black", linewidth=0.6)
        fleet = "all equally fast" if equal else f"{SLOW} of {CLIENTS} clients {FACTOR:.0f} times slower"
        axes.set(xlabel="seconds", ylabel="test accuracy", ylim=(0, 1), title=f"{engine}, {fleet}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


COLOURS = ("#333333", "#8a8a8a", "#1b7f5c", "#1b7f5c", "#c7761b", "#6a5acd", "#6a5acd")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployment", action="store_true")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--seconds", type=float, help="of a fast client's piece of work; 1, or 15 in deployment")
    parser.add_argument("--target", type=float, default=0.7)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a run is out of time")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), help=", ".join(WAYS))
    parser.add_argument("--out", default="flower-race.jsonl")
    parser.add_argument("--picture")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        race = json.loads(given.one)
        deployed(race, Path(race["result"]).with_suffix("")) if race["engine"] == "deployment" else simulated(race)
        raise SystemExit
    out = Path(given.out)
    runs = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    engine = "deployment" if given.deployment else "simulation"
    for seed in range(0 if given.picture else given.seeds or (3 if given.deployment else 5)):
        for way in given.ways:
            if any((r["engine"], r["equal"], r["way"], r["seed"]) == (engine, given.equal, way, seed) for r in runs):
                continue
            result = Path(f"{out}.{os.getpid()}.result").absolute()
            race = {"engine": engine, "equal": given.equal, "way": way, "seed": seed, "target": given.target}
            race |= {"seconds": given.seconds or (15.0 if given.deployment else 1.0), "limit": given.limit}
            race |= {"result": str(result)}
            subprocess.run([sys.executable, __file__, "--one", json.dumps(race)], check=False, capture_output=True)
            run = {name: value for name, value in json.loads(result.read_text()).items() if name != "result"}
            result.unlink()
            shutil.rmtree(result.with_suffix(""), ignore_errors=True)
            runs.append(run)
            with open(out, "a") as file:
                file.write(json.dumps(run) + "\n")
            print(f"{engine} {way}, seed {seed}: {seconds_to(run)} s; load {os.getloadavg()[0]:.1f}", flush=True)
    report(runs, given.picture)
