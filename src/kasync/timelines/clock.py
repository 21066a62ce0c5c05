"""Arrivals by a virtual clock: K-async with all or some of the clients at work, K-sync and fully synchronous."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kasync.counter import Stream
from kasync.errors import UserError
from kasync.timelines import checks
from kasync.timelines.availability import Always, Availability, Dropouts, Fleet
from kasync.timelines.durations import Durations, trace
from kasync.timelines.events import Dispatch, Recorded, run_async, run_full, run_limited, run_open, run_rounds, run_sync
from kasync.timelines.selection import SELECTIONS, Choice, Custom
from kasync.timelines.timeline import Timeline

MODES: dict[str, Callable[[int, int, int, Fleet], Recorded]] = {
    "async": run_async,
    "sync": run_sync,
    "full": run_full,
}


@dataclass(frozen=True)
class WorkShare:
    """Local steps in proportion to a client's speed, so that all take about as long.

    The reference client does `steps` of them, and one that is twice as fast twice as many: the reference is the client
    of median speed, or with relative_to="fastest" the fastest (the dynamic local steps of Liu et al., 2024). Never
    fewer than `least`, nor more than `most`.
    """

    steps: int
    relative_to: str = "median"
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        checks.whole("work_share's steps", self.steps, 1)
        checks.one_of("relative_to", self.relative_to, ("median", "fastest"))
        checks.whole("least", self.least, 1)
        if self.most is not None:
            checks.whole("most", self.most, self.least)

    def of(
        self, durations: Durations, speeds: NDArray[np.float64] | None, clients: int, seed: int
    ) -> NDArray[np.int32]:
        """[clients]: local steps of each; a client's speed is known from what its work usually takes."""
        typical = durations.typical(seed, np.arange(clients))
        if speeds is not None:
            typical = typical / speeds
        reference = float(np.median(typical) if self.relative_to == "median" else typical.min())
        wanted = np.floor(self.steps * reference / typical + 1e-9)
        return np.clip(wanted, self.least, 2**31 - 1 if self.most is None else self.most).astype(np.int32)


def clock(
    clients: int,
    k: int,
    steps: int,
    durations: Durations,
    seed: int = 0,
    mode: str = "async",
    *,
    concurrency: int | None = None,
    restart: str = "arrival",
    previous_model: int = 0,
    starts: Durations | None = None,
    select: str | Choice = "uniform",
    deadline: float | None = None,
    max_staleness: int | None = None,
    speeds: ArrayLike | Durations | None = None,
    transfer: Durations | None = None,
    work_share: WorkShare | None = None,
    availability: Availability | None = None,
    dropouts: Dropouts | None = None,
    lost: float = 0.0,
    interrupted: str = "lost",
    allow_short: bool = False,
) -> Timeline:
    """Play a virtual clock; every random number is a function of (seed, client, number of the piece of work).

    async  the first k uploads make an update, their clients get the new model, the others keep working (K-async)
    sync   everybody gets every new model, the k fastest are used (K-sync; here a step costs a look at all clients)
    full   k clients are drawn for each step and the server waits for the slowest of them (FedAvg)

    concurrency    so many clients work at a time; without it all do. With mode="sync", so many are chosen for each
                   step (over-selection)
    restart        "arrival": whoever is done is replaced at once, by a client that gets the current model (FedBuff);
                   "update": the k are replaced when the update is made
    previous_model of the k chosen at an update, so many get the model before it (k - 1 in FADAS's published code), but
                   for those that have just delivered; with restart="update"
    starts         instead of `concurrency`: seconds from one start to the next, whoever is done (open arrivals, FLSim)
    select         who is chosen: "uniform", "in_turn", "available", "least_heard", "new_then_last", or a function of
                   `selection.Known`
    deadline       seconds after its choice when the server gives up on a client, or on a round that is not complete
    max_staleness  the server drops what is older than this when it arrives
    speeds         one factor per client (2 is twice as fast), or a distribution to draw them from once
    transfer       seconds for download and upload on top, such as `durations.transfer(kilobytes, down, up)`
    work_share     fast clients do more local steps: `WorkShare(steps)`; durations speak of ordinary work
    availability   `Repeating` windows, given `Intervals`, or those of traces
    dropouts       `Dropouts(chance, away)`: for each piece of work the chance to leave, for a time or for good
    lost           share of the uploads that never reach the server
    interrupted    "lost": work cut off by the end of a window or by a drop-out comes to nothing; "resumed": it goes on
                   when the client is back
    allow_short    when fewer than k clients remain: return the steps there are instead of an error

    Without `concurrency`, a client whose work came to nothing takes the current model and tries again; with it, another
    one is chosen for its place.
    """
    clients, k, steps = checks.sizes(clients, k, steps)
    checks.one_of("mode", mode, MODES)
    checks.one_of("interrupted", interrupted, ("lost", "resumed"))
    if not isinstance(durations, Durations):
        raise UserError(f"durations is {durations!r}: give one such as durations.exponential(1.0).")
    if transfer is not None and not isinstance(transfer, Durations):
        raise UserError(f"transfer is {transfer!r}: give durations.transfer(kilobytes, down, up), or None.")
    if work_share is not None and not isinstance(work_share, WorkShare):
        raise UserError(f"work_share is {work_share!r}: give WorkShare(steps), or None.")
    if dropouts is not None and not isinstance(dropouts, Dropouts):
        raise UserError(f"dropouts is {dropouts!r}: give Dropouts(chance, away).")
    if availability is not None and not hasattr(availability, "opening"):
        raise UserError(f"availability is {availability!r}: give Repeating(length, every) or Intervals(rows).")
    select = select.replace(" ", "_") if isinstance(select, str) else select
    dispatch = _dispatch(
        clients, k, mode, concurrency, restart, previous_model, starts, select, deadline, max_staleness
    )
    there = Always() if availability is None else availability
    there.check(clients, k)
    seed = checks.seed_of(seed)
    factors = _speeds(speeds, clients, seed)
    local_steps = None if work_share is None else work_share.of(durations, factors, clients, seed)
    fleet = Fleet(
        durations=durations,
        seed=seed,
        speeds=factors,
        availability=there,
        dropouts=Dropouts(0.0) if dropouts is None else dropouts,
        lost=checks.share("lost", lost),
        transfer=transfer,
        size=None if work_share is None or local_steps is None else local_steps / work_share.steps,
        resumed=interrupted == "resumed",
    )
    settings = _settings(fleet) | ({} if work_share is None else {"work_share": repr(work_share)})
    if dispatch is None:
        recorded = MODES[mode](clients, k, steps, fleet)
    else:
        pool = SELECTIONS[select] if isinstance(select, str) else partial(Custom, function=select)
        run = run_rounds if mode == "sync" else run_limited if dispatch.starts is None else run_open
        recorded, wasted = run(clients, k, steps, fleet, dispatch, pool(clients, seed, there))
        settings |= _dispatch_settings(dispatch, select, mode)
        settings |= {"failed": wasted.failed, "too_stale": wasted.too_stale}
        settings |= {} if dispatch.starts is None else {"skipped": wasted.skipped}
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
        settings=settings,
        local_steps=None if local_steps is None else local_steps[recorded.clients],
    )


