"""kasync theory: what the paper's theorems promise."""

from __future__ import annotations

from typing import Annotated

import typer

from kasync.cli import show
from kasync.cli.options import AsJson


def theory(
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
    as_json: AsJson = False,
) -> None:
    """Theorem 1's bound on the mean squared gradient, term by term, its conditions, and Appendix D's least staleness.

    Example: `kasync theory -k 20 --clients 3000 --steps 10000 --heterogeneity 0.5`
    """
    from dataclasses import replace

    from kasync import checks, timelines
    from kasync import theory as proven

    checks.count("k", k)
    checks.count("clients", clients, least=k)
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
