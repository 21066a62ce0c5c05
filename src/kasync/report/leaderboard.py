"""The leaderboard of a store: rules on tasks, whose differences are significant, and times to targets."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from kasync.experiments.experiment import Task
from kasync.report.results import Findings, Line, Measure, Results, judged, targets
from kasync.report.tables import NOTHING, number, sooner, table, ties, to_targets
from kasync.statistics import METHOD

HEAD = """
{count} rules on {tasks} tasks, from {runs} runs in `{folder}`. On one task all rules see the same fleet, start from the
same models and make the same number of client uploads; every rule had the same number of tries for its rate.
{method}"""
TIES = """
*Tied with* names the rules, by place, from which this one does not differ significantly: paired t-tests by seed
over all pairs of the task, with Holm's correction. With few seeds most rules are tied. *Sooner* is the synchronous
baseline's time to the target divided by that of the rule."""
OWN = """## A rule of your own

Tunes it with the same number of tries, makes its runs on the same fleets, and writes this page again:

    kasync leaderboard add mypackage:myrule --out {folder}

The rule is a function that returns a `kasync.Rule`; see [write a rule](write-a-rule.md)."""


def page(results: Results, folder: str) -> str:
    """The page as Markdown; `folder` is what the store is called on it."""
    boards = [each for each in results.experiments if each.about.baseline and each.kind == "training"]
    tasks = [(each, task) for each in boards for task in each.tasks]
    rules = {line.rule.label for each in boards for line in each.lines if line.finished}
    runs = len({run.key for each in boards for line in each.lines for run in line.finished})
    shares = {run.settings.get("validation", 0.0) for each in boards for line in each.lines for run in line.finished}
    head = HEAD.format(count=len(rules), tasks=len(tasks), runs=runs, folder=folder, method=METHOD)
    held = max(shares, default=0.0)
    judged_on = f" Judged on {held:.0%} of the training samples, held out, and not on the test set." if held else ""
    opening = [textwrap.fill(text.strip(), 150) for text in (head, TIES.rstrip() + judged_on)]
    tables = [board(each, task) for each, task in tasks]
    parts = ["# Leaderboard", *opening, overview(tasks), *tables, OWN.format(folder=folder)]
    return "\n\n".join(part for part in parts if part) + "\n"


def overview(tasks: Sequence[tuple[Findings, Task]]) -> str:
    """A row for each rule, ordered by its mean place: on how many tasks it is first, and tied with the first."""
    found: dict[str, list[tuple[int, bool]]] = {}  # rule -> its place on each task, and whether that is (tied) first
    for experiment, task in tasks:
        for place, (line, others) in enumerate(ties(experiment, task), 1):
            found.setdefault(line.rule.title, []).append((place, place == 1 or 1 in others))
    means = {title: sum(place for place, _ in mine) / len(mine) for title, mine in found.items()}
    rows = []
    for title, mean in sorted(means.items(), key=lambda pair: pair[1]):
        first, tied = sum(place == 1 for place, _ in found[title]), sum(tied for _, tied in found[title])
        rows.append([title, f"{len(found[title])}", f"{mean:.1f}", f"{first}", f"{tied}"])
    return table("## All tasks", ["rule", "tasks", "mean place", "first", "first or tied with it"], rows)


def board(experiment: Findings, task: Task) -> str:
    """One task: the rules in their order, the ties, and what targets cost."""
    measure, costs, times = judged(experiment), targets(experiment), to_targets(experiment)
    head = ["place", "rule", measure.title, "tied with", *(cost.title for cost in costs)]
    head += [f"sooner, {time.title}" for time in times]
    rows = []
    for place, (line, others) in enumerate(ties(experiment, task), 1):
        cells = [_told(each, line) for each in costs]
        cells += [number(sooner(experiment, line, time), 2, len(line.runs)) for time in times]
        rows.append([f"{place}", line.rule.title, _told(measure, line), _places(others), *cells])
    return table(f"## {task.title}", head, rows)


def _told(measure: Measure, line: Line) -> str:
    return number(measure.estimate(line), measure.digits, len(line.runs))


def _places(places: Sequence[int]) -> str:
    """1, 2, 3, 5 as 1–3, 5."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs) or NOTHING
