"""The faults of the settings under [[faults]], and how long a timeline must be to lose some deliveries."""

from __future__ import annotations

from collections.abc import Callable

from kasync import faults
from kasync.errors import UserError
from kasync.experiments.settings import Choice, RunSettings
from kasync.faults import Fault
from kasync.faults.draws import chances
from kasync.faults.kinds import ArrivalFault, listed
from kasync.timelines import Timeline

LONGER = 6  # times that a timeline is made twice as long before too few clients are left


def faults_of(settings: RunSettings) -> tuple[Fault, ...]:
    """The faults, as long as there are clients to have them."""
    found = listed(faults.build(fault.kind, **fault.settings) for fault in settings.faults)
    for fault in found:
        chances(fault, settings.clients, settings.seed)
    return found


def apart(settings: RunSettings) -> tuple[tuple[Fault, ...], tuple[Fault, ...]]:
    """The faults that belong to the timeline, and the others."""
    found = faults_of(settings)
    arriving = tuple(fault for fault in found if isinstance(fault, ArrivalFault))
    return arriving, tuple(fault for fault in found if fault not in arriving)


def completed(choice: Choice) -> Choice:
    """With its defaults written out."""
    fault = faults.build(choice.kind, **choice.settings)
    shown = {name: value for name, value in vars(fault).items() if value is not None}
    if fault.clients is not None:
        del shown["share"]
    return Choice(choice.kind, {n: list(v) if isinstance(v, tuple) else v for n, v in shown.items()})


def with_faults(settings: RunSettings, make: Callable[[int], Timeline]) -> Timeline:
    """The timeline of so many steps, with its faults: made longer until as many are left."""
    arriving, _ = apart(settings)
    if not arriving:
        return make(settings.steps)
    length, found = settings.steps, None
    for _ in range(LONGER):
        plain = make(length)
        found = _injected(plain, arriving, settings.seed)
        if found is not None and found.steps >= settings.steps:
            return found.head(settings.steps)
        if plain.steps < length:  # a file ends where it ends
            break
        length *= 2
    left = 0 if found is None else found.steps
    raise UserError(
        f"steps = {settings.steps}, but these faults leave {left} of {plain.steps} steps: lower steps, k or the faults."
    )


def _injected(timeline: Timeline, arriving: tuple[Fault, ...], seed: int) -> Timeline | None:
    """None where not even one step is left."""
    try:
        return faults.inject(timeline, arriving, seed)
    except UserError:
        return None
