"""Tables in Markdown, with the paper's numbers beside ours, and the same numbers as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from kasync.experiments.experiment import Contender, Task
from kasync.experiments.settings import FRESH
from kasync.files import csv_text
from kasync.report.numbers import FOLD, KEPT, NEAR, Standing, standings, sweeps
from kasync.report.results import (
    ACCURACY,
    ANY,
    BEHAVIOUR,
    ENDS,
    OF_TIMELINES,
    PERPLEXITY,
    PRINTED,
    STABILITY,
    WORDS,
    Findings,
    Line,
    Measure,
    Results,
    all_of,
    judged,
    own,
    reaching,
    targets,
)
from kasync.statistics import LEVEL, METHOD, Estimate, estimate, holm, p_value, ratios
from kasync.statistics import differences as differences_by_seed
from kasync.verdict import between, compared, ranked

NOTHING = "–"
WITHIN = "°"  # marks what lies within the interval of the best
MEASURED = 100  # rows of the table of speed and staleness, at most: what is longer is better read from the store
ESTIMATE = ("mean", "low", "high", "seeds")
PLACE = ("experiment", "task", "rule", "staleness")
JUDGED = (ACCURACY, STABILITY)
SHOWN = (ACCURACY, *ENDS[:2], STABILITY, BEHAVIOUR[0])  # in the table of a comparison
SHOWN_OF_TIMELINES = (OF_TIMELINES[0], *OF_TIMELINES[2:])
Cell = Callable[[Standing], str]


def markdown(results: Results, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The whole report as one Markdown text; pictures are (experiment, path) pairs."""
    done, planned = results.counts
    parts = ["# Results", f"{done} of {planned} runs are finished. {METHOD}"]
    for experiment in results.experiments:
        shown = [path for name, path in pictures if name == experiment.name]
        parts += [_about(experiment), *sections(experiment), *(f"![{experiment.title}]({path})" for path in shown)]
    return "\n\n".join(part for part in parts if part) + "\n"


def sections(experiment: Findings) -> list[str]:
    """The tables of one experiment."""
    if experiment.kind == "timelines":
        return [_measured(experiment, OF_TIMELINES, "Staleness, counted from 1")]
    if experiment.tried:
        return [sensitivity(experiment)]
    title = "How fast, how stale, how many"
    if experiment.about.baseline:
        groups = (race(experiment, name, tasks) for name, tasks in experiment.groups().items())
        return [*groups, _measured(experiment, BEHAVIOUR, title)]
    speed = _measured(experiment, [*targets(experiment), *BEHAVIOUR], title)
    printed = any(task.paper for task in experiment.tasks)
    if len(experiment.tasks) > 1 and len(experiment.semantics) == 1 and not printed:  # rules beside each other only
        return [*matrices(experiment), speed]
    tables = [_beside_the_paper(experiment, name, tasks) for name, tasks in experiment.groups().items()]
    return [*tables, _differences(experiment), _between_semantics(experiment), speed]


def race(experiment: Findings, name: str, tasks: Sequence[Task]) -> str:
    """How each rule ends, what its targets cost, and how many times sooner than the baseline it is there.

    What a paper or somebody's rerun prints of a number stands behind it in brackets.
    """
    measure, costs, times = judged(experiment), targets(experiment), to_targets(experiment)
    baseline = next(rule.title for rule in experiment.rules if rule.label == experiment.about.baseline)
    head = ["task", "rule", measure.title, *(cost.title for cost in costs)]
    head += [f"{time.title}: {baseline} over this rule" for time in times]
    rows = []
    for task in tasks:
        standing = {line.rule.label: (place, others) for place, (line, others) in enumerate(ties(experiment, task), 1)}
        for line in experiment.beside(task, experiment.semantics[0]):
            cells = [number(each.estimate(line), each.digits, len(line.runs)) for each in (measure, *costs)]
            place, others = standing.get(line.rule.label, (0, []))
            cells[0] = f"**{cells[0]}**" if place == 1 else f"{cells[0]} {WITHIN}" if 1 in others else cells[0]
            printed = [line.paper(PRINTED.get(each.name, each.name)) for each in (measure, *costs)]
            cells = [_beside(cell, other) for cell, other in zip(cells, printed, strict=True)]
            cells += [number(sooner(experiment, line, time), 2, len(line.runs)) for time in times]
            rows.append([task.short, line.rule.title, *cells])
    title = f"### {name} (bold: the best; {WITHIN}: tied with it by paired t-tests, Holm's correction)"
    return table(title, head, rows)


