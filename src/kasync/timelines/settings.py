"""Timelines from settings: from tables, as TOML gives them, or from one line of text.

    clock:durations=pareto,shape=2,concurrency=20,restart=update
    phones:samples=500,kilobytes=5000,concurrency=50,select=available
    clock:durations={kind="fadas", large=false},dropouts.chance=0.02,availability.length=8,availability.every=24

A setting that the kind does not have belongs to the durations named before it (`shape` to `pareto`); with a dot it
belongs to the table before the dot.
"""

import inspect
import tomllib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kasync.errors import UserError, unknown
from kasync.timelines import durations as lengths
from kasync.timelines.availability import Dropouts, Repeating
from kasync.timelines.clock import WorkShare, clock
from kasync.timelines.timeline import Timeline, load
from kasync.timelines.traces import from_traces, phones
from kasync.timelines.uniform import once_per_round, uniform

OF_DURATIONS = ("durations", "speeds", "transfer", "starts")
OF_A_FLEET = (
    "mode",
    "concurrency",
    "restart",
    "previous_model",
    "starts",
    "select",
    "deadline",
    "max_staleness",
    "speeds",
    "work_share",
    "dropouts",
    "lost",
    "interrupted",
)
SETTINGS: dict[str, tuple[str, ...]] = {  # by kind
    "uniform": (),
    "clock": ("durations", "transfer", "availability", *OF_A_FLEET),
    "once_per_round": ("durations",),
    "phones": ("samples", "kilobytes", "fleet_seed", *OF_A_FLEET),
    "traces": ("folder", "samples", "kilobytes", "durations", *OF_A_FLEET),
    "file": ("path", "fingerprint"),
}


def parsed(text: str, settings: Mapping[str, Collection[str]] = SETTINGS) -> dict[str, Any]:
    """One line of text as a table with a kind; `settings` has those that each kind knows."""
    kind, _, rest = text.partition(":")
    table: dict[str, Any] = {"kind": kind.strip()}
    for part in split(rest) if rest.strip() else []:
        name, sign, written = (piece.strip() for piece in part.partition("="))
        if not sign or not name:
            raise UserError(f"{part.strip()!r} is not setting=value: write it so, clock:durations=pareto,shape=2, say.")
        place, *inner = name.split(".")
        owner = table
        for step in [place, *inner][:-1]:
            below = owner.setdefault(step, {})
            owner[step] = below if isinstance(below, dict) else {"kind": below}
            owner = owner[step]
        if not inner and place not in settings.get(kind.strip(), (place,)):
            owner = _owner_of(place, table)
        setting = [place, *inner][-1]
        if setting in owner:
            raise UserError(f"{text!r} gives {name} twice: give it once.")
        owner[setting] = value_of(written)
    return table


