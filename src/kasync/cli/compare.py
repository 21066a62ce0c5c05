"""kasync compare: several rules on the same arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, Device, Faults, Out, Quiet, Root, choice, names, pairs
from kasync.errors import UserError


def compare(
    rules: Annotated[str, typer.Option(help="Rules, separated by commas.")] = "wkafl,twafl,sasgd,gsgm,kasync_sgd",
    dataset: Annotated[str, typer.Option(help="Which data: see kasync data ls.")] = "digits",
    clients: Annotated[int | None, typer.Option(help="How many clients there are.")] = None,
    k: Annotated[int | None, typer.Option("-k", "--k", help="Deliveries per step.")] = None,
    steps: Annotated[int | None, typer.Option(help="Server steps.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each rule, for intervals.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="RULE.name=value; repeatable.")] = None,
    partition: Annotated[str | None, typer.Option(help="Who holds what: labels:per_client=1 ...")] = None,
    arrivals: Annotated[str | None, typer.Option(help="Who comes when: uniform, clock:durations=pareto ...")] = None,
    faults: Faults = None,
    staleness: Annotated[str, typer.Option(help="true, published-code or both.")] = "true",
    model: Annotated[str | None, typer.Option(help="The network.")] = None,
    device: Device = "cpu",
    jobs: Annotated[int, typer.Option(help="Runs at once on a GPU, stacked where alike.")] = 1,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    root: Root = "",
    out: Out = Path("results"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train several rules on the same data, the same arrivals and the same batches, and compare.

    Learning rates are those of the data set's problem file, the paper's where it has some; `kasync tune` finds
    fairer ones.

    Example: `kasync compare --rules wkafl,fedbuff,ca2fl --dataset cifar10 --clients 3000 -k 20 --seeds 3`
    """
    from kasync.experiments import own, reproduce

    chosen = names(rules)
    if chosen is None:
        raise UserError("rules is empty: name some, such as wkafl,fedbuff.")
    flags = {
        "dataset": dataset,
        "clients": clients,
        "k": k,
        "steps": steps,
        "model": model,
        "device": device,
        "root": root,
    }
    sections = {"partition": partition, "arrivals": arrivals}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    given |= {name: choice(text) for name, text in sections.items() if text}
    if faults:
        given["faults"] = [choice(text) for text in faults]
    if seeds < 1:
        raise UserError(f"seeds = {seeds}: give at least 1.")
    one = own.comparison(chosen, given, _by_rule(pairs(set_ or []), chosen), seeds)
    ways = reproduce.BOTH if staleness == "both" else (staleness,)
    planned = reproduce.Plan("own", [(one, one.cells("own", None, ways))])
    with show.interruptible(show.command_line()):
        outcome = reproduce.carry_out(
            planned, out, engine=engine, jobs=jobs, display=_display(planned, quiet or as_json)
        )
    page = reported(out)
    finish(planned, out, outcome, as_json)
    show.note(f"Report: {page}", quiet=as_json)


def reported(out: Path) -> str:
    """Where the page is, or why there is none: a report needs extras that a comparison can do without."""
    from kasync import report

    try:
        return str(report.write(out).page)
    except UserError as problem:
        return f"none ({problem})"


def finish(planned: Any, out: Path, outcome: Any, as_json: bool) -> None:
    """The table, where the results are, and exit code 1 if some runs failed."""
    from kasync.experiments import reproduce

    table = reproduce.rows(planned, out)
    if as_json:
        show.value({"results": str(out), "rows": table, "failed": dict(outcome.failed)})
    else:
        show.rows(table)
        show.note(f"{outcome.made} runs made, {outcome.skipped} were finished already. Results: {out}")
    for name, why in outcome.failed:
        typer.echo(f"kasync: {name} failed: {why}", err=True)
    if outcome.failed:
        raise typer.Exit(1)


def _by_rule(given: dict[str, Any], chosen: list[str]) -> dict[str, dict[str, Any]]:
    from kasync.errors import unknown

    found: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        rule, dot, setting = name.partition(".")
        if not dot:
            raise UserError(f"--set {name}={value}: say whose it is, wkafl.{name}={value}, say.")
        if rule not in chosen:
            raise unknown("rule in --set", rule, chosen)
        found.setdefault(rule, {})[setting] = value
    return found


def _display(planned: Any, quiet: bool) -> Any:
    """A live table of the rules where somebody looks at a terminal."""
    import sys

    from kasync.experiments.display import Silent

    if quiet or not sys.stderr.isatty():
        return Silent()
    from kasync.cli.live import LiveTable

    return LiveTable({cell.settings.name: (cell.rule, cell.staleness, cell.seed) for cell in planned.cells})
