"""kasync compare: several rules on the same arrivals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import (
    Address,
    AsJson,
    Engine,
    Jobs,
    Out,
    Quiet,
    Track,
    Workers,
    names,
    of_the_run,
    pairs,
    takes,
)
from kasync.errors import UserError, unknown

STANDARD = "wkafl,twafl,sasgd,gsgm,kasync_sgd"


@takes(
    *("dataset", "clients", "k", "steps", "model", "partition", "arrivals", "trace", "faults", "work"),
    *("loss", "metrics", "device", "root"),
)
def compare(
    given: dict[str, Any],
    rules: Annotated[
        list[str] | None, typer.Option(help=f"Rules: a,b or named again, module:name for your own; {STANDARD} without.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each rule, for intervals.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="RULE.name=value, or name=value for all.")] = None,
    staleness: Annotated[str, typer.Option(help="true, published-code or both.")] = "true",
    tune: Annotated[
        int | None, typer.Option(help="So many tries for every rule first: its rate, then its main knob.")
    ] = None,
    jobs: Jobs = 1,
    engine: Engine = "local",
    workers: Workers = None,
    address: Address = None,
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
    from kasync.experiments import grid
    from kasync.experiments.display import fitting
    from kasync.experiments.experiment import comparison
    from kasync.report.loggers import tracked

    chosen = names([STANDARD] if rules is None else rules)
    if chosen is None:
        raise UserError("rules is empty: name some, such as wkafl,fedbuff.")
    if seeds < 1:
        raise UserError(f"seeds = {seeds}: give at least 1.")
    of_run, of_rules = _by_rule(pairs(set_ or []), chosen)
    given = of_run | {"dataset": "digits", **given}
    silent = quiet or as_json
    how: dict[str, Any] = {"engine": engine, "jobs": jobs, "workers": workers, "address": address}
    with show.interruptible(show.command_line()):
        tried: list[dict[str, Any]] = []
        if tune is not None:
            of_rules, tried = _tuned(tune, chosen, given, of_rules, out, how, fitting(silent))
        one = comparison(chosen, given, of_rules, seeds)
        planned = grid.Plan([(one, one.cells(staleness=grid.semantics(staleness)))])
        labels = {
            cell.settings.name: f"{cell.rule.title}, {cell.staleness} staleness, seed {cell.seed}"
            for cell in planned.cells
        }
        display = tracked(fitting(silent, labels), track, one.title, out, planned.settings)
        outcome = grid.carry_out(planned, out, display=display, **how)
    finish(planned, out, outcome, as_json, reported(out), tried)


def _tuned(
    budget: int,
    chosen: list[str],
    given: dict[str, Any],
    own: dict[str, dict[str, Any]],
    out: Path,
    how: Mapping[str, Any],
    display: Any,
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Settings by rule after so many tries of each, and what was tried."""
    from kasync.comparison.contenders import Contender
    from kasync.comparison.tuning import Tries, Tune, searched
    from kasync.experiments import grid
    from kasync.experiments.experiment import comparison, settings_for
    from kasync.experiments.settings import facts_of
    from kasync.experiments.store import Store

    wanted, store = Tune(budget), Store(out)
    held = {**given, "validation": wanted.held_out}
    bases = {rule: settings_for(rule, held, own.get(rule, {})).resolved().rule.settings for rule in chosen}
    contenders = [Contender(rule, facts_of(rule).make, bases[rule], facts_of(rule)) for rule in chosen]

    def attempt(tries: Tries) -> list[tuple[list[float], str]]:
        tried = {one.label: {**own.get(one.label, {}), **settings} for one, settings in tries}
        cells = comparison(list(tried), held, tried, wanted.seeds).cells(wanted.numbers)
        failed = dict(grid.make(cells, out, display=display, **how).failed)
        told = []
        for one, _ in tries:
            keys = [cell.settings.name for cell in cells if cell.rule.rule == one.label]
            scores = [_score(store.run(key).summary) for key in keys]
            told.append((scores, next((failed[key] for key in keys if key in failed), "")))
        return told

    best, tried = searched(contenders, wanted, attempt)
    for one in best:
        searched_for = [name for name in (one.rate, one.facts.knob) if name is not None]
        own = {**own, one.label: {**own.get(one.label, {}), **{name: one.settings[name] for name in searched_for}}}
    return own, tried


def _score(summary: Mapping[str, Any]) -> float:
    """Higher is better: the final accuracy, or without classes the loss turned round."""
    if summary.get("final_accuracy") is not None:
        return float(summary["final_accuracy"])
    return -float(summary["last_test_loss"]) if summary.get("last_test_loss") is not None else -math.inf


def reported(out: Path) -> str:
    """Where the page is, or why there is none: a report needs extras that a comparison can do without."""
    from kasync import report

    try:
        return str(report.write(out).page)
    except UserError as problem:
        return f"none ({problem})"


def finish(
    planned: Any, out: Path, outcome: Any, as_json: bool, page: str, tried: Sequence[dict[str, Any]] = ()
) -> None:
    """The table and what it says, where results and report are, and exit code 1 if some runs failed."""
    from kasync.report import read, tables
    from kasync.report.numbers import sentences
    from kasync.report.results import only

    places: dict[str, set[tuple[str, str]]] = {}
    for one, cells in planned.experiments:
        places.setdefault(one.key, set()).update((cell.task.name, cell.rule.label) for cell in cells)
    found = only(read(out), places)
    table = [row for each in found for row in tables.lines(each)]
    verdicts = [words for each in found for words in sentences(each)]
    if as_json:
        told = {"results": str(out), "report": page, "rows": table, "verdict": verdicts}
        show.value({**told, **({"tuned": list(tried)} if tried else {}), "failed": dict(outcome.failed)})
    else:
        show.rows(table, constant=("experiment", "task", "staleness", "seeds"))
        for words in verdicts:
            print(words)
        for row in tried:
            if row["chosen"]:
                settings = ", ".join(f"{name} = {value:.4g}" for name, value in row["settings"].items())
                print(f"tuned\t{row['rule']}\t{settings}{' (at the edge)' if row['at_edge'] else ''}")
        print(f"results\t{out}\nreport\t{page}")
        show.note(f"{outcome.made} runs made, {outcome.skipped} were finished already.")
    for name, why in outcome.failed:
        typer.echo(f"kasync: {name} failed: {why}", err=True)
    if outcome.failed:
        raise typer.Exit(1)


def _by_rule(given: dict[str, Any], chosen: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings of the run, such as optimizer, and settings by rule."""
    of_run, found = of_the_run(given)
    by_rule: dict[str, dict[str, Any]] = {}
    for name, value in found.items():
        rule, dot, setting = name.rpartition(".")
        if dot and rule not in chosen:
            raise unknown("rule in --set", rule, chosen)
        for each in [rule] if dot else chosen:
            by_rule.setdefault(each, {})[setting] = value
    return of_run, by_rule
