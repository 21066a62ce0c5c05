"""The page: everything it shows as plain values, one HTML file that needs no network, and a server for this machine."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync.errors import UserError
from kasync.report import results as reading
from kasync.report.figures import looks
from kasync.report.numbers import AXES, Band, counts, during, evaluations, verdict_on
from kasync.report.results import ACCURACY, ANY, PRINTED, STABILITY, WORDS, Findings, Line, Results, all_of
from kasync.statistics import METHOD, Estimate

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
NOWHERE, SAME_ORIGIN = "'none'", "'self'"  # what the page may connect to
ADDRESS = "127.0.0.1"  # nobody else can reach it
NAMES = ("127.0.0.1", "localhost")  # a page of another site that points its own name here is refused
WAIT_FOR_A_RUN = 0.3


# ---- what the page knows


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


def _experiment(experiment: Findings) -> dict[str, Any]:
    look = looks(experiment.rules)
    about = experiment.about
    return {
        **{name: getattr(about, name) for name in ("title", "shows", "command", "figures", "kind", "targets")},
        "name": experiment.name,
        "tuned": Path(about.tuned).name if about.tuned else None,
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
        "verdicts": _verdicts(experiment),
    }


def _line(experiment: Findings, line: Line) -> dict[str, Any]:
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


def _verdicts(experiment: Findings) -> dict[str, dict[str, str]]:
    """Task -> semantics -> the verdict in words."""
    if experiment.kind == "timelines" or experiment.tried:
        return {}
    ways = experiment.semantics
    return {task.name: {way: verdict_on(experiment, task, way) for way in ways} for task in experiment.tasks}


def _differences(experiment: Findings) -> list[dict[str, Any]]:
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


# ---- one file


def html(data: dict[str, Any], live: bool = False) -> str:
    """The page with its data; a live one asks its own server for newer data, any other connects to nothing."""
    parts = {
        "CONNECT": SAME_ORIGIN if live else NOWHERE,
        "LIVE": "data.json" if live else "",
        "TITLE": escape(data["title"]),
        "STYLE": _packaged("page.css"),
        "PLOTLY": _as_script(_plotly()),
        "DATA": as_json(data).replace("<", "\\u003c"),
        "SCRIPT": _as_script(_packaged("page.js")),
    }
    pieces = re.split(r"\{\{([A-Z]+)\}\}", _packaged("page.html"))
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def fingerprint(text: str) -> str:
    """Twelve digits that change when the text does."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _packaged(name: str) -> str:
    return (files("kasync.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as problem:
        raise UserError("the page needs plotly: pip install 'kasync[report]'.") from problem
    return get_plotlyjs()


def _as_script(text: str) -> str:
    """Nothing inside may end the element that holds it."""
    return re.sub(r"</(script)", r"<\\/\1", text, flags=re.IGNORECASE)


# ---- a server for this machine only


def serve(results_folder: str | Path, port: int = 8765, tell: Callable[[str], None] = print) -> None:
    """Serve the report until Ctrl-C; port 0 takes any that is free."""
    with server(results_folder, port) as made:
        tell(f"http://{ADDRESS}:{made.server_address[1]}/ shows {results_folder}; Ctrl-C ends it.")
        try:
            made.serve_forever()
        except KeyboardInterrupt:
            tell("The report is no longer served; the results are where they were.")


def server(results_folder: str | Path, port: int = 0) -> ThreadingHTTPServer:
    """The server, ready for serve_forever()."""
    folder = Path(results_folder)
    reading.read(folder)  # a folder that is none is refused now
    if not 0 <= port <= 65535:
        raise UserError(f"port = {port}: give one between 0 and 65535; 0 takes any that is free.")
    handler = type("Report", (_Handler,), {"folder": folder})
    try:
        return ThreadingHTTPServer((ADDRESS, port), handler)
    except OSError as problem:
        raise UserError(f"port = {port} cannot be used ({problem.strerror}): choose another with --port.") from None


class _Handler(BaseHTTPRequestHandler):
    """Two addresses, the page and its data; everything else is not there."""

    folder: Path
    server_version = "kasync"
    sys_version = ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in NAMES:
            self._answer(403, "text/plain", "This report is served to this machine only.")
        elif self.path in ("/", "/index.html"):
            self._answer(200, "text/html", html(payload(self._results()), live=True))
        elif self.path == "/data.json":
            text = as_json(payload(self._results()))
            mark = f'"{fingerprint(text)}"'
            known = self.headers.get("If-None-Match") == mark
            self._answer(304 if known else 200, "application/json", "" if known else text, mark)
        else:
            self._answer(404, "text/plain", "There is only the report, at /.")

    def _results(self) -> reading.Results:
        """As they are now; a file that a run is about to replace is tried once more."""
        try:
            return reading.read(self.folder)
        except UserError:
            time.sleep(WAIT_FOR_A_RUN)
            return reading.read(self.folder)

    def _answer(self, status: int, kind: str, text: str, mark: str | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if mark is not None:
            self.send_header("ETag", mark)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet: a poll every two seconds is no news."""
