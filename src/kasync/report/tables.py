"""What do the numbers say, in print? Markdown tables with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kasync.report import matrices, rates
from kasync.report.intervals import METHOD
from kasync.report.measures import ACCURACY, PRINTED, STABILITY, Measure, behaviour, of_timelines, targets
from kasync.report.printing import NOTHING, WORDS, difference, number, table
from kasync.report.results import ANY, Experiment, Line, Results, Task

MEASURED = 100  # rows of the table of speed and staleness, at most: what is longer is better read from table.csv


def markdown(results: Results, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The whole report as one Markdown text; pictures are (experiment, path) pairs."""
    done, planned = results.counts
    parts = ["# Results", f"{done} of {planned} runs are finished. {METHOD}"]
    for experiment in results.experiments:
        shown = [path for name, path in pictures if name == experiment.name]
        parts += [_about(experiment), *sections(experiment), *(f"![{experiment.title}]({path})" for path in shown)]
    return "\n\n".join(part for part in parts if part) + "\n"


def sections(experiment: Experiment) -> list[str]:
    """The tables of one experiment."""
    if experiment.kind == "timelines":
        return [_measured(experiment, of_timelines(), "Staleness, counted from 1")]
    if rates.tried(experiment):
        return [rates.table_of(experiment)]
    speed = _measured(experiment, [*targets(experiment), *behaviour()], "How fast, how stale, how many")
    if _crossed(experiment):
        return [*matrices.sections(experiment), speed]
    return [
        *(_beside_the_paper(experiment, name, tasks) for name, tasks in experiment.groups().items()),
        _differences(experiment),
        _between_semantics(experiment),
        speed,
    ]


def _crossed(experiment: Experiment) -> bool:
    """Whether rules on several tasks are compared with each other, and not with the paper or the published code."""
    printed = any(task.paper for task in experiment.tasks)
    return len(experiment.tasks) > 1 and len(experiment.semantics) == 1 and not printed


def _about(experiment: Experiment) -> str:
    done, planned = experiment.counts
    made = f" Made by `{experiment.command}`." if experiment.command else ""
    lines = [f"## {experiment.title}", " · ".join(experiment.figures), f"{experiment.shows}{made}"]
    stands = sorted({(task.stands_for, task.note) for task in experiment.tasks if task.stands_for or task.note})
    lines += [f"- {f'For {name}: ' if name else ''}{note}" for name, note in stands if note]
    if experiment.tuned:
        lines.append(f"Settings of the rules: those chosen in {Path(experiment.tuned).name}.")
    if done < planned:
        lines.append(f"**{planned - done} of its {planned} runs are not finished; numbers will change.**")
    return "\n\n".join(line for line in lines if line.strip())


def _beside_the_paper(experiment: Experiment, name: str, tasks: Sequence[Task]) -> str:
    """Accuracy and stability: what is printed, and ours under each semantics."""
    head = ["task", "rule"]
    columns: list[tuple[Measure, str]] = []  # (measure, semantics or "paper")
    for measure in (ACCURACY, STABILITY):
        printed = any(PRINTED[measure.name] in numbers for task in tasks for numbers in task.paper.values())
        ways = (["paper"] if printed else []) + experiment.semantics
        columns += [(measure, way) for way in ways]
        head += [f"{measure.title}: {WORDS.get(way, way)}" for way in ways]
    rows = []
    for task in tasks:
        for rule in experiment.rules:
            lines = {line.staleness: line for line in experiment.lines if line.task is task and line.rule is rule}
            if lines:
                cells = [_cell(lines, measure, way) for measure, way in columns]
                rows.append([task.title, rule.title, *cells])
    return table(f"### {name}", head, rows)


def _cell(lines: dict[str, Line], measure: Measure, way: str) -> str:
    if way == "paper":
        printed = next(iter(lines.values())).paper(PRINTED[measure.name])
        return NOTHING if printed is None else f"{printed:.4f}"
    line = lines.get(way) or lines.get(ANY)
    return NOTHING if line is None else number(measure.estimate(line), measure.digits, len(line.runs))


def _differences(experiment: Experiment) -> str:
    """The first rule minus each other one, on the same seeds and arrivals."""
    first = experiment.rules[0]
    rows = []
    for task in experiment.tasks:
        for way in experiment.semantics:
            lines = experiment.beside(task, way)
            ours = [line for line in lines if line.rule is first]
            for other in lines:
                if ours and other.rule is not first:
                    found = [measure.difference(ours[0], other) for measure in (ACCURACY, STABILITY)]
                    pairs = [NOTHING if each is None else difference(each) for each in found]
                    rows.append([task.title, WORDS[way], f"{first.title} − {other.rule.title}", *pairs])
    head = ["task", "staleness", "difference", "final accuracy", "stability (lower is steadier)"]
    title = f"### {first.title} against the others, paired by seed (bold: the interval excludes 0)"
    return table(title, head, rows)


def _between_semantics(experiment: Experiment) -> str:
    """What the aliased semantics of the published code adds."""
    rows = []
    for task in experiment.tasks:
        for rule in experiment.rules:
            lines = {line.staleness: line for line in experiment.lines if line.task is task and line.rule is rule}
            if {"true", "published-code"} <= lines.keys():
                found = [
                    measure.difference(lines["published-code"], lines["true"]) for measure in (ACCURACY, STABILITY)
                ]
                rows.append(
                    [task.title, rule.title, *(NOTHING if each is None else difference(each) for each in found)]
                )
    title = "### Published code − true staleness, paired by seed"
    return table(title, ["task", "rule", "final accuracy", "stability"], rows)


def _measured(experiment: Experiment, measures: Sequence[Measure], title: str) -> str:
    rows = []
    if len(experiment.lines) > MEASURED:
        return f"### {title}\n\n{len(experiment.lines)} rows, in table.csv."
    for line in experiment.lines:
        cells = [number(measure.estimate(line), measure.digits, len(line.runs)) for measure in measures]
        rows.append([line.task.title, line.rule.title, WORDS[line.staleness], *cells])
    return table(f"### {title}", ["task", "rule", "staleness", *(measure.title for measure in measures)], rows)