def _owner_of(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """The durations, of those named so far, that have this setting, the last first; otherwise the table itself."""
    for setting, kind in reversed(_named(table).items()):
        if kind not in lengths.KINDS:
            raise unknown(f"kind of {setting}", str(kind), lengths.KINDS)
        if name in lengths.settings_of(kind):
            value = table[setting]
            table[setting] = value if isinstance(value, dict) else {"kind": value}
            return table[setting]
    return table


def _named(table: Mapping[str, Any]) -> dict[str, Any]:
    """The kind of each of the durations that a table names."""
    values = {setting: table[setting] for setting in table if setting in OF_DURATIONS}
    kinds = {setting: value.get("kind") if isinstance(value, Mapping) else value for setting, value in values.items()}
    return {setting: kind for setting, kind in kinds.items() if isinstance(kind, str)}


def split(text: str) -> list[str]:
    """At commas that are not inside brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "[{") - (sign in "]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    if depth:
        raise UserError(f"{text!r} opens and closes different numbers of brackets: balance them.")
    return parts


def value_of(written: str) -> Any:
    """As TOML would read it, or the text itself."""
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written


def check(kind: str, given: Mapping[str, Any]) -> None:
    """Refuse a kind or a setting that there is not, with the nearest name."""
    if kind not in SETTINGS:
        raise unknown("kind of [arrivals]", kind, SETTINGS)
    for name in given:
        if name not in SETTINGS[kind]:
            own = [lengths.settings_of(one) for one in _named(given).values() if one in lengths.KINDS]
            raise unknown(
                f"setting of arrivals {kind!r}", name, {*SETTINGS[kind], *(each for some in own for each in some)}
            )


def timeline(kind: str, given: Mapping[str, Any], clients: int, k: int, steps: int, seed: int) -> Timeline:
    """The timeline that these settings describe."""
    check(kind, given)
    return KINDS[kind](dict(given), clients, k, steps, seed)


def stored(given: Mapping[str, Any]) -> Timeline:
    """A timeline from a file, as long as its fingerprint, where one is given, is still the same."""
    found = load(given["path"])
    if given.get("fingerprint", found.fingerprint()) != found.fingerprint():
        raise UserError(f"{given['path']} is not the timeline this run was made with: its fingerprint differs.")
    return found


def _uniform(given: dict[str, Any], clients: int, k: int, steps: int, seed: int) -> Timeline:
    return uniform(clients, k, steps, seed)


def _rounds(given: dict[str, Any], clients: int, k: int, steps: int, seed: int) -> Timeline:
    durations = lengths.from_table(given["durations"]) if "durations" in given else None
    return once_per_round(clients, k, steps, seed, durations)


def _clock(given: dict[str, Any], clients: int, k: int, steps: int, seed: int) -> Timeline:
    options = _options(given)
    if "availability" in given:
        table = _table(given["availability"], "availability", ("length", "every"))
        for name in ("length", "every"):
            if name not in table:
                raise UserError(f"availability = {dict(table)!r} says no {name}: give length and every, in seconds.")
        options["availability"] = Repeating(**table)
    if "transfer" in given:
        transfer = given["transfer"]
        table = {"kind": "transfer", **transfer} if isinstance(transfer, Mapping) else transfer
        options["transfer"] = lengths.from_table(table, "transfer")
    durations = lengths.from_table(given.get("durations", "exponential"))
    return clock(clients, k, steps, durations, seed, **options)


def _phones(given: dict[str, Any], clients: int, k: int, steps: int, seed: int) -> Timeline:
    fleet = phones(clients, given.get("fleet_seed", seed))
    samples, kilobytes = given.get("samples", 1.0), given.get("kilobytes")
    return from_traces(fleet, k, steps, clients, samples, kilobytes, seed, **_options(given))


def _traces(given: dict[str, Any], clients: int, k: int, steps: int, seed: int) -> Timeline:
    if "folder" not in given:
        raise UserError(
            "arrivals of kind 'traces' need folder: name one with availability.csv, compute.csv, links.csv."
        )
    samples, kilobytes = given.get("samples", 1.0), given.get("kilobytes")
    durations = lengths.from_table(given["durations"]) if "durations" in given else None
    options = _options(given)
    return from_traces(given["folder"], k, steps, clients, samples, kilobytes, seed, durations, **options)


def _file(given: dict[str, Any], clients: int, k: int, steps: int, seed: int) -> Timeline:
    if "path" not in given:
        raise UserError("arrivals of kind 'file' need path: name a file that timelines.save wrote.")
    found = stored(given)
    if (found.population, found.k) != (clients, k):
        raise UserError(
            f"{given['path']} has {found.population} clients and k = {found.k}, but the settings say "
            f"{clients} and {k}: use the timeline's."
        )
    return found.head(min(steps, found.steps))


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of the clock that all fleets have."""
    tables = ("speeds", "starts", "dropouts", "work_share")
    options = {name: given[name] for name in OF_A_FLEET if name in given and name not in tables}
    for name in ("speeds", "starts"):
        if name in given:
            options[name] = lengths.from_table(given[name], name)
    if "dropouts" in given:
        left = _table(given["dropouts"], "dropouts", ("chance", "away"))
        away = lengths.from_table(left["away"], "away") if "away" in left else None
        options["dropouts"] = Dropouts(left.get("chance", 0.0), away)
    if "work_share" in given:
        share = given["work_share"]
        known = tuple(inspect.signature(WorkShare).parameters)
        table = {"steps": share} if not isinstance(share, Mapping) else _table(share, "work_share", known)
        if "steps" not in table:
            raise UserError(f"work_share = {dict(table)!r} says no steps: give those of an ordinary piece of work.")
        options["work_share"] = WorkShare(**table)
    return options


def _table(value: Any, setting: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{setting} = {value!r}: write a table of {' and '.join(known)}.")
    for name in value:
        if name not in known:
            raise unknown(f"setting of {setting}", name, known)
    return value


KINDS: dict[str, Callable[[dict[str, Any], int, int, int, int], Timeline]] = {
    "uniform": _uniform,
    "clock": _clock,
    "once_per_round": _rounds,
    "phones": _phones,
    "traces": _traces,
    "file": _file,
}
