"""kasync plan, theory and bench: the choice of k, the paper's theorems beside a run, and the speed of this machine."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import kasync
from kasync import experiments, timelines
from kasync.cli import show
from kasync.cli.options import AsJson, Flags, Picture, Quiet, RuleName, choice, numbers, pairs, takes
from kasync.errors import UserError, unknown
from kasync.experiments.experiment import settings_for
from kasync.experiments.settings import Choice, RunSettings
from kasync.report.figures import legend, panels

KS = (1, 3, 10, 30, 100)
CLIENTS = 1000
CONSTANTS: Flags = {  # of Theorem 1
    "smoothness": (Annotated[float, typer.Option(help="L.")], 1.0),
    "gradient_noise": (Annotated[float, typer.Option(help="sigma_c, of one sample's gradient.")], 1.0),
    "noise_growth": (Annotated[float, typer.Option(help="M_c.")], 0.0),
    "heterogeneity": (Annotated[float, typer.Option(help="G, how far clients' gradients lie from the whole's.")], 0.1),
    "initial_gap": (Annotated[float, typer.Option(help="F at the start less its least value.")], 1.0),
    "batch_size": (Annotated[int, typer.Option(help="m.")], 8),
    "momentum": (Annotated[float, typer.Option(help="alpha.")], 0.0),
}
COLUMNS = (  # of a row of the plan
    *("k", "seconds_per_step", "gradients_per_second", "mean_staleness", "max_staleness", "idle_share"),
    *("sync_idle_share", "idle_saved", "sync_seconds_per_step"),
    *("fairness", "fewest_deliveries", "median_deliveries", "most_deliveries"),
)
NAMED = {  # where the table has another name
    "mean_staleness": "staleness",
    "idle_share": "waiting",
    "sync_idle_share": "waiting_synchronous",
    "sync_seconds_per_step": "synchronous_seconds_per_step",
}
NARROW = (  # on a terminal; a pipe and JSON get all
    *("k", "seconds_per_step", "staleness", "staleness_99%", "idle_saved", "fairness", "bound", "mostly"),
    *("seconds_to_target", "accuracy", "ran_until", "lr", "recommended"),
)
OF_ASYNC = (  # settings of a clock that a full step has not
    *("concurrency", "restart", "previous_model", "starts", "select", "deadline", "max_staleness"),
)


@takes(
    *("clients", "arrivals", "trace", "dataset", "model", "partition", "work", "loss", "batch_size"),
    *("seed", "device", "root"),
)
def plan(
    *,
    given: dict[str, Any],
    ks: Annotated[str | None, typer.Option("-k", "--k", help="The k to compare, separated by commas.")] = None,
    durations: Annotated[str | None, typer.Option(help="Time for a piece of work: log_normal:spread=0.5 ...")] = None,
    speeds: Annotated[str | None, typer.Option(help="A factor for each client, drawn once: kind:...")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Fit the durations to a live run's timeline.npz.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Virtual time to look at, and at most for a pilot.")] = None,
    pilot: Annotated[bool, typer.Option("--pilot", help="Try each k on your task and recommend one.")] = False,
    target: Annotated[float | None, typer.Option(help="The accuracy that is to be reached soonest.")] = None,
    rule: Annotated[str, RuleName] = "wkafl",
    lr: Annotated[str | None, typer.Option(help="One rate for every k, or several: each k at its best.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting of the rule, name=value.")] = None,
    seeds: Annotated[int, typer.Option(help="Pilots of each k, paired.")] = 3,
    thorough: Annotated[bool, typer.Option("--thorough", help="Stop no pilot early: the full sweep.")] = False,
    constants: Annotated[
        str | None, typer.Option(help="Of the problem, for Theorem 1: smoothness=1,heterogeneity=0.5 ...")
    ] = None,
    picture: Picture = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare values of k on your fleet: pace, staleness, waiting, fairness, theory; with --pilot, which to take.

    Example: `kasync plan --durations log_normal:spread=0.5 --speeds log_normal -k 2,10,50 --pilot --target 0.8`
    """
    from kasync import theory
    from kasync.theory.pictures import check_place, draw_plan

    build, silent = experiments.build, quiet or as_json
    if picture is not None:
        check_place(picture)
    fleet, there = _fleet(given.get("arrivals"), durations, speeds, timeline, silent)
    population, seed = int(given.get("clients", there)), int(given.get("seed", 0))
    at_work = fleet.get("concurrency", population)
    most = min(at_work, population) if isinstance(at_work, int) else population
    ks_wanted = sorted(set(numbers("k", ks, int))) if ks else [k for k in KS if k <= most]
    if ks_wanted and ks_wanted[-1] > most:
        raise UserError(f"k = {ks_wanted[-1]}: only {most} clients are at work at a time, so give a k up to {most}.")
    if target is not None and not pilot:
        raise UserError(f"target = {target}: only pilots can tell when an accuracy is reached; add --pilot.")
    given |= {"clients": population, "arrivals": fleet}
    settings = pairs(set_)

    def describe(k: int, rate: float | None, seed: int) -> Any:
        rates = {} if rate is None else {"lr": rate}
        return build.OpenRun(settings_for(rule, {**given, "k": k, "seed": seed}, settings | rates).resolved())

    def clock(mode: str) -> Any:
        kept = {name: value for name, value in fleet.items() if mode == "async" or name not in OF_ASYNC}
        arrivals = Choice.of("arrivals", {**kept, "mode": mode})
        plain = RunSettings(clients=population, seed=seed, arrivals=arrivals)
        return lambda k, steps: build.timeline_of(replace(plain, k=k, steps=steps))

    rates: list[float | None] = [None] if lr is None else numbers("lr", lr, float)
    known, raced = _constants(constants), tuple[theory.Pilot, ...]()
    if pilot:
        seeded, tell = range(seed, seed + seeds), lambda words: show.note(words, silent)
        with show.interruptible():
            raced = theory.race(describe, ks_wanted, rates, target, seeded, seconds, thorough, tell=tell)
        task = describe(ks_wanted[0], rates[0], seed).settings
        if task.work.kind == "gradient":  # the theorems are about one gradient
            known = build.constants_at_start(task)
    rows = theory.plan(ks_wanted, clock("async"), clock("full"), known, seconds)
    chosen = theory.recommend(rows, raced, target) if raced or known else None
    best = theory.planning.best_of(raced)
    table = [_row(row, best.get(row.k), chosen) for row in rows]
    if sys.stdout.isatty() and not as_json:
        filled = [name for name in NARROW if any(row.get(name) is not None for row in table)]
        table = [{name: row.get(name) for name in filled} for row in table]
    show.rows(table, as_json)
    if chosen is not None and not as_json:
        show.say(f"recommended\t{chosen.reason}")
    if picture is not None:
        figure, axes = panels(1, 3, width=4.0, height=3.3)
        draw_plan(axes[0], rows, raced, chosen, target)
        _keep(figure, axes, picture, silent)
    if chosen is None:
        show.note("With --pilot, or --constants of your problem, one k is recommended.", silent)


