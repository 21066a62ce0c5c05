"""What if every client took its own time? Arrivals by a virtual clock: K-async, K-sync and fully synchronous."""

from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.counter import Stream
from kasync.errors import UserError
from kasync.timelines import checks
from kasync.timelines.asynchronous import run_async
from kasync.timelines.durations import Durations, trace
from kasync.timelines.pieces import Pieces
from kasync.timelines.presence import Always, Availability, Dropouts
from kasync.timelines.synchronous import run_full, run_sync
from kasync.timelines.timeline import Timeline

MODES = {"async": run_async, "sync": run_sync, "full": run_full}


def clock(
    clients: int,
    k: int,
    steps: int,
    durations: Durations,
    seed: int = 0,
    mode: str = "async",
    *,
    speeds: ArrayLike | Durations | None = None,
    availability: Availability | None = None,
    dropouts: Dropouts | None = None,
    lost: float = 0.0,
    allow_short: bool = False,
) -> Timeline:
    """Play a virtual clock; every random number is a function of (seed, client, number of the piece of work).

    async  the first k uploads make an update, their clients get the new model, the others keep working (K-async)
    sync   everybody gets every new model, the k fastest are used (K-sync; here a step costs a look at all clients)
    full   k clients are drawn for each step and the server waits for the slowest of them (FedAvg)

    speeds        one factor per client (2 is twice as fast), or a distribution to draw them from once
    availability  `Repeating` windows or given `Intervals`; work cut off by the end of a window is thrown away
    dropouts      `Dropouts(chance, away)`: for each piece of work the chance to leave, for a time or for good
    lost          share of the uploads that never reach the server; the client then takes the current model
    allow_short   when fewer than k clients remain: return the steps there are instead of an error
    """
    clients, k, steps = checks.sizes(clients, k, steps)
    run = MODES[checks.one_of("mode", mode, MODES)]
    if not isinstance(durations, Durations):
        raise UserError(f"durations is {durations!r}: give one such as durations.exponential(1.0).")
    if dropouts is not None and not isinstance(dropouts, Dropouts):
        raise UserError(f"dropouts is {dropouts!r}: give Dropouts(chance, away).")
    if availability is not None and not hasattr(availability, "opening"):
        raise UserError(f"availability is {availability!r}: give Repeating(length, every) or Intervals(rows).")
    there = Always() if availability is None else availability
    there.check(clients, k)
    pieces = Pieces(
        durations=durations,
        seed=checks.seed_of(seed),
        speeds=_speeds(speeds, clients, seed),
        availability=there,
        dropouts=Dropouts(0.0) if dropouts is None else dropouts,
        lost=checks.share("lost", lost),
    )
    recorded = run(clients, k, steps, pieces)
    reached = len(recorded.times)
    if reached < steps and not (allow_short and reached):
        remedy = f"ask for {reached} steps, pass allow_short=True, " if reached else ""
        raise UserError(
            f"at step {reached} fewer than k = {k} clients will ever deliver again: {remedy}lower k or the losses."
        )
    return Timeline(
        clients=recorded.clients,
        versions=recorded.versions,
        times=recorded.times,
        population=clients,
        kind=f"clock, {mode}",
        settings=_settings(pieces),
    )


def from_trace(
    file: str | PathLike[str], k: int, steps: int, clients: int | None = None, seed: int = 0, **options: Any
) -> Timeline:
    """The clock with measured seconds from a csv file `client,seconds`; options are those of `clock`.

    A client's rows are used in their order, again from the first after the last. Without `clients` there are as many
    as in the file; with more than that, the file's clients are used several times.
    """
    measured = trace(file)
    return clock(measured.clients if clients is None else clients, k, steps, measured, seed, **options)


def _speeds(speeds: ArrayLike | Durations | None, clients: int, seed: int) -> NDArray[np.float64] | None:
    """[clients]: finite factors above zero."""
    if speeds is None:
        return None
    if isinstance(speeds, Durations):
        everyone = np.arange(clients)
        return speeds.seconds(seed, everyone, np.zeros_like(everyone), Stream.SPEEDS)
    try:
        factors = np.array(speeds, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"speeds is {speeds!r}: give one number above 0 for each of the {clients} clients.") from None
    if factors.shape != (clients,) or not (np.isfinite(factors) & (factors > 0)).all():
        raise UserError(
            f"speeds of shape {factors.shape}: give one finite number above 0 for each of {clients} clients."
        )
    return factors


def _settings(pieces: Pieces) -> dict[str, Any]:
    """Plain values that say how the timeline was made."""
    settings: dict[str, Any] = {"seed": pieces.seed, "durations": repr(pieces.durations)}
    if pieces.speeds is not None:
        settings["speeds"] = f"{pieces.speeds.min():.3g} to {pieces.speeds.max():.3g}"
    if not isinstance(pieces.availability, Always):
        settings["availability"] = repr(pieces.availability)
    if pieces.dropouts.chance:
        settings["dropouts"] = repr(pieces.dropouts)
    if pieces.lost:
        settings["lost"] = pieces.lost
    return settings
