"""The page: everything it shows as plain values, one HTML file that needs no network, and a server for this machine."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync import serving
from kasync.errors import UserError, optional
from kasync.files import flat
from kasync.report import results as reading
from kasync.report.figures import looks
from kasync.report.numbers import AXES, Band, counts, during, evaluations, verdicts_in_words
from kasync.report.results import ACCURACY, ANY, PRINTED, STABILITY, WORDS, Findings, Line, Results, all_of
from kasync.statistics import METHOD, Estimate

ABOUT = ("title", "shows", "command", "figures", "against")  # of an experiment, as its file has them
DURING = ("staleness", "max_staleness", "selected", "effective", "largest_weight", "similarity", "lr", "stage")
HELD = ("held", "delivered")  # where only timelines were made
COUNTS = ("staleness_count", "staleness_weight", "weight_count", "similarity_count")
LABELS = ("label_samples", "label_weight")
HIDDEN = ("seed", "root", "arrivals.path")  # settings that are not shown
CLIENT_POINTS = 100
DIGITS = 4  # significant, of what is drawn
AXIS_DIGITS = 8  # of steps, times and updates
WAIT_FOR_A_RUN = 0.3


# ---- what the page knows


def payload(results: Results) -> dict[str, Any]:
    """The whole page."""
    finished, planned = results.counts
    told = {"title": results.folder.resolve().name, "method": METHOD, "finished": finished, "planned": planned}
    return told | {"semantics": WORDS, "experiments": [_experiment(each) for each in results.experiments]}


def _experiment(experiment: Findings) -> dict[str, Any]:
    look = looks(experiment.rules)
    about = experiment.about
    return {
        **{name: getattr(about, name) for name in ABOUT},
        "name": experiment.name,
        "tuned": Path(about.tuned).name if about.tuned else None,
        "semantics": experiment.semantics,
        "any": ANY,
        "tasks": [{"name": task.name, "title": task.title, "note": task.note} for task in experiment.tasks],
        "rules": [{"label": rule.label, "title": rule.title, **asdict(look[rule.label])} for rule in experiment.rules],
        "measures": [{"name": each.name, "title": each.title, "digits": each.digits} for each in all_of(experiment)],
        "lines": [_line(experiment, line) for line in experiment.lines],
        "differences": [  # every pair of rules on each task under each semantics, once: rule minus other
            {"task": ours.task.name, "staleness": way, "rule": ours.rule.label, "minus": other.rule.label}
            | {each.name: each.difference(ours, other) for each in (ACCURACY, STABILITY)}
            for way, ours, other in (experiment.pairs if experiment.about.kind != "timelines" else ())
        ],
        "verdicts": verdicts_in_words(experiment),
    }


def _line(experiment: Findings, line: Line) -> dict[str, Any]:
    names = HELD if experiment.about.kind == "timelines" else (*DURING, "dropped")
    first = next((run for run in line.runs.values() if run.begun), None)
    return {
        "task": line.task.name,
        "rule": line.rule.label,
        "staleness": line.staleness,
        "planned": len(line.runs),
        "finished": len(line.finished),
        "step": sum(run.step for run in line.runs.values()),
        "steps": (first.settings["steps"] if first else 0) * len(line.runs),
        "accuracy": {axis: evaluations(line, "accuracy", axis) for axis in AXES},
        "loss": {axis: evaluations(line, "test_loss", axis) for axis in AXES},
        "during": {name: during(line, name) for name in names},
        "counts": {name: counts(line, name) for name in COUNTS},
        "clients": {name: _participation(line, name) for name in ("deliveries", "client_weight")},
        "labels": {name: counts(line, name) for name in LABELS},
        "numbers": {measure.name: measure.estimate(line) for measure in all_of(experiment)},
        "paper": {name: line.paper(printed) for name, printed in PRINTED.items()},
        "bound": next((run.summary.get("bound") for run in line.finished), None),
        "settings": {name: str(value) for name, value in flat(first.settings) if name not in HIDDEN} if first else {},
    }


def _participation(line: Line, name: str) -> NDArray[np.float64] | None:
    """[points] what clients gave, as multiples of an equal share, from the busiest client to the idlest."""
    curves = []
    for run in line.finished:
        given = np.sort(run.steps.get(name, np.zeros(0)).astype(np.float64))[::-1]  # [clients]
        if given.sum() > 0:
            places = np.linspace(0, len(given) - 1, min(CLIENT_POINTS, len(given))).round().astype(int)
            curves.append(given[places] / given.mean())
    return np.mean(curves, axis=0) if curves else None


def _plain(value: Any) -> Any:
    """What JSON has no word for, in few digits; a curve without low and high where no point has an interval."""
    if isinstance(value, Estimate):
        return [_short(value.mean, AXIS_DIGITS), _short(value.half, AXIS_DIGITS), value.count]
    if isinstance(value, Band):
        ends = {"low": value.low, "high": value.high} if np.isfinite(value.low).any() else {}
        return {"x": [_short(x, AXIS_DIGITS) for x in value.x], "mean": value.mean} | ends
    return [_short(float(each)) for each in value]


def _short(value: float | None, digits: int = DIGITS) -> float | None:
    """Rounded to so many significant digits; None where it is not a number."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) else short


# ---- one file


def html(data: dict[str, Any], live: bool = False) -> str:
    """The page with its data; a live one asks its own server for newer data, any other connects to nothing."""
    parts = {
        "CONNECT": "'self'" if live else "'none'",
        "LIVE": "data.json" if live else "",
        "TITLE": escape(data["title"]),
        "STYLE": _packaged("page.css"),
        "PLOTLY": _as_script(_plotly()),
        "DATA": as_json(data).replace("<", "\\u003c"),
        "SCRIPT": _as_script(_packaged("page.js")),
    }
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda place: parts[place[1]], _packaged("page.html"))


def as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _packaged(name: str) -> str:
    return (files("kasync.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    return str(optional("plotly.offline", "the page needs plotly: pip install 'kasync[report]'.").get_plotlyjs())


def _as_script(text: str) -> str:
    """Nothing inside may end the element that holds it."""
    return re.sub(r"</(script)", r"<\\/\1", text, flags=re.IGNORECASE)


# ---- a server for this machine only


def serve(results_folder: str | Path, port: int = 8765) -> None:
    """Serve the report until Ctrl-C; port 0 takes any that is free."""
    after = "The report is no longer served; the results are where they were."
    serving.serve(*sources(results_folder), port, f"shows {results_folder}", after)


def sources(results_folder: str | Path) -> tuple[Callable[[], str], Callable[[], str]]:
    """What gives the page and what gives its data, as the results are then."""
    reading.read(results_folder)  # a folder that is none is refused now

    def now() -> dict[str, Any]:
        try:
            return payload(reading.read(results_folder))
        except UserError:  # a file that a run is about to replace is tried once more
            time.sleep(WAIT_FOR_A_RUN)
            return payload(reading.read(results_folder))

    return lambda: html(now(), live=True), lambda: as_json(now())
