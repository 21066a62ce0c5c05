"""kasync plan: what a k costs before anything is trained."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kasync.cli import show
from kasync.cli.options import AsJson, choice
from kasync.errors import UserError


def plan(
    clients: Annotated[int, typer.Option(help="How many clients there are.")] = 1000,
    ks: Annotated[str, typer.Option("-k", "--k", help="The k to compare, separated by commas.")] = "1,10,30,100",
    durations: Annotated[
        str, typer.Option(help="How long a piece of work takes: kind:setting=value,...")
    ] = "log_normal",
    speeds: Annotated[str | None, typer.Option(help="A factor for each client, drawn once: kind:...")] = None,
    seconds: Annotated[float | None, typer.Option(help="Virtual time to look at.")] = None,
    seed: Annotated[int, typer.Option(help="Decides all that is random.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare values of k: pace, staleness, waiting and fairness, against the synchronous server.

    Example: `kasync plan --clients 1000 -k 1,10,100 --durations pareto:shape=1.5`
    """
    from kasync import theory, timelines
    from kasync.experiments.arrivals import durations_of

    numbers = whole_numbers(ks)
    works = durations_of(choice(durations), "durations")
    drawn = durations_of(choice(speeds), "speeds") if speeds else None

    def of(mode: str) -> Any:
        return lambda k, steps: timelines.clock(clients, k, steps, works, seed, mode, speeds=drawn)

    table = theory.plan(numbers, of("async"), of("full"), horizon_seconds=seconds)
    show.rows(
        [
            {
                "k": row.k,
                "seconds_per_step": row.seconds_per_step,
                "gradients_per_second": row.gradients_per_second,
                "staleness": row.mean_staleness,
                "staleness_99%": row.staleness_quantiles[0.99],
                "max_staleness": row.max_staleness,
                "waiting": row.idle_share,
                "waiting_synchronous": row.sync_idle_share,
                "synchronous_seconds_per_step": row.sync_seconds_per_step,
                "fairness": row.fairness,
            }
            for row in table
        ],
        as_json,
    )


def whole_numbers(text: str) -> list[int]:
    """1,10,100 as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"k = {text!r}: give whole numbers separated by commas, 1,10,100, say.") from None
