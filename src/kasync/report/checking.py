"""Verification of written results: tables derived again from a store, and numbers in prose looked up in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kasync.experiments.archive import derived, stores
from kasync.experiments.store import Store
from kasync.report import results as reading
from kasync.report import tables
from kasync.report.numbers import standings
from kasync.report.results import ACCURACY, STABILITY, Results, all_of
from kasync.statistics import Estimate

CLAIM = re.compile(r"(?P<mean>[-+−]?\d*\.\d+) ± (?P<half>\d*\.\d+|\d+(?=[ |)*]))")  # .973 ± .001 or 0.9734 ± 0.0158


def verify(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every file that says something about results at or under the folder, with what in it is not so."""
    every = []
    for path in stores(folder):
        results = reading.read(path) if Store(path).experiments() else None
        yield path, [*_runs(path), *(_missing(results) if results else ())]
        if results is None:
            continue
        every.append(results)
        for name, text in tables.texts(results).items():
            written = path / "report" / name
            if written.exists():
                yield written, _differences(written.read_text(encoding="utf-8"), text)
    pages = sorted(folder.glob("*.md"))
    known = known_of(every if pages else ())
    for path in pages:
        yield path, unfounded(path.read_text(encoding="utf-8"), known)


def _runs(path: Path) -> Iterator[str]:
    """Summaries that do not follow from their evaluations."""
    store = Store(path)
    for key in store.every():
        yield from derived(store.run(key))


def _missing(results: Results) -> Iterator[str]:
    for experiment in results.experiments:
        done, planned = experiment.counts
        if done < planned:
            yield f"{experiment.name}: {planned - done} of {planned} runs are missing"


def _differences(written: str, derived: str) -> list[str]:
    """The first line that differs; pictures are not compared."""
    ours, theirs = ([line for line in text.split("\n") if not line.startswith("![")] for text in (written, derived))
    ours, theirs = ([line for line in lines if line.strip()] for lines in (ours, theirs))
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if one != other:
            return [f"line {number} says {one!r}, the store gives {other!r}"]
    return [] if len(ours) == len(theirs) else [f"it has {len(ours)} lines, the store gives {len(theirs)}"]


def unfounded(text: str, known: NDArray[np.float64]) -> list[str]:
    """The means with intervals in a text that are none of those that are known, (mean, half width) each."""
    claims = sorted({(match["mean"], match["half"]) for match in CLAIM.finditer(text)})
    return [f"{mean} ± {half}" for mean, half in claims if not _says(mean, half, known)]


def _says(mean: str, half: str, known: NDArray[np.float64]) -> bool:
    """Whether the text is one of these, rounded to its digits; a sign that is not written may be either."""
    means = known[:, 0] if mean[0] in "+-−" else np.abs(known[:, 0])
    return bool((_rounds(mean.replace("−", "-"), means) & _rounds(half, known[:, 1])).any())


def _rounds(text: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    digits = len(text.partition(".")[2])
    near: NDArray[np.bool_] = np.abs(float(text) - values) <= 0.5000001 * 10**-digits
    return near


def known_of(every: Iterable[Results]) -> NDArray[np.float64]:
    """[numbers, 2] mean and half width of every interval that a report could print."""
    found = {(each.mean, each.half) for each in estimates(every) if each.half is not None}
    return np.array(sorted(found), np.float64).reshape(-1, 2)


def estimates(every: Iterable[Results]) -> Iterator[Estimate]:
    """Every mean with an interval that a report could print: numbers of lines, paired differences, shares."""
    for results in every:
        for experiment in results.experiments:
            for line, measure in product(experiment.lines, all_of(experiment)):
                if (found := measure.estimate(line)) is not None:
                    yield found
            if experiment.about.baseline:
                for line, time in product(experiment.lines, tables.to_targets(experiment)):
                    if (found := tables.sooner(experiment, line, time)) is not None:
                        yield found
            for _, one, other in experiment.pairs:
                for ours, theirs, measure in product((one, other), (one, other), (ACCURACY, STABILITY)):
                    if ours is not theirs and (found := measure.difference(ours, theirs)) is not None:
                        yield found
            for task, way, _ in experiment.panels:
                yield from (each.share for each in standings(experiment, task, way) if each.share is not None)
            by_place = {(line.task.name, line.rule.label, line.staleness): line for line in experiment.lines}
            for (task_name, label, way), line in by_place.items():
                other_line = by_place.get((task_name, label, "true"))
                if way == "published-code" and other_line is not None:
                    yield from filter(None, (each.difference(line, other_line) for each in (ACCURACY, STABILITY)))