def _keep(figure: Any, axes: Any, picture: Path, silent: bool) -> None:
    from kasync.theory.pictures import save

    legend(figure, axes)
    save(figure, picture)
    show.note(f"drawn into {picture}", silent)


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
    values = {name: default for name, (_, default) in CONSTANTS.items()} | named
    return StageOne(**values, k=1, steps=1, max_staleness=0, learning_rates=1.0)


def _fleet(
    arrivals: dict[str, Any] | None, durations: str | None, speeds: str | None, timeline: Path | None, quiet: bool
) -> tuple[dict[str, Any], int]:
    """The settings under [arrivals], and how many clients the source speaks of."""
    table = dict(arrivals or {})
    traced = table["durations"] if isinstance(table.get("durations"), dict) else {}
    trace = "--trace" if "folder" in table or traced.get("kind") == "trace" else None
    named = {"--durations": durations, trace or "--arrivals": arrivals, "--timeline": timeline, "--speeds": speeds}
    sources = [name for name, value in named.items() if value is not None]
    if len(sources) > 1 and sources not in (["--durations", "--speeds"], ["--trace", "--speeds"]):
        both = "both" if len(sources) == 2 else "all"
        raise UserError(f"{' and '.join(sources)} {both} describe the fleet: give one of them.")
    if timeline is not None:
        return _fitted(timeline, quiet)
    table = table or {"kind": "clock", "durations": choice(durations or "log_normal")}
    table |= {"speeds": choice(speeds)} if speeds else {}
    if table["kind"] not in experiments.build.CLOCKS:
        clocks = ", ".join(experiments.build.CLOCKS)
        raise UserError(f"arrivals = {table['kind']!r}: a plan needs a clock, so use {clocks}.")
    if "folder" in table:
        return table, timelines.traces.read(table["folder"]).clients
    return table, timelines.durations.trace(traced["source"]).clients if trace else CLIENTS


