"""kasync run, compare and demo: one run, several rules on the same arrivals, and what waiting costs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from kasync import experiments, files, report, timelines
from kasync.cli import options, show
from kasync.cli.options import CLUSTER, GRID, AsJson, Out, Quiet, RuleName, Staleness, Track, takes
from kasync.errors import UserError, unknown
from kasync.experiments.experiment import DEMO, comparison, merged, settings_for
from kasync.experiments.experiment import read as read_experiment
from kasync.experiments.settings import RunSettings
from kasync.report import tables
from kasync.report.numbers import sentences
from kasync.report.results import Line, only, reaching

STANDARD = "wkafl,twafl,sasgd,gsgm,kasync_sgd"
ROW = ("final_accuracy", "best_accuracy", "last_accuracy", "stability", "average_staleness", "dropped", "diverged")

# ---- one run


@takes(
    *("dataset", "clients", "k", "steps", "model", "partition", "arrivals", "trace", "faults", "batch_size", "work"),
    *("loss", "metrics", "scale", "staleness", "schedule", "optimizer", "evaluate_every", "seed", "device", "root"),
    spread=CLUSTER,
)
def run(
    *,
    file: Annotated[Path | None, typer.Argument(help="TOML of settings, or the run.toml of an earlier run.")] = None,
    given: dict[str, Any],
    rule: Annotated[str | None, RuleName] = None,
    lr: Annotated[float | None, typer.Option(help="The rule's learning rate.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the rule or of the run, name=value; repeatable.")
    ] = None,
    timeline: Annotated[Path | None, typer.Option(help="Replay a saved timeline instead.")] = None,
    spread: dict[str, Any],
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
    of_run, of_rule = options.of_the_run(options.pairs(set_))
    given, of_rule = of_run | given, of_rule | ({} if lr is None else {"lr": lr})
    if timeline is not None:
        given |= _from_timeline(timeline, given)
    settings = _settings(file, rule, given, of_rule).resolved()
    _carry_out(settings, out or _folder(file, settings.name), file, as_json, quiet, track, spread)


def _carry_out(
    settings: RunSettings,
    folder: Path,
    file: Path | None,
    as_json: bool,
    quiet: bool,
    track: str | None = None,
    spread: Mapping[str, Any] | None = None,  # without workers: over all of the cluster
) -> None:
    where = (settings.dataset, folder.parent, {folder.name: settings.table()})
    display = show.progress(quiet or as_json, None, track, *where)
    watch = experiments.runner.Watch(
        tell=lambda record: display.step(folder.name, record), say=lambda words: show.note(words, quiet)
    )
    kept = folder / "run.toml"  # until the settings are written down, what was typed is what goes on
    display.begin(1, 0)
    display.start(folder.name, settings.steps)
    try:
        with show.interruptible(lambda: f"kasync run {kept}" if kept.exists() else show.command_line()):
            summary = experiments.runner.run(settings, folder, watch, keep_model=True, spread=spread)
        display.done(folder.name, summary)
    finally:
        display.end()
    if as_json:
        show.value({"folder": str(folder), **summary})
        return
    row = {"rule": settings.rule.kind, "steps": settings.steps, **{name: summary.get(name) for name in ROW}}
    show.rows([{**row, "seconds": summary.get("seconds")}], title=str(summary.get("data", {}).get("source", "")))
    print(f"results\t{folder}")
    if file is not None and file.name == "run.toml" and file.parent.resolve() != folder.resolve():
        before, after = ((place / "metrics.csv").read_bytes() for place in (file.parent, folder))
        same, other = f"the same numbers as {file.parent}", f"other numbers than {file.parent}"
        print(same if before == after else f"{other}: compare the two metrics.csv")


def _settings(file: Path | None, rule: str | None, given: Mapping[str, Any], own: Mapping[str, Any]) -> RunSettings:
    """What suits the data set, with what a file says over it and the flags over that."""
    if file is None:
        return settings_for(rule or "wkafl", given, own)
    read = RunSettings.read(file).table()  # checked, with the place of a timeline
    table = {name: read[name] for name in files.read_toml(file) if name in read}
    before = dict(table.pop("rule", {"kind": "wkafl"}))
    kind = rule or before["kind"]
    kept = before if kind == before.pop("kind") else {}
    return settings_for(kind, merged(table, given), {**kept, **own})


def _from_timeline(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Clients, k and steps are the timeline's unless fewer steps are asked for."""
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
    if file is None or file.name != "run.toml":
        return Path("kasync-runs") / "runs" / name
    finished = experiments.runner.finished(file.parent)
    return file.parent.with_name(f"{file.parent.name}-again") if finished else file.parent


