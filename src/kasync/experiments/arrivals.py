"""Which timeline do the settings under [arrivals] describe?"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kasync import timelines
from kasync.errors import UserError, unknown
from kasync.experiments.faulty import struck_to
from kasync.experiments.settings import RunSettings
from kasync.timelines import Timeline
from kasync.timelines import durations as lengths
from kasync.timelines.durations import Durations

KEPT = 200_000  # deliveries of a timeline that is worth its memory


def timeline_of(settings: RunSettings) -> Timeline:
    """The timeline of a run; a wrong setting is an error that names the nearest one."""
    kind, given = settings.arrivals.kind, dict(settings.arrivals.settings)
    if kind not in KINDS:
        raise unknown("kind of [arrivals]", kind, KINDS)
    known = SETTINGS[kind]
    for name in given:
        if name not in known:
            raise unknown(f"setting of arrivals {kind!r}", name, known)
    return struck_to(settings, lambda steps: KINDS[kind](replace(settings, steps=steps), given))


def stored(given: Mapping[str, Any]) -> Timeline:
    """A timeline from a file, as long as its fingerprint, where one is given, is still the same."""
    timeline = timelines.load(given["path"])
    if given.get("fingerprint", timeline.fingerprint()) != timeline.fingerprint():
        raise UserError(f"{given['path']} is not the timeline this run was made with: its fingerprint differs.")
    return timeline


def durations_of(table: Any, setting: str) -> Durations:
    """{ kind = "exponential", mean = 1.0 } as durations."""
    if isinstance(table, str):
        table = {"kind": table}
    kind = table.get("kind") if isinstance(table, Mapping) else None
    if not isinstance(kind, str):
        raise UserError(f'{setting} = {table!r}: write {{ kind = "exponential", mean = 1.0 }}, say.')
    if kind not in lengths.KINDS:
        raise unknown(f"kind of {setting}", kind, lengths.KINDS)
    given = {name: value for name, value in table.items() if name != "kind"}
    make: Callable[..., Durations] = lengths.KINDS[kind]  # type: ignore[assignment]
    known = inspect.signature(make).parameters
    for name in given:
        if name not in known:
            raise unknown(f"setting of {setting} {kind!r}", name, known)
    return make(**given)


def _uniform(settings: RunSettings, given: dict[str, Any]) -> Timeline:
    return timelines.uniform(settings.clients, settings.k, settings.steps, settings.seed)


def _rounds(settings: RunSettings, given: dict[str, Any]) -> Timeline:
    durations = durations_of(given["durations"], "durations") if "durations" in given else None
    return timelines.once_per_round(settings.clients, settings.k, settings.steps, settings.seed, durations)


def _clock(settings: RunSettings, given: dict[str, Any]) -> Timeline:
    decisive = json.dumps([settings.clients, settings.k, settings.steps, settings.seed, given], sort_keys=True)
    make = _played if settings.steps * settings.k <= KEPT else _played.__wrapped__
    return make(decisive)


@functools.lru_cache(maxsize=64)
def _played(decisive: str) -> Timeline:
    """The clock's; all rules of a comparison share it, and playing it takes as long as some runs on a GPU."""
    clients, k, steps, seed, given = json.loads(decisive)
    options: dict[str, Any] = {"mode": given.get("mode", "async"), "lost": given.get("lost", 0.0)}
    if "speeds" in given:
        options["speeds"] = durations_of(given["speeds"], "speeds")
    if "dropouts" in given:
        left = dict(_table(given["dropouts"], "dropouts", ("chance", "away")))
        away = durations_of(left["away"], "away") if "away" in left else None
        options["dropouts"] = timelines.Dropouts(left.get("chance", 0.0), away)
    if "availability" in given:
        options["availability"] = timelines.Repeating(**_table(given["availability"], "availability", WINDOWS))
    durations = durations_of(given.get("durations", "exponential"), "durations")
    return timelines.clock(clients, k, steps, durations, seed, **options)


def _file(settings: RunSettings, given: dict[str, Any]) -> Timeline:
    if "path" not in given:
        raise UserError("arrivals of kind 'file' need path: name a file that timelines.save wrote.")
    timeline = stored(given)
    if (timeline.population, timeline.k) != (settings.clients, settings.k):
        raise UserError(
            f"{given['path']} has {timeline.population} clients and k = {timeline.k}, but the settings say "
            f"{settings.clients} and {settings.k}: use the timeline's."
        )
    return timeline.head(min(settings.steps, timeline.steps))


def _table(value: Any, setting: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{setting} = {value!r}: write a table of {' and '.join(known)}.")
    for name in value:
        if name not in known:
            raise unknown(f"setting of {setting}", name, known)
    return value


WINDOWS = ("length", "every")
KINDS: dict[str, Callable[[RunSettings, dict[str, Any]], Timeline]] = {
    "uniform": _uniform,
    "clock": _clock,
    "once_per_round": _rounds,
    "file": _file,
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "uniform": (),
    "clock": ("mode", "durations", "speeds", "dropouts", "availability", "lost"),
    "once_per_round": ("durations",),
    "file": ("path", "fingerprint"),
}
