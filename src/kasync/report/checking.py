"""Verification of written results: tables derived again from a store, and numbers in prose looked up in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import permutations, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kasync.experiments.archive import derived, stores
from kasync.experiments.store import Store
from kasync.report import results as reading
from kasync.report import tables
from kasync.report.numbers import standings
from kasync.report.results import Results, all_of
from kasync.statistics import Estimate

CLAIM = re.compile(r"(?P<mean>[-+−]?\d*\.\d+) ± (?P<half>\d*\.\d+|\d+(?=[ |)*]))")  # .973 ± .001 or 0.9734 ± 0.0158


def verify(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every file that says something about results at or under the folder, with what in it is not so."""
    every = []
    for path in stores(folder):
        store = Store(path)
        problems = [problem for key in store.every() for problem in derived(store.run(key))]
        if not store.experiments():
            yield path, problems
            continue
        every.append(results := reading.read(path))
        for experiment in results.experiments:
            done, planned = experiment.counts
            if done < planned:
                problems.append(f"{experiment.name}: {planned - done} of {planned} runs are missing")
        yield path, problems
        for name, text in tables.texts(results).items():
            written = path / "report" / name
            if written.exists():
                yield written, _differences(written.read_text(encoding="utf-8"), text)
    pages = sorted(folder.glob("*.md"))
    known = known_of(every if pages else ())
    for path in pages:
        yield path, unfounded(path.read_text(encoding="utf-8"), known)


def _differences(written: str, derived: str) -> list[str]:
    """The first line that differs; pictures and empty lines are not compared."""
    texts = (written.split("\n"), derived.split("\n"))
    ours, theirs = ([line for line in lines if line.strip() and not line.startswith("![")] for lines in texts)
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if one != other:
            return [f"line {number} says {one!r}, the store gives {other!r}"]
    return [] if len(ours) == len(theirs) else [f"it has {len(ours)} lines, the store gives {len(theirs)}"]


def unfounded(text: str, known: NDArray[np.float64]) -> list[str]:
    """The means with intervals in a text that are none of those that are known, (mean, half width) each."""
    wrong = []
    for mean, half in sorted({(match["mean"], match["half"]) for match in CLAIM.finditer(text)}):
        means = known[:, 0] if mean[0] in "+-−" else np.abs(known[:, 0])  # a sign that is not written may be either
        if not (_rounds(mean.replace("−", "-"), means) & _rounds(half, known[:, 1])).any():
            wrong.append(f"{mean} ± {half}")
    return wrong


def _rounds(text: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the values are what is written, rounded to its digits."""
    digits = len(text.partition(".")[2])
    near: NDArray[np.bool_] = np.abs(float(text) - values) <= 0.5000001 * 10**-digits
    return near


def known_of(every: Iterable[Results]) -> NDArray[np.float64]:
    """[numbers, 2] mean and half width of every interval that a report could print."""
    found = {(each.mean, each.half) for each in estimates(every) if each.half is not None}
    return np.array(sorted(found), np.float64).reshape(-1, 2)


def estimates(every: Iterable[Results]) -> Iterator[Estimate]:
    """Every mean with an interval that a report could print: numbers of lines, paired differences, shares."""
    for experiment in (experiment for results in every for experiment in results.experiments):
        lines = experiment.lines
        found = [measure.estimate(line) for line, measure in product(lines, all_of(experiment))]
        found += [each for line in lines for each in tables.sooner(experiment, line).values()]
        for task, way, beside in experiment.panels:
            pairs = permutations(beside, 2)
            found += [measure.difference(*pair) for pair, measure in product(pairs, tables.JUDGED)]
            found += [each.share for each in standings(experiment, task, way)]
        found += [gap for _, gaps in tables.between_semantics(experiment) for gap in gaps]
        yield from filter(None, found)
