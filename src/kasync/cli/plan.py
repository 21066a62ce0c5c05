"""kasync plan: what a k costs, and which one to take."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import Arrivals, AsJson, Device, Quiet, Root, TraceOption, choice, pairs
from kasync.errors import UserError, unknown

KS = (1, 3, 10, 30, 100)
CLIENTS = 1000
CLOCKS = ("clock", "phones", "traces")  # kinds of arrivals with a time for each piece of work
CONSTANTS = {  # of Theorem 1, where --constants does not name them
    "smoothness": 1.0,
    "gradient_noise": 1.0,
    "noise_growth": 0.0,
    "heterogeneity": 0.1,
    "batch_size": 8,
    "initial_gap": 1.0,
    "momentum": 0.0,
}
NARROW = (  # what fits a terminal; a pipe and JSON get everything
    "k",
    "seconds_per_step",
    "staleness",
    "staleness_99%",
    "idle_saved",
    "fairness",
    "bound",
    "mostly",
    "seconds_to_target",
    "accuracy",
    "ran_until",
    "lr",
    "recommended",
)


def plan(
    clients: Annotated[int | None, typer.Option(help="How many clients; 1000, or as many as the file has.")] = None,
    ks: Annotated[str | None, typer.Option("-k", "--k", help="The k to compare, separated by commas.")] = None,
    durations: Annotated[str | None, typer.Option(help="Time for a piece of work: log_normal:spread=0.5 ...")] = None,
    speeds: Annotated[str | None, typer.Option(help="A factor for each client, drawn once: kind:...")] = None,
    arrivals: Arrivals = None,
    trace: TraceOption = None,
    timeline: Annotated[Path | None, typer.Option(help="Fit the durations to a live run's timeline.npz.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Virtual time to look at, and at most for a pilot.")] = None,
    pilot: Annotated[bool, typer.Option("--pilot", help="Try each k on your task and recommend one.")] = False,
    target: Annotated[float | None, typer.Option(help="The accuracy that is to be reached soonest.")] = None,
    rule: Annotated[str, typer.Option(help="Of the pilots: see kasync rules.")] = "wkafl",
    dataset: Annotated[str, typer.Option(help="Of the pilots: see kasync data ls.")] = "digits",
    model: Annotated[str | None, typer.Option(help="Of the pilots: the network.")] = None,
    partition: Annotated[str | None, typer.Option(help="Of the pilots: labels:per_client=1 ...")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Of the pilots: samples per gradient.")] = None,
    lr: Annotated[str | None, typer.Option(help="One rate for every k, or several: each k at its best.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting of the rule, name=value.")] = None,
    seeds: Annotated[int, typer.Option(help="Pilots of each k, paired.")] = 3,
    thorough: Annotated[bool, typer.Option("--thorough", help="Stop no pilot early: the full sweep.")] = False,
    constants: Annotated[
        str | None, typer.Option(help="Of the problem, for Theorem 1: smoothness=1,heterogeneity=0.5 ...")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides all that is random.")] = 0,
    device: Device = "cpu",
    root: Root = "",
    picture: Annotated[Path | None, typer.Option(help="Draw it into this file: plan.png, say.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare values of k on your fleet: pace, staleness, waiting, fairness, theory; with --pilot, which to take.

    Example: `kasync plan --durations log_normal:spread=0.5 --speeds log_normal -k 2,10,50 --pilot --target 0.8`
    """
    from dataclasses import replace

    from kasync import theory
    from kasync.experiments import bounds, pilots
    from kasync.experiments.arrivals import timeline_of
    from kasync.experiments.experiment import settings_for
    from kasync.experiments.settings import Choice, RunSettings
    from kasync.theory.pictures import check_place

    if picture is not None:
        check_place(picture)
    fleet, there = _fleet(arrivals, durations, speeds, trace, timeline, quiet or as_json)
    population = there if clients is None else clients
    numbers = sorted(set(whole_numbers(ks))) if ks else [k for k in KS if k <= population]
    if target is not None and not pilot:
        raise UserError(f"target = {target}: only pilots can tell when an accuracy is reached; add --pilot.")
    task = {
        "dataset": dataset,
        "clients": population,
        "device": device,
        "root": root,
        "arrivals": fleet,
        "model": model,
        "partition": choice(partition) if partition else None,
        "work": {"kind": "gradient", "batch_size": batch_size} if batch_size is not None else None,
    }
    given = {name: value for name, value in task.items() if value is not None}
    settings = pairs(set_ or [])

    def describe(k: int, rate: float | None, seed: int) -> RunSettings:
        rates = {} if rate is None else {"lr": rate}
        return settings_for(rule, {**given, "k": k, "seed": seed}, settings | rates)

    def clock(mode: str) -> Any:
        limits = ("concurrency", "restart", "select", "deadline", "max_staleness")  # a full step has none of them
        kept = {name: value for name, value in fleet.items() if mode == "async" or name not in limits}
        arrivals = Choice.of("arrivals", {**kept, "mode": mode})
        plain = RunSettings(clients=population, seed=seed, arrivals=arrivals)
        return lambda k, steps: timeline_of(replace(plain, k=k, steps=steps))

    rates = _rates(lr)
    known = _constants(constants)
    raced: Sequence[Any] = ()
    if pilot:
        with show.interruptible(show.command_line()):
            raced = pilots.race(
                describe,
                numbers,
                rates,
                target,
                range(seed, seed + seeds),
                seconds,
                thorough,
                tell=lambda words: show.note(words, quiet or as_json),
            )
        known = bounds.constants_at_start(describe(numbers[0], rates[0], seed))
    rows = theory.plan(numbers, clock("async"), clock("full"), known, seconds)
    chosen = theory.recommend(rows, raced, target) if raced or known else None
    _answer(rows, raced, chosen, as_json)
    if picture is not None:
        _draw(picture, rows, raced, chosen, target)
        show.note(f"drawn into {picture}", quiet or as_json)
    if chosen is None:
        show.note("With --pilot, or --constants of your problem, one k is recommended.", quiet or as_json)


