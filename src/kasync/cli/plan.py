"""kasync plan: what a k costs, and which one to take."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, Quiet, choice, numbers, pairs, takes
from kasync.errors import UserError, unknown

KS = (1, 3, 10, 30, 100)
CLIENTS = 1000
CONSTANTS = {  # of Theorem 1, where --constants does not name them
    "smoothness": 1.0,
    "gradient_noise": 1.0,
    "noise_growth": 0.0,
    "heterogeneity": 0.1,
    "batch_size": 8,
    "initial_gap": 1.0,
    "momentum": 0.0,
}
NARROW = (  # on a terminal; a pipe and JSON get all
    *("k", "seconds_per_step", "staleness", "staleness_99%", "idle_saved", "fairness", "bound", "mostly"),
    *("seconds_to_target", "accuracy", "ran_until", "lr", "recommended"),
)


@takes("clients", "arrivals", "trace", "dataset", "model", "partition", "batch_size", "seed", "device", "root")
def plan(
    given: dict[str, Any],
    ks: Annotated[str | None, typer.Option("-k", "--k", help="The k to compare, separated by commas.")] = None,
    durations: Annotated[str | None, typer.Option(help="Time for a piece of work: log_normal:spread=0.5 ...")] = None,
    speeds: Annotated[str | None, typer.Option(help="A factor for each client, drawn once: kind:...")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Fit the durations to a live run's timeline.npz.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Virtual time to look at, and at most for a pilot.")] = None,
    pilot: Annotated[bool, typer.Option("--pilot", help="Try each k on your task and recommend one.")] = False,
    target: Annotated[float | None, typer.Option(help="The accuracy that is to be reached soonest.")] = None,
    rule: Annotated[str, typer.Option(help="Of the pilots: see kasync rules, or module:name.")] = "wkafl",
    lr: Annotated[str | None, typer.Option(help="One rate for every k, or several: each k at its best.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting of the rule, name=value.")] = None,
    seeds: Annotated[int, typer.Option(help="Pilots of each k, paired.")] = 3,
    thorough: Annotated[bool, typer.Option("--thorough", help="Stop no pilot early: the full sweep.")] = False,
    constants: Annotated[
        str | None, typer.Option(help="Of the problem, for Theorem 1: smoothness=1,heterogeneity=0.5 ...")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw it into this file: plan.png, say.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare values of k on your fleet: pace, staleness, waiting, fairness, theory; with --pilot, which to take.

    Example: `kasync plan --durations log_normal:spread=0.5 --speeds log_normal -k 2,10,50 --pilot --target 0.8`
    """
    from dataclasses import replace

    from kasync import theory
    from kasync.experiments.build import OpenRun, constants_at_start, timeline_of
    from kasync.experiments.experiment import settings_for
    from kasync.experiments.settings import Choice, RunSettings
    from kasync.theory.pictures import check_place

    if picture is not None:
        check_place(picture)
    fleet, there = _fleet(given.get("arrivals"), durations, speeds, timeline, quiet or as_json)
    population, seed = int(given.get("clients", there)), int(given.get("seed", 0))
    at_work = fleet.get("concurrency", population)
    most = min(at_work, population) if isinstance(at_work, int) else population
    ks_wanted = sorted(set(numbers("k", ks, int))) if ks else [k for k in KS if k <= most]
    if ks_wanted and ks_wanted[-1] > most:
        raise UserError(f"k = {ks_wanted[-1]}: only {most} clients are at work at a time, so give a k up to {most}.")
    if target is not None and not pilot:
        raise UserError(f"target = {target}: only pilots can tell when an accuracy is reached; add --pilot.")
    given |= {"clients": population, "arrivals": fleet}
    settings = pairs(set_ or [])

    def describe(k: int, rate: float | None, seed: int) -> OpenRun:
        rates = {} if rate is None else {"lr": rate}
        return OpenRun(settings_for(rule, {**given, "k": k, "seed": seed}, settings | rates).resolved())

    def clock(mode: str) -> Any:
        limits = (
            "concurrency",
            "restart",
            "previous_model",
            "starts",
            "select",
            "deadline",
            "max_staleness",
        )  # a full step has none of them
        kept = {name: value for name, value in fleet.items() if mode == "async" or name not in limits}
        arrivals = Choice.of("arrivals", {**kept, "mode": mode})
        plain = RunSettings(clients=population, seed=seed, arrivals=arrivals)
        return lambda k, steps: timeline_of(replace(plain, k=k, steps=steps))

    rates: list[float | None] = [None] if lr is None else numbers("lr", lr, float)
    known = _constants(constants)
    raced: Sequence[Any] = ()
    if pilot:
        with show.interruptible(show.command_line()):
            raced = theory.race(
                describe,
                ks_wanted,
                rates,
                target,
                range(seed, seed + seeds),
                seconds,
                thorough,
                tell=lambda words: show.note(words, quiet or as_json),
            )
        known = constants_at_start(describe(ks_wanted[0], rates[0], seed).settings)
    rows = theory.plan(ks_wanted, clock("async"), clock("full"), known, seconds)
    chosen = theory.recommend(rows, raced, target) if raced or known else None
    _answer(rows, raced, chosen, as_json)
    if picture is not None:
        _draw(picture, rows, raced, chosen, target)
        show.note(f"drawn into {picture}", quiet or as_json)
    if chosen is None:
        show.note("With --pilot, or --constants of your problem, one k is recommended.", quiet or as_json)