# ---- several rules


@takes(
    *("dataset", "clients", "k", "steps", "model", "partition", "arrivals", "trace", "faults", "work"),
    *("loss", "metrics", "device", "root"),
    where=GRID,
)
def compare(
    *,
    given: dict[str, Any],
    rules: Annotated[
        list[str] | None, typer.Option(help=f"Rules: a,b or named again, module:name for your own; {STANDARD} without.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each rule, for intervals.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="RULE.name=value, or name=value for all.")] = None,
    staleness: Staleness = "true",
    tune: Annotated[
        int | None, typer.Option(help="So many tries for every rule first: its rate, then its main knob.")
    ] = None,
    where: dict[str, Any],
    out: Out = Path("kasync-runs"),
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train several rules on the same data, the same arrivals and the same batches, and compare.

    Learning rates are those of the data set's problem file, the paper's where it has some; `--tune 8` finds fairer
    ones, on samples held out from training. Rules, data, models, work, losses and metrics may be your own.

    Example: `kasync compare --rules wkafl,fedbuff,ca2fl --dataset cifar10 --clients 3000 -k 20 --seeds 3`

    Example: `kasync compare --rules mine.py:fair,fedbuff --dataset mine.py:load --model mine.py:Net --seeds 5 --tune 8`
    """
    chosen = options.names([STANDARD] if rules is None else rules)
    if chosen is None:
        raise UserError("rules is empty: name some, such as wkafl,fedbuff.")
    if seeds < 1:
        raise UserError(f"seeds = {seeds}: give at least 1.")
    of_run, of_rules = _by_rule(options.pairs(set_), chosen)
    given = of_run | {"dataset": "digits", **given}
    silent = quiet or as_json
    with show.interruptible():
        tried: list[dict[str, Any]] = []
        if tune is not None:
            of_rules, tried = _tuned(tune, chosen, given, of_rules, out, where | {"display": show.progress(silent)})
        one = comparison(chosen, given, of_rules, seeds)
        planned = experiments.grid.Plan([(one, one.cells(staleness=experiments.grid.semantics(staleness)))])
        labels = {
            cell.settings.name: f"{cell.rule.title}, {cell.staleness} staleness, seed {cell.seed}"
            for cell in planned.cells
        }
        display = show.progress(silent, labels, track, one.title, out, planned.settings)
        outcome = experiments.grid.carry_out(planned, out, display=display, **where)
    finish(out, outcome, as_json, reported(out), tried)


def _by_rule(given: Mapping[str, Any], chosen: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings of the run, such as optimizer, and settings by rule."""
    of_run, found = options.of_the_run(given)
    by_rule: dict[str, dict[str, Any]] = {}
    for name, value in found.items():
        rule, dot, setting = name.rpartition(".")
        if dot and rule not in chosen:
            raise unknown("rule in --set", rule, chosen)
        for each in [rule] if dot else chosen:
            by_rule.setdefault(each, {})[setting] = value
    return of_run, by_rule


def _tuned(
    budget: int, chosen: list[str], given: dict[str, Any], own: dict[str, Any], out: Path, how: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Settings by rule after so many tries of each, and what was tried."""
    from kasync.comparison import tuning

    wanted = tuning.Tune(budget)
    cells = comparison(chosen, {**given, "validation": wanted.held_out}, own, wanted.seeds).cells(wanted.numbers)
    contenders = zip(chosen, tuning.of_cells(cells).values(), strict=True)
    searches = wanted.searches([(replace(each, label=rule), describe) for rule, (each, describe) in contenders])
    classes = experiments.build.data_of(cells[0].settings).classes
    judge = tuning.by_metric("accuracy", False) if classes else tuning.by_metric("test_loss", True)
    tuning.carry_out(searches, out, judge, **how)
    best = {search.contender.label: {**own.get(search.contender.label, {}), **search.best} for search in searches}
    return best, tuning.told(searches)


def reported(out: Path) -> str:
    """Where the page is, or why there is none: a report needs extras that a comparison can do without."""
    try:
        return str(report.write(out).page)
    except UserError as problem:
        return f"none ({problem})"


def finish(out: Path, outcome: Any, as_json: bool, page: str, tried: Sequence[dict[str, Any]] = ()) -> None:
    """The table and what it says, where results and report are, and exit code 1 if some runs failed."""
    found = only(report.read(out), outcome.places)
    table = [row for each in found for row in tables.lines(each)]
    verdicts = [words for each in found for words in sentences(each)]
    if as_json:
        told = {"results": str(out), "report": page, "rows": table, "verdict": verdicts}
        show.value({**told, **({"tuned": list(tried)} if tried else {}), "failed": dict(outcome.failed)})
    else:
        show.rows(table, constant=("experiment", "task", "staleness", "seeds"))
        for words in verdicts:
            show.say(words)
        for row in tried:
            if row["chosen"]:
                settings = ", ".join(f"{name} = {value:.4g}" for name, value in row["settings"].items())
                print(f"tuned\t{row['rule']}\t{settings}{' (at the edge)' if row['at_edge'] else ''}")
        print(f"results\t{out}\nreport\t{page}")
        show.note(f"{outcome.made} runs made, {outcome.skipped} were finished already.")
    show.failures(dict(outcome.failed))


# ---- what waiting costs


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo"),
    steps: Annotated[int | None, typer.Option(help="Instead of the demo's own number.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """See what waiting costs: 100 clients of very different speeds, one server that waits for all, three that do not.

    Example: `kasync demo --out /tmp/demo`
    """
    one = read_experiment(DEMO)
    planned = experiments.grid.Plan([(one, one.cells(overrides={} if steps is None else {"steps": steps}))])
    silent = quiet or as_json  # `make demo` in a log should not look dead for two minutes
    display = show.progress(silent) if silent or sys.stderr.isatty() else experiments.display.Lines()
    with show.interruptible():
        outcome = experiments.grid.carry_out(planned, out, display=display)
    if outcome.failed:
        raise UserError(f"the demo's run {outcome.failed[0][0]} failed: {outcome.failed[0][1]}")
    (found,) = (each for each in report.read(out).experiments if each.name == one.key)
    rows = [_row(line, found.about.targets[0]) for line in found.lines]
    picture, page = str(out / "demo.png"), reported(out)
    first = sorted((out / "report" / "figures").glob(f"{one.key}-*.png"))
    if first:
        files.write(out / "demo.png", first[0].read_bytes())
    if as_json:
        show.value({"results": str(out), "report": page, "picture": picture if first else None, "rows": rows})
        return
    show.rows(rows, title=one.tasks[0].title)
    print(f"\nresults   {out}\npicture   {picture if first else page}\nreport    {page}")
    for words in _first():
        print(words)
    print("try next  kasync rules                                  what else the server could do")
    print("          kasync compare --rules wkafl,fedbuff,ca2fl    rules of your choice")
    print("          kasync reproduce --scale quick                every table and figure of the paper, small")


def _row(line: Line, target: float) -> dict[str, Any]:
    """A rule's last accuracy and its virtual time to the target, means over seeds, and how stale its deliveries are."""
    summaries = [run.summary for run in line.finished]
    seconds = reaching(target, "time").estimate(line)
    return {
        "rule": line.rule.title,
        "seeds": len(summaries),
        "last_accuracy": fmean(each["last_accuracy"] for each in summaries),
        f"seconds_to_{target:g}": seconds.mean if seconds and seconds.count == len(summaries) else None,
        "mean_staleness": fmean(each["timeline"]["mean_staleness"] for each in summaries),
    }


def _first() -> list[str]:
    """What to type before `kasync` is a word the shell knows: after `make demo` it lies in .venv/bin only."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("kasync") is not None or not script.exists():
        return []
    here = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return [f"first     {f'source {here}':<46}so that your shell finds kasync"]
