"""Which figures does an experiment have, and where are they written?"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kasync.experiments import files
from kasync.report.figures.curves import curves
from kasync.report.figures.held import held
from kasync.report.figures.ladder import ladder
from kasync.report.figures.motivation import motivation
from kasync.report.figures.overview import overview
from kasync.report.figures.sensitivity import sensitivity
from kasync.report.rates import tried
from kasync.report.results import Experiment, Results

FORMATS = ("png", "pdf")
NO_DATES = {"png": {}, "pdf": {"CreationDate": None, "ModDate": None}}  # the same results give the same files


def figures_of(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    """(name, figure) for everything there is to see so far."""
    if experiment.kind == "timelines":
        drawn = [("held", held(experiment))]
    elif tried(experiment):
        drawn = [("rates", sensitivity(experiment))]
    else:
        groups = experiment.groups().items()
        drawn = [(f"{name}-accuracy", curves(experiment, tasks)) for name, tasks in groups]
        drawn += [(f"{name}-final", ladder(experiment, tasks)) for name, tasks in groups]
        drawn += [(f"{name}-overview", overview(experiment, tasks)) for name, tasks in groups]
        if "Figure 2" in experiment.figures:
            drawn.append(("motivation", motivation(experiment)))
    yield from ((_file_name(f"{experiment.name}-{name}"), figure) for name, figure in drawn if figure is not None)


def save(results: Results, folder: Path) -> list[tuple[str, Path]]:
    """Every figure as PNG and PDF in the folder; (experiment, PNG) pairs."""
    saved = []
    for experiment in results.experiments:
        for name, figure in figures_of(experiment):
            for kind in FORMATS:
                content = io.BytesIO()
                figure.savefig(content, format=kind, dpi=150, metadata=NO_DATES[kind])
                files.write(folder / f"{name}.{kind}", content.getvalue())
            saved.append((experiment.name, folder / f"{name}.png"))
    return saved


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