def _dispatch(
    clients: int,
    k: int,
    mode: str,
    concurrency: int | None,
    restart: str,
    previous_model: int,
    starts: Durations | None,
    select: str | Choice,
    deadline: float | None,
    max_staleness: int | None,
) -> Dispatch | None:
    """How some of the clients are kept at work; None: all of them are."""
    checks.one_of("restart", restart, ("arrival", "update"))
    if not callable(select):
        checks.one_of("select", select, SELECTIONS)
    if checks.whole("previous_model", previous_model, 0) > k or (previous_model and restart != "update"):
        raise UserError(
            f'previous_model is {previous_model}: give at most k = {k}, with restart="update", or leave it out.'
        )
    if starts is not None:
        _check_starts(starts, mode, concurrency, restart)
        concurrency = k
    if concurrency is None:
        given = {
            "previous_model": previous_model or None,
            "select": select if select != "uniform" else None,
            "deadline": deadline,
            "max_staleness": max_staleness,
        }
        for name, value in given.items():
            if value is not None:
                raise UserError(
                    f"{name} is {value!r}, but all clients work all the time: give concurrency or starts too."
                )
        return None
    concurrency = checks.whole("concurrency", concurrency, 1)
    if not k <= concurrency <= clients:
        raise UserError(f"concurrency is {concurrency}: choose between k = {k} and {clients}, the number of clients.")
    if mode == "full":
        raise UserError('concurrency is for mode "async" or "sync": "full" always draws k clients.')
    if mode == "sync" and max_staleness is not None:
        raise UserError(f'max_staleness is {max_staleness}, but mode "sync" has no staleness: leave it out.')
    return Dispatch(
        concurrency,
        restart == "arrival",
        previous_model,
        starts,
        math.inf if deadline is None else checks.positive("deadline", deadline),
        None if max_staleness is None else checks.whole("max_staleness", max_staleness, 0),
    )


def _check_starts(starts: object, mode: str, concurrency: int | None, restart: str) -> None:
    """Refuse what an open arrival process does not go with."""
    if not isinstance(starts, Durations):
        raise UserError(f"starts is {starts!r}: give seconds between two starts, durations.constant(0.01), say.")
    if concurrency is not None:
        raise UserError(f"concurrency is {concurrency}, but starts says when work begins: give one of the two.")
    if mode != "async" or restart != "arrival":
        raise UserError('starts is for mode "async" and nobody is replaced: leave mode and restart out.')


def _dispatch_settings(dispatch: Dispatch, select: str | Choice, mode: str) -> dict[str, Any]:
    """The settings of `Dispatch`, as plain values."""
    words: dict[str, Any] = {}
    if dispatch.starts is not None:
        words["starts"] = repr(dispatch.starts)
    else:
        words["concurrency"] = dispatch.concurrency
    if mode == "async" and dispatch.starts is None:
        words["restart"] = "arrival" if dispatch.at_arrival else "update"
    if dispatch.previous_model:
        words["previous_model"] = dispatch.previous_model
    words["select"] = select if isinstance(select, str) else getattr(select, "__qualname__", repr(select))
    if math.isfinite(dispatch.deadline):
        words["deadline"] = dispatch.deadline
    if dispatch.max_staleness is not None:
        words["max_staleness"] = dispatch.max_staleness
    return words


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


def _settings(fleet: Fleet) -> dict[str, Any]:
    """Plain values that say how the timeline was made."""
    settings: dict[str, Any] = {"seed": fleet.seed, "durations": repr(fleet.durations)}
    if fleet.speeds is not None:
        settings["speeds"] = f"{fleet.speeds.min():.3g} to {fleet.speeds.max():.3g}"
    if not isinstance(fleet.availability, Always):
        settings["availability"] = repr(fleet.availability)
    if fleet.dropouts.chance:
        settings["dropouts"] = repr(fleet.dropouts)
    if fleet.lost:
        settings["lost"] = fleet.lost
    if fleet.transfer is not None:
        settings["transfer"] = repr(fleet.transfer)
    if fleet.resumed:
        settings["interrupted"] = "resumed"
    return settings