def whole_numbers(text: str) -> list[int]:
    """1,10,100 as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"k = {text!r}: give whole numbers separated by commas, 1,10,100, say.") from None


def _rates(text: str | None) -> list[float | None]:
    """0.01,0.1 as numbers; None is what suits the data set."""
    if text is None:
        return [None]
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"lr = {text!r}: give a number, or several separated by commas, 0.01,0.1, say.") from None


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
    arrivals: str | None,
    durations: str | None,
    speeds: str | None,
    trace: Path | None,
    timeline: Path | None,
    quiet: bool,
) -> tuple[dict[str, Any], int]:
    """The settings under [arrivals], and how many clients the source speaks of."""
    named = {"--durations": durations, "--trace": trace, "--timeline": timeline}
    sources = [name for name, value in named.items() if value is not None]
    if len(sources) > 1:
        raise UserError(f"{' and '.join(sources)} both say how long work takes: give one of them.")
    for name, value in {"--durations": durations, "--speeds": speeds, "--timeline": timeline}.items():
        if arrivals is not None and value is not None:
            raise UserError(f"--arrivals and {name} both describe the fleet: write the one into the other.")
    if arrivals is not None or trace is not None:
        from kasync import timelines
        from kasync.experiments.arrivals import from_text

        table = from_text(arrivals, trace) or {}
        if table["kind"] not in CLOCKS:
            raise UserError(f"arrivals = {table['kind']!r}: a plan needs a clock, so use {', '.join(CLOCKS)}.")
        table |= {"speeds": choice(speeds)} if speeds else {}
        if "folder" in table:
            return table, timelines.traces.read(table["folder"]).clients
        return table, timelines.durations.trace(trace).clients if trace is not None else CLIENTS
    drawn = {"speeds": choice(speeds)} if speeds else {}
    if timeline is not None:
        if speeds:
            raise UserError("--timeline and --speeds both say how fast clients are: give one of them.")
        return _fitted(timeline, quiet)
    return {"kind": "clock", "durations": choice(durations or "log_normal"), **drawn}, CLIENTS


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


def _row(row: Any, pilot: Any, chosen: Any) -> dict[str, Any]:
    told = {
        "k": row.k,
        "seconds_per_step": row.seconds_per_step,
        "gradients_per_second": row.gradients_per_second,
        "staleness": row.mean_staleness,
        **{f"staleness_{share:.0%}": value for share, value in row.staleness_quantiles.items()},
        "max_staleness": row.max_staleness,
        "waiting": row.idle_share,
        "waiting_synchronous": row.sync_idle_share,
        "idle_saved": row.idle_saved,
        "synchronous_seconds_per_step": row.sync_seconds_per_step,
        "fairness": row.fairness,
        "fewest_deliveries": row.fewest_deliveries,
        "median_deliveries": row.median_deliveries,
        "most_deliveries": row.most_deliveries,
    }
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