def _constants(text: str | None) -> Any:
    """smoothness=1,heterogeneity=0.5 as Theorem 1's constants; those not named are the defaults of kasync theory."""
    if text is None:
        return None
    from kasync.theory import StageOne

    named = pairs(text.split(","))
    for name, value in named.items():
        if name not in CONSTANTS:
            raise unknown("constant", name, CONSTANTS)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{name} = {value!r}: give a number.")
    return StageOne(**{**CONSTANTS, **named}, k=1, steps=1, max_staleness=0, learning_rates=1.0)


def _fleet(
    arrivals: dict[str, Any] | None, durations: str | None, speeds: str | None, timeline: Path | None, quiet: bool
) -> tuple[dict[str, Any], int]:
    """The settings under [arrivals], and how many clients the source speaks of."""
    from kasync import timelines
    from kasync.experiments.build import CLOCKS

    table = dict(arrivals or {})
    durations_given = table.get("durations")
    traced: dict[str, Any] = durations_given if isinstance(durations_given, dict) else {}
    trace = "--trace" if "folder" in table or traced.get("kind") == "trace" else None
    named = {"--durations": durations, trace or "--arrivals": arrivals, "--timeline": timeline, "--speeds": speeds}
    sources = [name for name, value in named.items() if value is not None]
    if len(sources) > 1 and sources not in (["--durations", "--speeds"], ["--trace", "--speeds"]):
        both = "both" if len(sources) == 2 else "all"
        raise UserError(f"{' and '.join(sources)} {both} describe the fleet: give one of them.")
    drawn = {"speeds": choice(speeds)} if speeds else {}
    if timeline is not None:
        return _fitted(timeline, quiet)
    if arrivals is None:
        return {"kind": "clock", "durations": choice(durations or "log_normal"), **drawn}, CLIENTS
    if table["kind"] not in CLOCKS:
        raise UserError(f"arrivals = {table['kind']!r}: a plan needs a clock, so use {', '.join(CLOCKS)}.")
    if "folder" in table:
        return table | drawn, timelines.traces.read(table["folder"]).clients
    return table | drawn, timelines.durations.trace(traced["source"]).clients if trace else CLIENTS


def _fitted(path: Path, quiet: bool) -> tuple[dict[str, Any], int]:
    """A fleet like the one that made the timeline: durations of the best fit, speeds as widely spread."""
    from kasync import theory, timelines

    seen = timelines.load(path)
    if seen.kind == "uniform":
        raise UserError(f"{path} was drawn without a clock, so it shows no durations: give the timeline of a live run.")
    fit = theory.fit_fleet(theory.observed_durations(seen), seen.population)
    table: dict[str, Any] = {"kind": "clock", "durations": {"kind": fit.best.kind, **fit.best.settings}}
    if fit.speed_spread > 0:
        table["speeds"] = {"kind": "log_normal", "median": 1.0, "spread": fit.speed_spread}
    words = ", ".join(f"{name} {value:.4g}" for name, value in fit.best.settings.items())
    show.note(f"fitted: {fit.best.kind} durations ({words}), log speeds spread by {fit.speed_spread:.3g}", quiet)
    return table, seen.population


def _answer(rows: Sequence[Any], raced: Sequence[Any], chosen: Any, as_json: bool) -> None:
    """The table, then the sentence."""
    from kasync.theory.planning import best_of

    best = best_of(raced)
    table = [_row(row, best.get(row.k), chosen) for row in rows]
    if sys.stdout.isatty() and not as_json:
        filled = [name for name in NARROW if any(row.get(name) is not None for row in table)]
        table = [{name: row.get(name) for name in filled} for row in table]
    show.rows(table, as_json)
    if chosen is not None and not as_json:
        print(f"recommended\t{chosen.reason}")


COLUMNS = {  # of the table -> of a row of the plan
    "seconds_per_step": "seconds_per_step",
    "gradients_per_second": "gradients_per_second",
    "staleness": "mean_staleness",
    "max_staleness": "max_staleness",
    "waiting": "idle_share",
    "waiting_synchronous": "sync_idle_share",
    "idle_saved": "idle_saved",
    "synchronous_seconds_per_step": "sync_seconds_per_step",
    "fairness": "fairness",
    "fewest_deliveries": "fewest_deliveries",
    "median_deliveries": "median_deliveries",
    "most_deliveries": "most_deliveries",
}


def _row(row: Any, pilot: Any, chosen: Any) -> dict[str, Any]:
    told = {"k": row.k, **{name: getattr(row, attribute) for name, attribute in COLUMNS.items()}}
    told |= {f"staleness_{share:.0%}": value for share, value in row.staleness_quantiles.items()}
    if row.terms:
        told |= {f"bound_{name}": value for name, value in row.terms.items()}
        told |= {"bound": row.bound, "mostly": max(row.terms, key=lambda name: row.terms[name])}
    if pilot is not None:
        told |= {
            "seconds_to_target": pilot.typical_seconds if pilot.reached else None,
            "accuracy": sum(pilot.accuracies) / len(pilot.accuracies),
            "ran_until": pilot.until,
            "lr": pilot.lr,
        }
    if chosen is not None:
        told |= {"recommended": row.k == chosen.k, "reason": chosen.reason if row.k == chosen.k else ""}
    return told


def _draw(path: Path, rows: Sequence[Any], raced: Sequence[Any], chosen: Any, target: float | None) -> None:
    from kasync.report.figures import legend, panels
    from kasync.theory.pictures import draw_plan, save

    figure, axes = panels(1, 3, width=4.0, height=3.3)
    draw_plan(axes[0], rows, raced, chosen, target)
    legend(figure, axes)
    save(figure, path)
