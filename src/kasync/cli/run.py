"""kasync run: one run, one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import Address, AsJson, Engine, Quiet, Track, Workers, of_the_run, pairs, takes
from kasync.errors import UserError

ROW = ("final_accuracy", "best_accuracy", "last_accuracy", "stability", "average_staleness", "dropped", "diverged")


@takes(
    *("dataset", "clients", "k", "steps", "model", "partition", "arrivals", "trace", "faults", "batch_size", "work"),
    *("loss", "metrics", "scale", "staleness", "schedule", "optimizer", "evaluate_every", "seed", "device", "root"),
)
def run(
    given: dict[str, Any],
    file: Annotated[Path | None, typer.Argument(help="TOML of settings, or the run.toml of an earlier run.")] = None,
    rule: Annotated[str | None, typer.Option(help="What the server does: see kasync rules, or module:name.")] = None,
    lr: Annotated[float | None, typer.Option(help="The rule's learning rate.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the rule or of the run, name=value; repeatable.")
    ] = None,
    timeline: Annotated[Path | None, typer.Option(help="Replay a saved timeline instead.")] = None,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
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
    of_run, of_rule = of_the_run(pairs(set_ or []))
    given, of_rule = of_run | given, of_rule | ({} if lr is None else {"lr": lr})
    if timeline is not None:
        given |= _from_timeline(timeline, given)
    settings = _settings(file, rule, given, of_rule).resolved()
    spread = {"engine": engine, "workers": workers, "address": address}  # without workers: all of the cluster
    _carry_out(settings, out or _folder(file, settings.name), file, as_json, quiet, track, spread)


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
    row = {"rule": settings.rule.kind, "steps": settings.steps, **{name: summary.get(name) for name in ROW}}
    source = str(summary.get("data", {}).get("source", ""))
    show.rows([{**row, "seconds": summary.get("seconds")}], title=source)
    print(f"results\t{folder}")
    if file is not None and file.name == "run.toml" and file.parent.resolve() != folder.resolve():
        print(_compared(file.parent, folder))


def _settings(file: Path | None, rule: str | None, given: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    """What suits the data set, with what a file says over it and the flags over that."""
    from kasync import files
    from kasync.experiments.experiment import merged, settings_for
    from kasync.experiments.settings import RunSettings

    if file is None:
        return settings_for(rule or "wkafl", given, own)
    read = RunSettings.read(file).table()  # checked, with the place of a timeline
    table = {name: read[name] for name in files.read_toml(file) if name in read}
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