def _beside(cell: str, printed: float | None) -> str:
    return cell if printed is None else f"{cell} (printed: {printed:g})"


def to_targets(experiment: Findings) -> list[Measure]:
    """Virtual time to each target of the experiment."""
    return [reaching(target, "time", experiment.about.metric) for target in experiment.about.targets]


def sooner(experiment: Findings, line: Line, time: Measure) -> Estimate | None:
    """The baseline's time to a target over this line's, seed by seed, where both are there."""
    beside = experiment.beside(line.task, experiment.semantics[0])
    theirs = [other for other in beside if other.rule.label == experiment.about.baseline]
    return estimate(ratios(time.by_seed(theirs[0]), time.by_seed(line))) if theirs else None


def ties(experiment: Findings, task: Task) -> list[tuple[Line, list[int]]]:
    """The lines of a task, the best first, each with the places of those from which it does not differ significantly.

    All pairs are compared, by paired t-tests with Holm's correction; the limit without staleness does not compete.
    """
    measure = judged(experiment)
    lines = [line for line in experiment.beside(task, experiment.semantics[0]) if line.rule.rule != FRESH]
    finals = {line.rule.label: measure.by_seed(line) for line in lines}
    order = [label for label, _ in ranked(finals, lower=measure is PERPLEXITY)]
    gaps, by_label = compared(finals), {line.rule.label: line for line in lines}

    def tied(rule: str, other: str) -> bool:
        gap = between(gaps, rule, other)
        return rule != other and (gap is None or not gap.established)

    return [(by_label[one], [place for place, other in enumerate(order, 1) if tied(one, other)]) for one in order]


def _about(experiment: Findings) -> str:
    done, planned = experiment.counts
    about = experiment.about
    made = f" Made by `{about.command}`." if about.command else ""
    lines = [f"## {experiment.title}", " · ".join(about.figures), f"{about.shows}{made}"]
    stands = sorted({(task.stands_for, task.note) for task in experiment.tasks if task.stands_for or task.note})
    lines += [f"- {f'For {name}: ' if name else ''}{note}" for name, note in stands if note]
    if about.tuned:
        lines.append(f"Settings of the rules: those chosen in {Path(about.tuned).name}.")
    if done < planned:
        lines.append(f"**{planned - done} of its {planned} runs are not finished; numbers will change.**")
    return "\n\n".join(line for line in lines if line.strip())


def _by_semantics(experiment: Findings, task: Task, rule: Contender) -> dict[str, Line]:
    return {line.staleness: line for line in experiment.lines if line.task is task and line.rule is rule}


def _beside_the_paper(experiment: Findings, name: str, tasks: Sequence[Task]) -> str:
    """Accuracy and stability: what is printed, and ours under each semantics."""
    columns: list[tuple[Measure, str]] = []  # (measure, semantics or "paper")
    for measure in JUDGED:
        printed = any(PRINTED[measure.name] in numbers for task in tasks for numbers in task.paper.values())
        columns += [(measure, way) for way in [*(["paper"] if printed else []), *experiment.semantics]]

    def cell(lines: dict[str, Line], measure: Measure, way: str) -> str:
        if way == "paper":
            value = next(iter(lines.values())).paper(PRINTED[measure.name])
            return NOTHING if value is None else f"{value:.4f}"
        line = lines.get(way) or lines.get(ANY)
        return NOTHING if line is None else number(measure.estimate(line), measure.digits, len(line.runs))

    rows = [
        [task.title, rule.title, *(cell(lines, *column) for column in columns)]
        for task, rule in product(tasks, experiment.rules)
        if (lines := _by_semantics(experiment, task, rule))
    ]
    head = [f"{measure.title}: {WORDS.get(way, way)}" for measure, way in columns]
    return table(f"### {name}", ["task", "rule", *head], rows)


def _differences(experiment: Findings) -> str:
    """The first rule minus each other one, on the same seeds and arrivals."""
    first = experiment.rules[0]
    rows = [
        [ours.task.title, WORDS[way], f"{first.title} − {other.rule.title}", *_judged(ours, other)]
        for way, ours, other in experiment.pairs
        if ours.rule is first and other.rule is not first
    ]
    head = ["task", "staleness", "difference", "final accuracy", "stability (lower is steadier)"]
    return table(f"### {first.title} against the others, paired by seed (bold: the interval excludes 0)", head, rows)


