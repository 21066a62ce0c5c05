"""Seconds to an accuracy on Flower: FedAvg and FedAvgM beside KAsync, with two of six clients ten times slower.

    python benchmarks/flower_race.py                          5 seeds in Flower's simulation engine
    python benchmarks/flower_race.py --deployment             3 seeds with a SuperLink and SuperNodes, TLS and keys
    python benchmarks/flower_race.py --equal                  all clients equally fast
    python benchmarks/flower_race.py --picture FILE           the table and the curves of what was run so far

One ClientApp for all: local SGD on the embedded digits (eight labels each), then sleep until the piece of work
has taken the client's seconds. Everything else is Flower's: its simulation engine or its processes, its records, its
messages. A run ends when the server's test accuracy has been at the target twice in a row, or out of time. The runs
follow one another on the same warm federation, in an order that turns with the seed; each is a line in the file
`--out`, and what is there already is not run again.
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
LABELS, BATCH, RATE, WIDTH = 8, 32, 0.05, 32
SECONDS = {"simulation": 1.0, "deployment": 4.0}  # of a fast client's piece of work
STEPS = {"simulation": 10, "deployment": 30}  # of SGD; in a deployment every message starts a process
RULES = {  # a rule at the rate that docs/flower.md gives to a stranger, and at another
    "fedbuff, lr 1": lambda: rules.fedbuff(lr=1.0),
    "fedbuff, lr 1.5": lambda: rules.fedbuff(lr=1.5),
    "wkafl, lr .3": lambda: rules.wkafl(lr=0.3),
    "wkafl, lr .6": lambda: rules.wkafl(lr=0.6),
    "recall, lr .02": lambda: rules.recall(lr=0.02, clients=CLIENTS),
    "recall, lr .05": lambda: rules.recall(lr=0.05, clients=CLIENTS),
}
WAYS = ("FedAvg", "FedAvgM", *RULES)
SETTINGS = "KASYNC_RACE"  # a file of the runs to be made; a deployment has its name in its run config instead


class Reached(Exception):
    """The race is over."""


def network() -> torch.nn.Module:
    return models.mlp(784, WIDTH, classes=10)


def samples(client: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    digits = load("digits")
    data = federate(digits, partition.labels(LABELS, size=(300, 500))(digits, CLIENTS, seed))
    mine = data.of(client)
    return scaled(torch.from_numpy(data.train.inputs[mine]), "unit"), torch.from_numpy(data.train.labels[mine])


client_app = ClientApp()


def trained(message: Message, client: int) -> tuple[ArrayRecord, MetricRecord]:
    """Local SGD, written out: importing torch.optim takes longer than the steps."""
    torch.set_num_threads(1)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = samples(client, int(message.content["config"]["seed"]))
    params = list(model.parameters())
    for batch in torch.randint(len(labels), (int(message.content["config"]["steps"]), BATCH)):
        loss = cross_entropy(model(inputs[batch]), labels[batch])
        with torch.no_grad():
            for param, gradient in zip(params, torch.autograd.grad(loss, params), strict=True):
                param.sub_(gradient, alpha=RATE)
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(labels)})
    return ArrayRecord(model.state_dict()), metrics


@client_app.train()
def train(message: Message, context: Context) -> Message:
    began = time.monotonic()
    config, client = message.content["config"], int(context.node_config["partition-id"])
    arrays, metrics = trained(message, client)
    slow = client >= CLIENTS - SLOW and not config["equal"]
    time.sleep(max(float(config["seconds"]) * (FACTOR if slow else 1.0) - (time.monotonic() - began), 0.0))
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client_app.evaluate()
def warm(message: Message, context: Context) -> Message:
    trained(message, int(context.node_config["partition-id"]))
    time.sleep(5.0)  # so that no process does it for two
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    races = json.loads(Path(str(context.run_config.get("races", "")) or os.environ[SETTINGS]).read_text())
    torch.set_num_threads(1)
    while len(list(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.2)
    for race in races["runs"]:
        curve = raced(grid, race)
        with open(races["out"], "a") as file:
            machine = {"load": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}
            file.write(json.dumps({**race, "curve": curve, **machine}) + "\n")


def raced(grid: Grid, race: dict) -> list[tuple[float, float]]:
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

    config = {name: race[name] for name in ("seed", "steps", "seconds", "equal")}
    content = RecordDict({"arrays": start, "config": ConfigRecord(config)})
    everybody = list(grid.get_node_ids())
    asked = [Message(content, dst_node_id=node, message_type=MessageType.EVALUATE) for node in everybody]
    list(grid.send_and_receive(asked))  # nobody works any more, and processes, data and caches are warm
    common = {"fraction_evaluate": 0.0, "min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    if race["way"] == "FedAvg":
        strategy = FedAvg(**common)
    elif race["way"] == "FedAvgM":
        strategy = FedAvgM(**common, server_learning_rate=1.0, server_momentum=0.5)
    else:
        strategy = KAsync(RULES[race["way"]](), k=K, min_available_nodes=CLIENTS, poll=0.1)
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

    backend = {"client_resources": {"num_cpus": 0.3, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, CLIENTS, backend_config=backend)


def deployed(races: Path, folder: Path) -> None:
    """Runs on a SuperLink and six SuperNodes of their own."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "live"))
    from loopback import Loopback, Processes, wait_for

    folder.mkdir(parents=True)
    with Processes(folder) as processes:
        world = Loopback(processes, nodes=CLIENTS)
        shutil.copy(__file__, world.app / "flower_race.py")
        about = world.app / "pyproject.toml"
        text = about.read_text().replace("digits_app.server_app:app", "flower_race:server_app")
        text = text.replace("digits_app.client_app:app", "flower_race:client_app")
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
    for engine, equal in sorted({(run["engine"], run["equal"]) for run in runs}):
        these = [run for run in runs if (run["engine"], run["equal"]) == (engine, equal)]
        base = {run["seed"]: seconds_to(run) for run in these if run["way"] == "FedAvg"}
        fleet = "all equally fast" if equal else f"{SLOW} of {CLIENTS} {FACTOR:.0f} times slower"
        target, load, cores = these[0]["target"], statistics.mean(run["load"] for run in these), these[0]["cores"]
        print(f"\n{engine}, {fleet}: seconds to {target:.0%}; load of the machine {load:.1f}, {cores} cores\n")
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
                line = "--" if way.endswith(("1.5", ".6", ".05")) else "-"
                axes.plot(times, accuracies, line, color=colours[way], label=label, linewidth=1.2, alpha=0.8)
        axes.axhline(runs[0]["target"], color="black", linewidth=0.6)
        fleet = "all equally fast" if equal else f"{SLOW} of {CLIENTS} clients {FACTOR:.0f} times slower"
        axes.set(xlabel="seconds", ylabel="test accuracy", ylim=(0, 1), title=f"{engine}, {fleet}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


COLOURS = ("#333333", "#8a8a8a", "#1b7f5c", "#1b7f5c", "#c7761b", "#c7761b", "#6a5acd", "#6a5acd")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployment", action="store_true")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="*", help="their numbers; 0 to 4, or 0 to 2 in deployment")
    parser.add_argument("--seconds", type=float, help="of a fast client's piece of work; 1, or 4 in deployment")
    parser.add_argument("--target", type=float, default=0.7)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a run is out of time")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), help=", ".join(WAYS))
    parser.add_argument("--out", default="flower-race.jsonl")
    parser.add_argument("--picture")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        with tempfile.TemporaryDirectory() as folder:
            races = Path(folder) / "races.json"
            races.write_text(given.one)
            deployed(races, Path(folder) / "race") if given.deployment else simulated(races)
        raise SystemExit
    out, engine = Path(given.out).absolute(), "deployment" if given.deployment else "simulation"
    common = {"engine": engine, "equal": given.equal, "target": given.target}
    common |= {"seconds": given.seconds or SECONDS[engine], "steps": STEPS[engine]}
    wanted = []
    for seed in () if given.picture else given.seeds or range(3 if given.deployment else 5):
        turn = seed % len(given.ways)
        wanted += [{**common, "seed": seed, "way": way} for way in given.ways[turn:] + given.ways[:turn]]
    wanted = [race for race in wanted if not any(race.items() <= run.items() for run in read(out))]
    if wanted:
        wanted = [{**race, "limit": given.limit} for race in wanted]
        command = [sys.executable, __file__, "--one", json.dumps({"runs": wanted, "out": str(out)})]
        ended = subprocess.run([*command, *["--deployment"] * given.deployment], capture_output=True, text=True)
        if not any(wanted[-1].items() <= run.items() for run in read(out)):
            raise SystemExit(f"the runs did not end: {(ended.stdout + ended.stderr)[-3000:]}")
    runs = read(out)
    report(runs, given.picture)
