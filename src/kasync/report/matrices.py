"""How do many rules on many tasks read at a glance? A row for each task, a column for each rule, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kasync.report.intervals import Estimate
from kasync.report.measures import ACCURACY
from kasync.report.printing import NOTHING, difference, table
from kasync.report.results import Contender, Experiment, Task
from kasync.report.verdict import NEAR, Standing, standings, verdicts

WITHIN = "°"  # marks what lies within the interval of the best
Cell = Callable[[Standing], str]


def sections(experiment: Experiment) -> list[str]:
    """The verdict over all tasks, then everything by group; a verdict over several tasks only."""
    groups, several = experiment.groups(), len(experiment.rules) > 1
    every = [accuracies, stabilities]
    every += [shares, paces] if _has_limit(experiment) else []
    every += [leads] if several else []
    found = [verdict(experiment, "Everything", experiment.tasks)] if several and len(groups) > 1 else []
    for name, tasks in groups.items():
        found += [verdict(experiment, name, tasks)] if several and len(tasks) > 1 else []
        found += [each(experiment, name, tasks) for each in every]
    return found


def accuracies(experiment: Experiment, name: str, tasks: Sequence[Task]) -> str:
    """Final accuracy of one group; the best in bold, what lies within its interval marked."""
    title = f"### {name}: final accuracy (bold: the best; {WITHIN}: within its 95% interval)"
    return _matrix(experiment, tasks, title, _accuracy)


def stabilities(experiment: Experiment, name: str, tasks: Sequence[Task]) -> str:
    """Stability of one group."""
    title = f"### {name}: stability (standard deviation of the last ten log accuracies)"
    return _matrix(experiment, tasks, title, lambda each: _number(each.stability, 4))


def shares(experiment: Experiment, name: str, tasks: Sequence[Task]) -> str:
    """Accuracy as a share of the limit's."""
    title = f"### {name}: share of the accuracy without staleness, in %"
    return _matrix(experiment, tasks, title, _share, limits=False)


def paces(experiment: Experiment, name: str, tasks: Sequence[Task]) -> str:
    """Steps to most of the limit's accuracy."""
    title = f"### {name}: steps to {NEAR:.0%} of the accuracy without staleness"
    return _matrix(experiment, tasks, f"{title} (bold: the fewest, with every seed)", _pace)


def leads(experiment: Experiment, name: str, tasks: Sequence[Task]) -> str:
    """The first rule minus each other one, paired by seed."""
    first = experiment.rules[0]
    title = f"### {name}: {first.title} minus the others, paired by seed"

    def lead(each: Standing) -> str:
        ours = [line for line in experiment.beside(each.line.task, experiment.semantics[0]) if line.rule is first]
        found = ACCURACY.difference(ours[0], each.line) if ours else None
        return NOTHING if found is None else difference(found)

    rules = [rule for rule in experiment.rules if rule is not first]
    return _matrix(experiment, tasks, f"{title} (bold: the interval excludes 0)", lead, rules=rules)


def verdict(experiment: Experiment, name: str, tasks: Sequence[Task]) -> str:
    """How often each rule is the best one, and where it falls short most."""
    rows, paced = [], _has_limit(experiment)
    for each in verdicts(experiment, tasks, experiment.semantics[0]):
        counts = [f"{count} of {each.tasks}" for count in (each.best, each.ahead, each.within)]
        counts.append(f"{each.fastest} of {each.tasks}" if paced else NOTHING)
        extremes = [
            NOTHING if extreme is None else f"{extreme[0]:{form}} ({extreme[1].title})"
            for extreme, form in ((each.shortfall, ".4f"), (each.share, ".1%"), (each.stability, ".4f"))
        ]
        rows.append([each.rule.title, *([NOTHING] * 4 if each.limit else counts), *extremes])
    head = [
        "rule",
        "best",
        "ahead of every other, paired",
        "best or within the best's interval",
        f"first to {NEAR:.0%} of the limit",
        "largest shortfall to the best",
        "smallest share of the limit",
        "least steady",
    ]
    return table(f"### {name}: verdict over {len(tasks)} tasks", head, rows)


def _has_limit(experiment: Experiment) -> bool:
    """Whether some rule knows no staleness, so that the others can be measured against it."""
    way = experiment.semantics[0]
    return any(each.limit for task in experiment.tasks for each in standings(experiment, task, way))


def _matrix(
    experiment: Experiment,
    tasks: Sequence[Task],
    title: str,
    cell: Cell,
    *,
    rules: Sequence[Contender] | None = None,
    limits: bool = True,
) -> str:
    rules = experiment.rules if rules is None else rules
    rows = []
    for task in tasks:
        every = standings(experiment, task, experiment.semantics[0])
        by_rule = {each.line.rule.label: each for each in every if limits or not each.limit}
        cells = [cell(by_rule[rule.label]) if rule.label in by_rule else NOTHING for rule in rules]
        rows.append([short_title(task), *cells])
    return table(title, ["task", *(rule.title for rule in rules)], rows)


def short_title(task: Task) -> str:
    """Without the group, which the heading names."""
    return task.title.removeprefix(f"{task.group}, ") if task.group else task.title


def _accuracy(each: Standing) -> str:
    text = _number(each.accuracy, 4)
    if each.best:
        return f"**{text}**"
    return f"{text} {WITHIN}" if each.within else text


def _share(each: Standing) -> str:
    if each.share is None:
        return NOTHING
    return f"{100 * each.share.mean:.1f}" + ("" if each.share.half is None else f" ± {100 * each.share.half:.1f}")


def _pace(each: Standing) -> str:
    if each.steps is None:
        return NOTHING
    missing = len(each.line.finished) - each.steps.count
    text = f"{each.steps.mean:.0f}" + (f" ({each.steps.count} of {len(each.line.finished)})" if missing else "")
    return f"**{text}**" if each.fastest else text


def _number(found: Estimate | None, digits: int) -> str:
    if found is None:
        return NOTHING
    return f"{found.mean:.{digits}f}" + ("" if found.half is None else f" ± {found.half:.{digits}f}")