def _between_semantics(experiment: Findings) -> str:
    """What the aliased semantics of the published code adds."""
    rows = [
        [task.title, rule.title, *_judged(lines["published-code"], lines["true"])]
        for task, rule in product(experiment.tasks, experiment.rules)
        if {"true", "published-code"} <= (lines := _by_semantics(experiment, task, rule)).keys()
    ]
    title = "### Published code − true staleness, paired by seed"
    return table(title, ["task", "rule", "final accuracy", "stability"], rows)


def _judged(one: Line, other: Line) -> list[str]:
    """The one minus the other in accuracy and stability."""
    found = [measure.difference(one, other) for measure in JUDGED]
    return [NOTHING if each is None else difference(each) for each in found]


def _measured(experiment: Findings, measures: Sequence[Measure], title: str) -> str:
    if len(experiment.lines) > MEASURED:
        return f"### {title}\n\n{len(experiment.lines)} rows, in table.csv."
    rows = [
        [line.task.title, line.rule.title, WORDS[line.staleness]]
        + [number(measure.estimate(line), measure.digits, len(line.runs)) for measure in measures]
        for line in experiment.lines
    ]
    return table(f"### {title}", ["task", "rule", "staleness", *(measure.title for measure in measures)], rows)


def lines(experiment: Findings) -> list[dict[str, Any]]:
    """A row for each rule on each task: seeds finished, accuracy with its interval, and how stale."""
    rows, shown = [], (ACCURACY, *own(experiment.lines), *SHOWN[1:])
    for line in experiment.lines:
        row: dict[str, Any] = dict(zip(PLACE, (experiment.about.name, *_place(experiment, line)[1:]), strict=True))
        row["seeds"] = len(line.finished)
        for measure in SHOWN_OF_TIMELINES if experiment.kind == "timelines" else shown:
            found = measure.estimate(line)
            row[measure.name] = found and found.mean
            if measure is ACCURACY:
                row["interval"] = found and found.half
        rows.append(row)
    return rows


# ---- many rules on many tasks


def matrices(experiment: Findings) -> list[str]:
    """The verdict over all tasks, then everything by group; a verdict over several tasks only."""
    groups, several = experiment.groups(), len(experiment.rules) > 1
    limited = _has_limit(experiment)
    found = [verdict(experiment, "Everything", experiment.tasks)] if several and len(groups) > 1 else []
    for name, tasks in groups.items():
        found += [verdict(experiment, name, tasks)] if several and len(tasks) > 1 else []
        for title, cell, needs_limit, limits in MATRICES:
            if limited or not needs_limit:
                found.append(_matrix(experiment, tasks, f"### {name}: {title}", cell, limits=limits))
        found += [leads(experiment, name, tasks)] if several else []
    return found


def leads(experiment: Findings, name: str, tasks: Sequence[Task]) -> str:
    """The first rule minus each other one, paired by seed."""
    first = experiment.rules[0]
    corrected = _corrected(experiment, first)

    def lead(each: Standing) -> str:
        ours = [line for line in experiment.beside(each.line.task, experiment.semantics[0]) if line.rule is first]
        found = ACCURACY.difference(ours[0], each.line) if ours else None
        if found is None:
            return NOTHING
        return difference(found, bold=corrected.get((each.line.task.name, each.line.rule.label), 1.0) < 1.0 - LEVEL)

    bold = f"(bold: significant by Holm's correction over {len(corrected)} comparisons)"
    title = f"### {name}: {first.title} minus the others, paired by seed {bold}"
    return _matrix(experiment, tasks, title, lead, rules=[rule for rule in experiment.rules if rule is not first])


def _corrected(experiment: Findings, first: Contender) -> dict[tuple[str, str], float]:
    """p of the first rule against each other that competes, on each task, corrected for all of them together."""
    pairs = [
        (ours, line)
        for way, ours, line in experiment.pairs
        if way == experiment.semantics[0] and ours.rule is first and line.staleness != ANY
    ]
    raw = [p_value(differences_by_seed(ACCURACY.by_seed(ours), ACCURACY.by_seed(line))) for ours, line in pairs]
    places = [(line.task.name, line.rule.label) for _, line in pairs]
    return {place: p for place, p in zip(places, holm(raw), strict=True) if p is not None}


