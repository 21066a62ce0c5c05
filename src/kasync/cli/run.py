"""kasync run: one run, one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import (
    Address,
    Arrivals,
    AsJson,
    Engine,
    Faults,
    Loss,
    Metric,
    Quiet,
    TraceOption,
    Track,
    Work,
    Workers,
    choice,
    of_the_run,
    own,
    pairs,
)
from kasync.errors import UserError

FileArgument = Annotated[Path | None, typer.Argument(help="TOML of settings, or the run.toml of an earlier run.")]


def run(
    file: FileArgument = None,
    rule: Annotated[str | None, typer.Option(help="What the server does: see kasync rules.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Which data: see kasync data ls, or module:name.")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients there are.")] = None,
    k: Annotated[int | None, typer.Option("-k", "--k", help="Deliveries per step.")] = None,
    steps: Annotated[int | None, typer.Option(help="Server steps.")] = None,
    lr: Annotated[float | None, typer.Option(help="The rule's learning rate.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the rule or of the run, name=value; repeatable.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="Who holds what: labels:per_client=1, dirichlet:alpha=0.5 ...")
    ] = None,
    arrivals: Arrivals = None,
    trace: TraceOption = None,
    faults: Faults = None,
    timeline: Annotated[Path | None, typer.Option(help="Replay a saved timeline instead.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per gradient.")] = None,
    work: Work = None,
    model: Annotated[str | None, typer.Option(help="The network: a name, or module:name for your own.")] = None,
    loss: Loss = None,
    metric: Metric = None,
    scale: Annotated[str | None, typer.Option(help="Pixels: unit, raw or symmetric.")] = None,
    staleness: Annotated[str | None, typer.Option(help="true, published-code or none.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear, cosine or step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="plain, momentum, adam, adagrad, rmsprop, muon, none.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between evaluations.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides all that is random.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1.")] = None,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
    root: Annotated[str | None, typer.Option(help="Folder of the data; without it $KASYNC_DATA.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run.")] = None,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train once and keep everything: settings, metrics, what the rule did, the model.

    Settings come from flags, or from a file, or from a file with flags over it. An interrupted run goes on with
    `kasync run FOLDER/run.toml`; a finished one is repeated by the same words, beside it, and compared.

    Example: `kasync run --rule wkafl --dataset digits --clients 300 -k 10 --steps 500 --out my-run`
    """
    from kasync.experiments.arrivals import from_text

    flags = {
        "dataset": dataset,
        "clients": clients,
        "k": k,
        "steps": steps,
        "model": model,
        "scale": scale,
        "staleness": staleness,
        "schedule": schedule,
        "optimizer": optimizer,
        "evaluate_every": evaluate_every,
        "seed": seed,
        "device": device,
        "root": root,
        "partition": choice(partition) if partition else None,
        "arrivals": from_text(arrivals, trace),
        "faults": [choice(text) for text in faults] if faults else None,
        "work": {"kind": "gradient", "batch_size": batch_size} if batch_size is not None else None,
    }
    given = {name: value for name, value in flags.items() if value is not None} | own(work, loss, metric)
    of_run, of_rule = of_the_run(pairs(set_ or []))
    given, of_rule = of_run | given, of_rule | ({} if lr is None else {"lr": lr})
    if timeline is not None:
        given |= _from_timeline(timeline, given)
    settings = _settings(file, rule, given, of_rule).resolved()
    folder = out or _folder(file, settings.name)
    _carry_out(settings, folder, file, as_json, quiet, track, _spread(engine, workers, address))


def _carry_out(
    settings: Any,
    folder: Path,
    file: Path | None,
    as_json: bool,
    quiet: bool,
    track: str | None = None,
    spread: Mapping[str, Any] | None = None,
) -> None:
    from kasync.experiments import runner
    from kasync.experiments.display import fitting
    from kasync.report.loggers import tracked

    table = {folder.name: settings.table()}
    display = tracked(fitting(quiet or as_json), track, settings.dataset, folder.parent, table)
    display.begin(1, 0)
    display.start(folder.name, settings.steps)
    watch = runner.Watch(
        tell=lambda record: display.step(folder.name, record), say=lambda words: show.note(words, quiet)
    )
    kept = folder / "run.toml"
    again = show.command_line()  # until the settings are written down
    try:
        with show.interruptible(lambda: f"kasync run {kept}" if kept.exists() else again):
            summary = runner.run(settings, folder, watch, keep_model=True, spread=spread)
        display.done(folder.name, summary)
    finally:
        display.end()
    if as_json:
        show.value({"folder": str(folder), **summary})
        return
    show.rows([_row(settings, summary)], title=str(summary.get("data", {}).get("source", "")))
    print(f"results\t{folder}")
    if file is not None and file.name == "run.toml" and file.parent.resolve() != folder.resolve():
        print(_compared(file.parent, folder))


def _spread(engine: str, workers: int | None, address: str | None) -> dict[str, Any]:
    """What of a cluster computes the clients' work of the run: all of it where nobody says how many workers."""
    return {"engine": engine, "workers": workers, "address": address}


def _row(settings: Any, summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rule": settings.rule.kind,
        "steps": settings.steps,
        "final_accuracy": summary.get("final_accuracy"),
        "best_accuracy": summary.get("best_accuracy"),
        "last_accuracy": summary.get("last_accuracy"),
        "stability": summary.get("stability"),
        "average_staleness": summary.get("average_staleness"),
        "dropped": summary.get("dropped"),
        "diverged": summary.get("diverged"),
        "seconds": summary.get("seconds"),
    }


def _settings(file: Path | None, rule: str | None, given: dict[str, Any], own: dict[str, Any]) -> Any:
    """What suits the data set, with what a file says over it and the flags over that."""
    from kasync.experiments import toml
    from kasync.experiments.experiment import merged, settings_for
    from kasync.experiments.settings import RunSettings

    if file is None:
        return settings_for(rule or "wkafl", given, own)
    read = RunSettings.read(file).table()  # checked, with the place of a timeline
    table = {name: read[name] for name in toml.read(file) if name in read}
    before = dict(table.pop("rule", {"kind": "wkafl"}))
    kind = rule or before["kind"]
    kept = {name: value for name, value in before.items() if name != "kind"} if kind == before["kind"] else {}
    return settings_for(kind, merged(table, given), {**kept, **own})


def _from_timeline(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Clients, k and steps are the timeline's unless fewer steps are asked for."""
    from kasync import timelines

    if "arrivals" in given:
        raise UserError("--timeline and --arrivals or --trace both say who comes when: give one of them.")
    saved = timelines.load(path)
    for name, value in (("clients", saved.population), ("k", saved.k)):
        if given.get(name, value) != value:
            raise UserError(f"{name} = {given[name]}, but the timeline {path} has {value}: leave {name} out.")
    steps = min(int(given.get("steps", saved.steps)), saved.steps)
    arrivals = {"kind": "file", "path": str(path)}
    return {"clients": saved.population, "k": saved.k, "steps": steps, "arrivals": arrivals}


def _folder(file: Path | None, name: str) -> Path:
    """Where an unfinished run goes on, beside a finished one, or among the results."""
    from kasync.experiments.runner import finished

    if file is None or file.name != "run.toml":
        return Path("kasync-runs") / "runs" / name
    return file.parent.with_name(f"{file.parent.name}-again") if finished(file.parent) else file.parent


def _compared(before: Path, after: Path) -> str:
    same = (before / "metrics.csv").read_bytes() == (after / "metrics.csv").read_bytes()
    return f"the same numbers as {before}" if same else f"other numbers than {before}: compare the two metrics.csv"