def _fitted(path: Path, quiet: bool) -> tuple[dict[str, Any], int]:
    """A fleet like the one that made the timeline: durations of the best fit, speeds as widely spread."""
    from kasync import theory

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


def _row(row: Any, pilot: Any, chosen: Any) -> dict[str, Any]:
    told = {NAMED.get(name, name): getattr(row, name) for name in COLUMNS}
    told |= {f"staleness_{share:.0%}": value for share, value in row.staleness_quantiles.items()}
    if row.terms:
        told |= {f"bound_{name}": value for name, value in row.terms.items()}
        told |= {"bound": row.bound, "mostly": max(row.terms, key=lambda name: row.terms[name])}
    if pilot is not None:
        told["seconds_to_target"] = pilot.typical_seconds if pilot.reached else None
        told |= {"accuracy": statistics.mean(pilot.accuracies), "ran_until": pilot.until, "lr": pilot.lr}
    if chosen is not None:
        told |= {"recommended": row.k == chosen.k, "reason": chosen.reason if row.k == chosen.k else ""}
    return told


# ---- what the theorems promise


@takes(constants=CONSTANTS)
def theory(
    *,
    file: Annotated[Path | None, typer.Argument(help="A run's folder or its run.toml: measure along it.")] = None,
    constants: dict[str, Any],
    clients: Annotated[int, typer.Option(help="P.")] = 1000,
    k: Annotated[int, typer.Option("-k", "--k", help="Deliveries per step.")] = 10,
    steps: Annotated[int, typer.Option(help="J.")] = 1000,
    max_staleness: Annotated[int | None, typer.Option(help="tau_max; P/K without it.")] = None,
    lr: Annotated[float | None, typer.Option(help="The theory's best constant rate without it.")] = None,
    looks: Annotated[int, typer.Option(help="Steps of the run at which grad F is measured.")] = 60,
    picture: Picture = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """What the theorems promise: for constants you give, or against what a run of yours really did.

    With a run, its constants are measured along it (the run is repeated for that), each stage is held against its
    theorem, and you are told how loose the bound is, which term dominates, and which conditions fail.

    Example: `kasync theory -k 20 --clients 3000 --steps 10000 --heterogeneity 0.5`

    Example: `kasync theory kasync-runs/runs/my-run --picture theory.png`
    """
    if file is not None:
        _of_run(file, looks, picture, as_json, quiet)
        return
    if picture is not None:
        raise UserError(f"picture = {picture}: only a run can be drawn beside its bound; name its folder.")
    from kasync import theory as proven

    if not 1 <= k <= clients:
        raise UserError(f"k = {k} with clients = {clients}: give a k of at least 1 and at most as many as clients.")
    stale = clients // k if max_staleness is None else max_staleness
    given = proven.StageOne(**constants, k=k, steps=steps, max_staleness=stale, learning_rates=1.0)
    rate = proven.best_rate(given) if lr is None else lr
    bound = proven.theorem_one(replace(given, learning_rates=rate))
    answer = {"learning_rate": rate, **_promised(bound, bound.scale, bound.mean_squared_gradient)}
    answer["least_mean_staleness_held_from_1"] = timelines.staleness_bound(clients, k)
    if as_json:
        show.value(answer)
    else:
        show.rows([{"quantity": name, "value": value} for name, value in answer.items()])


def _of_run(file: Path, looks: int, picture: Path | None, as_json: bool, quiet: bool) -> None:
    from kasync.theory.pictures import check_place, draw_bound

    if picture is not None:
        check_place(picture)
    settings = RunSettings.read(file / "run.toml" if file.is_dir() else file)
    show.note(f"repeating the {settings.steps} steps of {file}, measuring at {looks} of them", quiet or as_json)
    written = experiments.build.chapters(settings, looks)
    if not written:
        raise UserError(f"looks = {looks}: fewer than two of them fall into a stage of this run; raise it.")
    answers = [_chapter(chapter) for chapter in written]
    if as_json:
        show.value(answers)
    for answer in [] if as_json else answers:
        show.rows([{"quantity": name, "value": value} for name, value in answer.items() if name != "verdict"])
        show.say(answer["verdict"])
    if picture is not None:
        figure, axes = panels(len(written), 2, width=4.6, height=3.4)
        for row, chapter in zip(axes, written, strict=True):
            draw_bound(row, chapter.after, chapter.norms)
        _keep(figure, axes, picture, quiet or as_json)


def _promised(bound: Any, scale: float, most: float | None, **beside: Any) -> dict[str, Any]:
    """The terms of a bound, the bound with what stands beside it, and whether its conditions hold."""
    terms = {f"term: {name}": value * scale for name, value in bound.terms.items()}
    holds = {f"condition holds: {each.name}": each.holds for each in bound.conditions if each.required}
    return {**terms, "bound_on_mean_squared_gradient": most, **beside, **holds}


def _chapter(chapter: Any) -> dict[str, Any]:
    """One stage as names and values, and in one sentence: how loose, which term, and whether the theorem may be asked.

    Where the weights V_j of Theorem 2 are negative on average, nothing is known of the squared gradient.
    """
    bound, norms = chapter.bound, chapter.norms
    measured = vars(chapter.measured) | (vars(chapter.measured_two) if chapter.measured_two is not None else {})
    answer = {"theorem": bound.theorem, "steps": len(norms)}
    answer |= {f"measured: {name}": estimate.value for name, estimate in measured.items()}
    most = did = loose = None
    if says := isfinite(bound.scale):
        most, did, loose = bound.mean_squared_gradient, bound.left_side(norms) * bound.scale, bound.looseness(norms)
    beside = {"mean_squared_gradient": did, "looseness": loose, "dominant": bound.dominant}
    answer |= _promised(bound, bound.scale if says else 1.0, most, **beside)
    largest = f"{bound.terms[bound.dominant] / bound.total:.0%} of its right side is {bound.dominant}"
    failing = ", ".join(f"{each.name} by a factor of {each.excess:.3g}" for each in bound.failing)
    condition = "its conditions hold" if bound.holds else f"its conditions fail ({failing}), so it promises nothing"
    compared = "" if loose is None else f" is {loose:.3g} times what the run did"
    return answer | {"verdict": f"{bound.theorem}{compared}: {largest}; {condition}."}


# ---- how fast this machine is

SHAPES = {"lenet": (3, 32, 32), "celeba_cnn": (3, 84, 84)}  # the others take 1x28x28
SAMPLES = 1000
CLASSES = 10
BENCH = {"model": "lenet", "clients": 1000, "k": 10, "steps": 200, "device": "cpu"}


@takes("model", "clients", "k", "batch_size", "steps", "device")
def bench(*, given: dict[str, Any], rule: Annotated[str, RuleName] = "wkafl", as_json: AsJson = False) -> None:
    """Time the simulator on random pixels, beside the floor: one forward and backward pass over the same samples.

    Without options: lenet, 1,000 clients, k = 10, 200 steps, on the CPU. The repository's benchmarks/ measure more,
    against other libraries; this one needs nothing but the package.

    Example: `kasync bench --model lenet --clients 3000 -k 10 --device cuda`
    """
    given, began = {**BENCH, **given}, time.perf_counter()
    settings = settings_for(rule, given, {}).resolved()
    where = f"{settings.model} on {settings.device}, {settings.clients} clients, k = {settings.k}"
    show.note(f"timing {settings.steps} steps of {where}", as_json)
    row = {name: value for name, value in given.items() if name != "work"} | {"rule": rule, **timed(settings)}
    show.rows([{**row, "in_all_s": round(time.perf_counter() - began, 1)}], as_json)


def timed(settings: RunSettings) -> dict[str, Any]:
    """Milliseconds per step once it is warm, client updates per second, and the floor, on random pixels.

    The records of a piece of steps come together when all of them are computed, so the clock is read between pieces.
    Steps are timed far from the end of the timeline: what is never delivered any more is not computed.
    """
    from kasync.simulator.plan import CHUNK

    build, rng = experiments.build, np.random.default_rng(settings.seed)
    shape = SHAPES.get(settings.model, (1, 28, 28))
    inputs = rng.integers(0, 256, (SAMPLES, *shape), dtype=np.uint8)  # [N, C, H, W]
    labels = rng.integers(0, CLASSES, SAMPLES)
    parts = [rng.integers(0, SAMPLES, 20) for _ in range(settings.clients)]
    data = kasync.data.from_arrays(inputs, labels, inputs[:10], labels[:10], parts, CLASSES)
    model = kasync.models.build(settings.model, shape, settings.seed, CLASSES)
    tail = 5 * settings.clients // settings.k
    whole = replace(settings, steps=CHUNK + settings.steps + tail)
    rule, timeline, work = build.rule_of(settings, None), build.timeline_of(whole), build.work_of(settings)
    simulation = kasync.simulate(model, data, rule, timeline, work, device=settings.device, evaluate_every=whole.steps)
    ends = {}  # step -> when the piece that ends with it was there; the first one is the warm-up
    for record in simulation:
        if record.step == simulation.done:
            ends[record.step] = time.perf_counter()
            if record.step >= CHUNK + settings.steps:
                break
    first, last = min(ends), max(ends)
    pace = (ends[last] - ends[first]) / max(1, last - first)
    floor = _floor(model.to(settings.device), (settings.k * int(settings.work.settings["batch_size"]), *shape))
    ms = {"ms_per_step": round(1000 * pace, 3), "updates_per_second": round(settings.k / max(pace, 1e-9))}
    return ms | {"floor_ms": round(1000 * floor, 3), "times_floor": round(pace / floor, 2)}


def _floor(model: Any, shape: tuple[int, ...], tries: int = 20) -> float:
    """Seconds of one forward and backward pass over inputs of this shape, the median of some."""
    import torch
    from torch.utils.benchmark import Timer

    device = next(model.parameters()).device
    inputs = torch.rand(shape, device=device)
    labels = torch.zeros(shape[0], dtype=torch.int64, device=device)
    passes = "model.zero_grad(); torch.nn.functional.cross_entropy(model(inputs), labels).backward()"
    names = {"model": model, "inputs": inputs, "labels": labels, "torch": torch}
    timer = Timer(passes, globals=names, num_threads=torch.get_num_threads())
    return statistics.median(timer.timeit(1).mean for _ in range(tries))