def verdict(experiment: Findings, name: str, tasks: Sequence[Task]) -> str:
    """How often each rule is the best one, and where it falls short most; of the limit only where it falls short."""
    way, paced, rows = experiment.semantics[0], _has_limit(experiment), []
    every = [each for task in tasks for each in standings(experiment, task, way)]
    for rule in experiment.rules:
        mine = [each for each in every if each.line.rule is rule]
        if not mine:
            continue
        judged = ("best", "ahead", "within", "fastest") if paced else ("best", "ahead", "within")
        counts = [f"{sum(getattr(each, what) for each in mine)} of {len(mine)}" for what in judged]
        counts = [NOTHING] * 4 if mine[0].limit and way != ANY else [*counts, NOTHING][:4]
        extremes = [
            _extreme(max, mine, [each.shortfall for each in mine], ".4f"),
            _extreme(min, mine, [each.share and each.share.mean for each in mine], ".1%"),
            _extreme(max, mine, [each.stability and each.stability.mean for each in mine], ".4f"),
        ]
        rows.append([rule.title, *counts, *extremes])
    head = [
        *("rule", "best", "ahead of every other, paired", "best or within the best's interval"),
        f"first to {NEAR:.0%} of the limit",
        *("largest shortfall to the best", "smallest share of the limit", "least steady"),
    ]
    return table(f"### {name}: verdict over {len(tasks)} tasks", head, rows)


def _extreme(pick: Callable[..., Any], standings: Sequence[Standing], values: Sequence[Any], form: str) -> str:
    """The largest or smallest of the values there are, and the task that it is of."""
    known = [(value, each.line.task) for value, each in zip(values, standings, strict=True) if value is not None]
    value, task = pick(known, key=lambda pair: pair[0], default=(None, None))
    return NOTHING if task is None else f"{value:{form}} ({task.title})"


def _has_limit(experiment: Findings) -> bool:
    """Whether some rule knows no staleness, so that the others can be measured against it."""
    way = experiment.semantics[0]
    return any(each.limit for task in experiment.tasks for each in standings(experiment, task, way))


