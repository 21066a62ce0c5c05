"""How do the numbers leave for another program? As CSV: by run, by line, paired differences, verdicts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from kasync.report.intervals import Estimate
from kasync.report.measures import ACCURACY, PRINTED, STABILITY, all_of
from kasync.report.rates import sweeps, tried
from kasync.report.results import Experiment, Line, Results
from kasync.report.verdict import NEAR, standings

ESTIMATE = ("mean", "low", "high", "seeds")


def by_run(results: Results) -> str:
    """numbers.csv: one row per run and number."""
    head = ("experiment", "task", "rule", "staleness", "seed", "run", "number", "value")
    rows = []
    for experiment, line in _every(results):
        for seed, run in line.runs.items():
            place = (*_place(experiment, line), seed, run.folder.name)
            for measure in all_of(experiment):
                if (value := measure.of(run)) is not None:
                    rows.append((*place, measure.name, value))
            for row in run.summary.get("aggregated", ()):
                rows.append((*place, f"aggregated_{row['mu']:g}", row["number"]))
                rows.append((*place, f"aggregated_staleness_{row['mu']:g}", row["staleness"]))
    return _text(head, rows)


def by_line(results: Results) -> str:
    """table.csv: mean and interval of every number of a line, and what the paper prints."""
    head = ("experiment", "task", "rule", "staleness", "number", *ESTIMATE, "paper")
    rows = []
    for experiment, line in _every(results):
        for measure in all_of(experiment):
            found = measure.estimate(line)
            paper = line.paper(PRINTED[measure.name]) if measure.name in PRINTED else None
            if found is not None or paper is not None:
                rows.append((*_place(experiment, line), measure.name, *_numbers(found), paper))
    return _text(head, rows)


def differences(results: Results) -> str:
    """differences.csv: rule minus other on the same task, semantics and seeds, every pair once."""
    head = ("experiment", "task", "staleness", "rule", "minus", "number", *ESTIMATE)
    rows = []
    for experiment in _comparisons(results):
        for task in experiment.tasks:
            for way in experiment.semantics:
                lines = experiment.beside(task, way)
                for place, ours in enumerate(lines):
                    for other in lines[place + 1 :]:
                        for measure in (ACCURACY, STABILITY):
                            found = _numbers(measure.difference(ours, other))
                            labels = (ours.rule.label, other.rule.label)
                            rows.append((experiment.name, task.name, way, *labels, measure.name, *found))
    return _text(head, rows)


def standing(results: Results) -> str:
    """verdict.csv: each rule on each task beside the best one and the limit."""
    place = ("experiment", "task", "rule", "staleness")
    judged = ("accuracy", "low", "high", "shortfall", "best", "within", "ahead")
    beside = ("share_of_limit", "share_low", "share_high", "stability")
    pace = (f"steps_to_{NEAR:g}_of_limit", "seeds_there", "fastest")
    rows = []
    for experiment in _comparisons(results):
        for task in experiment.tasks:
            for way in experiment.semantics:
                for each in standings(experiment, task, way):
                    accuracy, share, steps = (_numbers(found) for found in (each.accuracy, each.share, each.steps))
                    rows.append(
                        (
                            *(experiment.name, task.name, each.line.rule.label, way),
                            *(*accuracy[:3], each.shortfall, int(each.best), int(each.within), int(each.ahead)),
                            *(*share[:3], each.stability.mean if each.stability else None),
                            *(steps[0], steps[3], int(each.fastest)),
                        )
                    )
    return _text((*place, *judged, *beside, *pace), rows)


def by_rate(results: Results) -> str:
    """rates.csv: accuracy at each learning rate, where rules were tried at several."""
    head = ("experiment", "task", "rule", "rate", "of_own_rate", *ESTIMATE)
    rows = []
    for experiment in (each for each in results.experiments if tried(each)):
        for sweep in sweeps(experiment):
            place = (experiment.name, sweep.task.name, sweep.rule.label)
            for rate, multiple, found in zip(sweep.rates, sweep.factors, sweep.accuracies, strict=True):
                rows.append((*place, rate, multiple, *_numbers(found)))
    return _text(head, rows)


def _comparisons(results: Results) -> list[Experiment]:
    """Where rules compete with each other, and not with themselves at other rates."""
    return [each for each in results.experiments if each.kind == "training" and not tried(each)]


def _every(results: Results) -> Iterable[tuple[Experiment, Line]]:
    return ((experiment, line) for experiment in results.experiments for line in experiment.lines)


def _place(experiment: Experiment, line: Line) -> tuple[str, str, str, str]:
    return experiment.name, line.task.name, line.rule.label, line.staleness


def _numbers(found: Estimate | None) -> tuple[Any, ...]:
    return (None, None, None, 0) if found is None else (found.mean, found.low, found.high, found.count)


def _text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
