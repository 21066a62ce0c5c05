"""What does the page know? Everything it shows, as plain values for JSON; whatever is computed is computed here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.report.intervals import METHOD, Estimate
from kasync.report.look import looks
from kasync.report.measures import ACCURACY, PRINTED, STABILITY, all_of
from kasync.report.results import ANY, Experiment, Line, Results
from kasync.report.series import AXES, Band, counts, during, evaluations
from kasync.report.tables import WORDS

DURING = (
    "staleness",
    "max_staleness",
    "selected",
    "effective",
    "largest_weight",
    "similarity",
    "lr",
    "stage",
    "dropped",
)
HELD = ("held", "delivered")  # where only timelines were made
COUNTS = ("staleness_count", "staleness_weight", "weight_count", "similarity_count", "selected_count")
LABELS = ("label_samples", "label_deliveries", "label_weight")
CLIENT_POINTS = 100
DIGITS = 4  # significant, of what is drawn
AXIS_DIGITS = 8  # of steps, times and updates


def payload(results: Results) -> dict[str, Any]:
    """The whole page."""
    finished, planned = results.counts
    return {
        "title": results.folder.resolve().name,
        "method": METHOD,
        "finished": finished,
        "planned": planned,
        "semantics": WORDS,
        "experiments": [_experiment(experiment) for experiment in results.experiments],
    }


def _experiment(experiment: Experiment) -> dict[str, Any]:
    look = looks(experiment.rules)
    plain = {
        name: getattr(experiment, name) for name in ("name", "title", "shows", "command", "figures", "kind", "targets")
    }
    return {
        **plain,
        "tuned": Path(experiment.tuned).name if experiment.tuned else None,
        "semantics": experiment.semantics,
        "any": ANY,
        "tasks": [
            {"name": task.name, "title": task.title, "note": task.note, "standsFor": task.stands_for}
            for task in experiment.tasks
        ],
        "rules": [{"label": rule.label, "title": rule.title, **asdict(look[rule.label])} for rule in experiment.rules],
        "measures": [{"name": each.name, "title": each.title, "digits": each.digits} for each in all_of(experiment)],
        "lines": [_line(experiment, line) for line in experiment.lines],
        "differences": _differences(experiment),
    }


def _line(experiment: Experiment, line: Line) -> dict[str, Any]:
    names = HELD if experiment.kind == "timelines" else DURING
    first = next((run for run in line.runs.values() if run.begun), None)
    return {
        "task": line.task.name,
        "rule": line.rule.label,
        "staleness": line.staleness,
        "planned": len(line.runs),
        "finished": len(line.finished),
        "step": sum(run.step for run in line.runs.values()),
        "steps": (first.settings["steps"] if first else 0) * len(line.runs),
        "accuracy": {axis: _band(evaluations(line, "accuracy", axis)) for axis in AXES},
        "loss": {axis: _band(evaluations(line, "test_loss", axis)) for axis in AXES},
        "during": {name: _band(during(line, name)) for name in names},
        "counts": {name: _numbers(counts(line, name)) for name in COUNTS},
        "clients": {name: _numbers(_participation(line, name)) for name in ("deliveries", "client_weight")},
        "labels": {name: _numbers(_mean(line, name)) for name in LABELS},
        "numbers": {measure.name: _estimate(measure.estimate(line)) for measure in all_of(experiment)},
        "paper": {name: line.paper(printed) for name, printed in PRINTED.items()},
        "bound": next((run.summary.get("bound") for run in line.finished), None),
        "settings": _flat(first.settings) if first else {},
    }


def _differences(experiment: Experiment) -> list[dict[str, Any]]:
    """Every pair of rules on each task under each semantics, once: rule minus other."""
    if experiment.kind == "timelines":
        return []
    found = []
    for task in experiment.tasks:
        for way in experiment.semantics:
            lines = experiment.beside(task, way)
            for place, ours in enumerate(lines):
                for other in lines[place + 1 :]:
                    pair = {"task": task.name, "staleness": way, "rule": ours.rule.label, "minus": other.rule.label}
                    found.append(
                        pair | {each.name: _estimate(each.difference(ours, other)) for each in (ACCURACY, STABILITY)}
                    )
    return found


def _participation(line: Line, name: str) -> NDArray[np.float64] | None:
    """[points] what clients gave, as multiples of an equal share, from the busiest client to the idlest."""
    curves = []
    for run in line.finished:
        given = np.sort(run.steps.get(name, np.zeros(0)).astype(np.float64))[::-1]  # [clients]
        if given.sum() > 0:
            places = np.linspace(0, len(given) - 1, min(CLIENT_POINTS, len(given))).round().astype(int)
            curves.append(given[places] / given.mean())
    return np.mean(curves, axis=0) if curves else None


def _mean(line: Line, name: str) -> NDArray[np.float64] | None:
    arrays = [run.steps[name].astype(np.float64) for run in line.finished if name in run.steps]
    return np.mean(arrays, axis=0) if arrays else None


def _band(band: Band | None) -> dict[str, Any] | None:
    """Without low and high where no point has an interval."""
    if band is None:
        return None
    ends = {"low": _numbers(band.low), "high": _numbers(band.high)} if np.isfinite(band.low).any() else {}
    return {"x": _numbers(band.x, AXIS_DIGITS), "mean": _numbers(band.mean)} | ends


def _estimate(found: Estimate | None) -> list[float | None] | None:
    return None if found is None else [_short(found.mean, AXIS_DIGITS), _short(found.half, AXIS_DIGITS), found.count]


def _numbers(values: Sequence[float] | NDArray | None, digits: int = DIGITS) -> list[float | None] | None:
    return None if values is None else [_short(float(value), digits) for value in values]


def _short(value: float | None, digits: int = DIGITS) -> float | None:
    """Rounded to so many significant digits; None where it is not a number."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) else short


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """section.setting -> value, in the order of the file."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": str(each) for inner, each in value.items()}
        else:
            flat[name] = str(value)
    return {name: value for name, value in flat.items() if name not in ("seed", "root", "arrivals.path")}