def _matrix(
    experiment: Findings,
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
        rows.append([task.short, *cells])
    return table(title, ["task", *(rule.title for rule in rules)], rows)


def _accuracy(each: Standing) -> str:
    text = number(each.accuracy, 4)
    if each.best:
        return f"**{text}**"
    return f"{text} {WITHIN}" if each.within else text


def _pace(each: Standing) -> str:
    if each.steps is None:
        return NOTHING
    missing = len(each.line.finished) - each.steps.count
    text = f"{each.steps.mean:.0f}" + (f" ({each.steps.count} of {len(each.line.finished)})" if missing else "")
    return f"**{text}**" if each.fastest else text


MATRICES: tuple[tuple[str, Cell, bool, bool], ...] = (  # title, cell, needs the limit, shows the limit
    (f"final accuracy (bold: the best; {WITHIN}: within its 95% interval)", _accuracy, False, True),
    (
        "stability (standard deviation of the last ten log accuracies)",
        lambda each: number(each.stability, 4),
        False,
        True,
    ),
    ("share of the accuracy without staleness, in %", lambda each: number(each.share, 1, scale=100), True, False),
    (f"steps to {NEAR:.0%} of the accuracy without staleness (bold: the fewest, with every seed)", _pace, True, True),
)


def sensitivity(experiment: Findings) -> str:
    """A row for each rule and task."""
    rows = []
    for sweep in sweeps(experiment):
        fold, cut = sweep.held()
        over = sweep.over()
        best = [f"{sweep.rates[sweep.best]:.3g}", f"{sweep.accuracies[sweep.best].mean:.4f}"]
        wide = [NOTHING] * 2 if over is None else [f"{value:.4f}" for value in over]
        rows.append([sweep.task.title, sweep.rule.title, *best, *wide, f"{'at least ' if cut else ''}{fold:.1f}"])
    head = [
        *("task", "rule", "best rate", "accuracy there"),
        *(f"mean accuracy over its best {FOLD:g}-fold range of rates", "least accuracy in it"),
        f"range with {KEPT:.0%} of its best accuracy, fold",
    ]
    return table("### Accuracy when the learning rate is wrong", head, rows)


# ---- how a number is written


def number(found: Estimate | None, digits: int, planned: int | None = None, scale: float = 1) -> str:
    """0.9712 ± 0.0021; with `planned` also the number of seeds it rests on, (3), or of how many, (2 of 3)."""
    if found is None:
        return NOTHING
    spread = "" if found.half is None else f" ± {scale * found.half:.{digits}f}"
    of = f" of {planned}" if found.count != planned else ""
    count = "" if planned is None else f" ({found.count}{of})"
    return f"{scale * found.mean:.{digits}f}{spread}{count}"


def difference(found: Estimate, digits: int = 4, bold: bool | None = None) -> str:
    """With its sign; bold where the interval excludes zero, unless told otherwise."""
    spread = "" if found.half is None else f" ± {found.half:.{digits}f}"
    text = f"{found.mean:+.{digits}f}{spread} ({found.count})"
    return f"**{text}**" if (found.excludes_zero if bold is None else bold) else text


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty without rows; a column that says nothing anywhere is left out."""
    rows = list(rows)
    kept = [place for place in range(len(head)) if any(row[place] != NOTHING for row in rows)]
    if not rows or not kept:
        return ""
    lines = [[head[place] for place in kept], ["---"] * len(kept), *([row[place] for place in kept] for row in rows)]
    text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return f"{title}\n\n{text}"


# ---- CSV


def texts(results: Results, pictures: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """Every file of a report that is text: name -> content."""
    sheets = {"numbers.csv": by_run, "table.csv": by_line, "differences.csv": differences, "verdict.csv": standing}
    sheets |= {"rates.csv": by_rate} if any(each.tried for each in results.experiments) else {}
    return {"report.md": markdown(results, pictures)} | {name: sheet(results) for name, sheet in sheets.items()}


def by_run(results: Results) -> str:
    """numbers.csv: one row per run and number."""
    rows: list[tuple[Any, ...]] = []
    for experiment, line in _every(results):
        for seed, run in line.runs.items():
            place = (*_place(experiment, line), seed, run.key)
            known = [(measure.name, measure.of(run)) for measure in all_of(experiment)]
            for row in run.summary.get("aggregated") or ():
                known.append((f"aggregated_{row['mu']:g}", row["number"]))
                known.append((f"aggregated_staleness_{row['mu']:g}", row["staleness"]))
            rows += [(*place, name, value) for name, value in known if value is not None]
    return _text((*PLACE, "seed", "run", "number", "value"), rows)


def by_line(results: Results) -> str:
    """table.csv: mean and interval of every number of a line, and what the paper prints."""
    rows = []
    for experiment, line in _every(results):
        for measure in all_of(experiment):
            found = measure.estimate(line)
            paper = line.paper(PRINTED[measure.name]) if measure.name in PRINTED else None
            if found is not None or paper is not None:
                rows.append((*_place(experiment, line), measure.name, *_numbers(found), paper))
    return _text((*PLACE, "number", *ESTIMATE, "paper"), rows)


def differences(results: Results) -> str:
    """differences.csv: rule minus other on the same task, semantics and seeds, every pair once."""
    rows = []
    for experiment in _comparisons(results):
        for way, ours, other in experiment.pairs:
            place = (experiment.name, ours.task.name, way, ours.rule.label, other.rule.label)
            rows += [(*place, measure.name, *_numbers(measure.difference(ours, other))) for measure in JUDGED]
    return _text(("experiment", "task", "staleness", "rule", "minus", "number", *ESTIMATE), rows)


def standing(results: Results) -> str:
    """verdict.csv: each rule on each task beside the best one and the limit."""
    judged = ("accuracy", "low", "high", "shortfall", "best", "within", "ahead")
    beside = ("share_of_limit", "share_low", "share_high", "stability")
    pace = (f"steps_to_{NEAR:g}_of_limit", "seeds_there", "fastest")
    rows = []
    for experiment in _comparisons(results):
        for task, way, _ in experiment.panels:
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
    return _text((*PLACE, *judged, *beside, *pace), rows)


def by_rate(results: Results) -> str:
    """rates.csv: accuracy at each learning rate, where rules were tried at several."""
    rows = [
        (experiment.name, sweep.task.name, sweep.rule.label, rate, multiple, *_numbers(found))
        for experiment in results.experiments
        if experiment.tried
        for sweep in sweeps(experiment)
        for rate, multiple, found in zip(sweep.rates, sweep.factors, sweep.accuracies, strict=True)
    ]
    return _text(("experiment", "task", "rule", "rate", "of_own_rate", *ESTIMATE), rows)


def _comparisons(results: Results) -> list[Findings]:
    """Where rules compete with each other, and not with themselves at other rates."""
    return [each for each in results.experiments if each.kind == "training" and not each.tried]


def _every(results: Results) -> Iterable[tuple[Findings, Line]]:
    return ((experiment, line) for experiment in results.experiments for line in experiment.lines)


def _place(experiment: Findings, line: Line) -> tuple[str, str, str, str]:
    return experiment.name, line.task.name, line.rule.label, line.staleness


def _numbers(found: Estimate | None) -> tuple[Any, ...]:
    return (None, None, None, 0) if found is None else (found.mean, found.low, found.high, found.count)


def _text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return csv_text((dict(zip(head, row, strict=True)) for row in rows), head)
