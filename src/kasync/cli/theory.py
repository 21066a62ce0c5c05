"""kasync theory: what the paper's theorems promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, Quiet
from kasync.errors import UserError


def theory(
    file: Annotated[Path | None, typer.Argument(help="A run's folder or its run.toml: measure along it.")] = None,
    smoothness: Annotated[float, typer.Option(help="L.")] = 1.0,
    gradient_noise: Annotated[float, typer.Option(help="sigma_c, of one sample's gradient.")] = 1.0,
    noise_growth: Annotated[float, typer.Option(help="M_c.")] = 0.0,
    heterogeneity: Annotated[float, typer.Option(help="G, how far clients' gradients lie from the whole's.")] = 0.1,
    initial_gap: Annotated[float, typer.Option(help="F at the start less its least value.")] = 1.0,
    batch_size: Annotated[int, typer.Option(help="m.")] = 8,
    clients: Annotated[int, typer.Option(help="P.")] = 1000,
    k: Annotated[int, typer.Option("-k", "--k", help="Deliveries per step.")] = 10,
    steps: Annotated[int, typer.Option(help="J.")] = 1000,
    max_staleness: Annotated[int | None, typer.Option(help="tau_max; P/K without it.")] = None,
    lr: Annotated[float | None, typer.Option(help="The theory's best constant rate without it.")] = None,
    momentum: Annotated[float, typer.Option(help="alpha.")] = 0.0,
    looks: Annotated[int, typer.Option(help="Steps of the run at which grad F is measured.")] = 60,
    picture: Annotated[Path | None, typer.Option(help="Draw the run and its bound: theory.png, say.")] = None,
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
    from dataclasses import replace

    from kasync import theory as proven
    from kasync import timelines

    if not 1 <= k <= clients:
        raise UserError(f"k = {k} with clients = {clients}: give a k of at least 1 and at most as many as clients.")
    constants = proven.StageOne(
        smoothness=smoothness,
        gradient_noise=gradient_noise,
        noise_growth=noise_growth,
        heterogeneity=heterogeneity,
        batch_size=batch_size,
        k=k,
        steps=steps,
        max_staleness=clients // k if max_staleness is None else max_staleness,
        learning_rates=1.0 if lr is None else lr,
        initial_gap=initial_gap,
        momentum=momentum,
    )
    rate = proven.best_rate(constants) if lr is None else lr
    bound = proven.theorem_one(replace(constants, learning_rates=rate))
    answer = {
        "learning_rate": rate,
        **{f"term: {name}": value * bound.scale for name, value in bound.terms.items()},
        "bound_on_mean_squared_gradient": bound.mean_squared_gradient,
        **{f"condition holds: {each.name}": each.holds for each in bound.conditions if each.required},
        "least_mean_staleness_held_from_1": timelines.staleness_bound(clients, k),
    }
    if as_json:
        show.value(answer)
    else:
        show.rows([{"quantity": name, "value": value} for name, value in answer.items()])


def _of_run(file: Path, looks: int, picture: Path | None, as_json: bool, quiet: bool) -> None:
    from kasync.experiments.build import chapters
    from kasync.experiments.settings import RunSettings
    from kasync.theory.pictures import check_place

    if picture is not None:
        check_place(picture)
    settings = RunSettings.read(file / "run.toml" if file.is_dir() else file)
    show.note(f"repeating the {settings.steps} steps of {file}, measuring at {looks} of them", quiet or as_json)
    written = chapters(settings, looks)
    if not written:
        raise UserError(f"looks = {looks}: fewer than two of them fall into a stage of this run; raise it.")
    answers = [_chapter(chapter) for chapter in written]
    if as_json:
        show.value(answers)
    else:
        for answer in answers:
            show.rows([{"quantity": name, "value": value} for name, value in answer.items() if name != "verdict"])
            print(answer["verdict"])
    if picture is not None:
        _draw(picture, written)
        show.note(f"drawn into {picture}", quiet or as_json)


def _chapter(chapter: Any) -> dict[str, Any]:
    """One stage as names and values, and in one sentence."""
    from math import isfinite

    bound, norms = chapter.bound, chapter.norms
    says = isfinite(bound.scale)  # else the weights V_j of Theorem 2 are negative on average
    scale = bound.scale if says else 1.0
    measured = vars(chapter.measured) | (vars(chapter.measured_two) if chapter.measured_two is not None else {})
    return {
        "theorem": bound.theorem,
        "steps": len(norms),
        **{f"measured: {name}": estimate.value for name, estimate in measured.items()},
        **{f"term: {name}": value * scale for name, value in bound.terms.items()},
        "bound_on_mean_squared_gradient": bound.mean_squared_gradient if says else None,
        "mean_squared_gradient": bound.left_side(norms) * scale if says else None,
        "looseness": bound.looseness(norms) if says else None,
        "dominant": bound.dominant,
        **{f"condition holds: {each.name}": each.holds for each in bound.conditions if each.required},
        "verdict": _verdict(bound, bound.looseness(norms) if says else None),
    }


def _verdict(bound: Any, loose: float | None) -> str:
    """How loose, which term, and whether the theorem may be asked at all, in one sentence."""
    largest = f"{bound.terms[bound.dominant] / bound.total:.0%} of its right side is {bound.dominant}"
    failing = ", ".join(f"{each.name} by a factor of {each.excess:.3g}" for each in bound.failing)
    condition = "its conditions hold" if bound.holds else f"its conditions fail ({failing}), so it promises nothing"
    measured = "" if loose is None else f" is {loose:.3g} times what the run did"
    return f"{bound.theorem}{measured}: {largest}; {condition}."


def _draw(path: Path, written: Any) -> None:
    from kasync.report.figures import legend, panels
    from kasync.theory.pictures import draw_bound, save

    figure, axes = panels(len(written), 2, width=4.6, height=3.4)
    for row, chapter in zip(axes, written, strict=True):
        draw_bound(row, chapter.after, chapter.norms)
    legend(figure, axes)
    save(figure, path)
