"""Tables in Markdown, with the paper's numbers beside ours, the leaderboard, and the same numbers as CSV."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from kasync.experiments.experiment import Contender, Task
from kasync.experiments.settings import FRESH
from kasync.files import csv_text
from kasync.report import results as reading
from kasync.report.numbers import FOLD, KEPT, NEAR, Standing, standings, sweeps
from kasync.report.results import ACCURACY, ANY, PRINTED, STABILITY, WORDS, Findings, Line, Measure, Results, all_of
from kasync.statistics import LEVEL, METHOD, Estimate, holm, p_value
from kasync.statistics import differences as differences_by_seed
from kasync.verdict import between, compared, ranked

NOTHING = "–"
WITHIN = "°"  # marks what lies within the interval of the best
MEASURED = 100  # rows of the table of speed and staleness, at most: what is longer is better read from the store
ESTIMATE = ("mean", "low", "high", "seeds")
PLACE = ("experiment", "task", "rule", "staleness")
JUDGED = (ACCURACY, STABILITY)
Cell = Callable[[Standing], str]


def markdown(results: Results, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The whole report as one Markdown text; pictures are (experiment, path) pairs."""
    done, planned = results.counts
    parts = ["# Results", f"{done} of {planned} runs are finished. {METHOD}"]
    for experiment in results.experiments:
        shown = [f"![{experiment.about.title}]({path})" for name, path in pictures if name == experiment.name]
        parts += [_about(experiment), *sections(experiment), *shown]
    return "\n\n".join(part for part in parts if part) + "\n"


def sections(experiment: Findings) -> list[str]:
    """The tables of one experiment."""
    if experiment.about.kind == "timelines":
        return [_line_by_line(experiment, reading.OF_TIMELINES, "Staleness, counted from 1")]
    if experiment.tried:
        return [sensitivity(experiment)]
    title = "How fast, how stale, how many"
    if experiment.about.baseline:
        groups = (race(experiment, name, tasks) for name, tasks in experiment.groups().items())
        return [*groups, _line_by_line(experiment, reading.BEHAVIOUR, title)]
    speed = _line_by_line(experiment, [*reading.targets(experiment), *reading.BEHAVIOUR], title)
    printed = any(task.paper for task in experiment.tasks)
    if len(experiment.tasks) > 1 and len(experiment.semantics) == 1 and not printed:  # rules beside each other only
        return [*matrices(experiment), speed]
    tables = [_beside_the_paper(experiment, name, tasks) for name, tasks in experiment.groups().items()]
    return [*tables, _differences(experiment), _between_semantics(experiment), speed]


def race(experiment: Findings, name: str, tasks: Sequence[Task]) -> str:
    """How each rule ends, what its targets cost, and how many times sooner than the baseline it is there.

    What a paper or somebody's rerun prints of a number stands behind it in brackets.
    """
    measure, costs = reading.judged(experiment), reading.targets(experiment)
    baseline = next(rule.title for rule in experiment.rules if rule.label == experiment.about.baseline)
    rows = []
    for task in tasks:
        standing = {line: (place, others) for place, (line, others) in enumerate(ties(experiment, task), 1)}
        for line in experiment.beside(task, experiment.semantics[0]):
            place, others = standing.get(line, (0, []))
            row = {"task": task.short, "rule": line.rule.title}
            for each in (measure, *costs):
                cell, printed = measured(each, line), line.paper(PRINTED.get(each.name, each.name))
                if each is measure and (place == 1 or 1 in others):
                    cell = f"**{cell}**" if place == 1 else f"{cell} {WITHIN}"
                row[each.title] = cell if printed is None else f"{cell} (printed: {printed:g})"
            for title, found in sooner(experiment, line).items():
                row[f"{title}: {baseline} over this rule"] = number(found, 2, len(line.runs))
            rows.append(row)
    return table(f"### {name} (bold: the best; {WITHIN}: tied with it by paired t-tests, Holm's correction)", rows)


def sooner(experiment: Findings, line: Line) -> dict[str, Estimate | None]:
    """By target: the baseline's virtual time to it over this line's, seed by seed, where both are there."""
    about, beside = experiment.about, experiment.beside(line.task, experiment.semantics[0])
    theirs = next((other for other in beside if other.rule.label == about.baseline), None)
    times = [reading.reaching(target, "time", about.metric) for target in about.targets]
    return {time.title: None if theirs is None else time.ratio(theirs, line) for time in times}


def ties(experiment: Findings, task: Task) -> list[tuple[Line, list[int]]]:
    """The lines of a task, the best first, each with the places of those from which it does not differ significantly.

    All pairs are compared, by paired t-tests with Holm's correction; the limit without staleness does not compete.
    """
    measure = reading.judged(experiment)
    lines = [line for line in experiment.beside(task, experiment.semantics[0]) if line.rule.rule != FRESH]
    finals = {line.rule.label: measure.by_seed(line) for line in lines}
    order = [label for label, _ in ranked(finals, lower=measure is reading.PERPLEXITY)]
    gaps, by_label = compared(finals), {line.rule.label: line for line in lines}

    def tied(rule: str, other: str) -> bool:
        gap = between(gaps, rule, other)
        return rule != other and (gap is None or not gap.established)

    return [(by_label[one], [place for place, other in enumerate(order, 1) if tied(one, other)]) for one in order]


def _about(experiment: Findings) -> str:
    done, planned = experiment.counts
    about = experiment.about
    made = f" Made by `{about.command}`." if about.command else ""
    lines = [f"## {experiment.about.title}", " · ".join(about.figures), f"{about.shows}{made}"]
    stands = sorted({(task.stands_for, task.note) for task in experiment.tasks if task.note})
    lines += [f"- {f'For {name}: ' if name else ''}{note}" for name, note in stands]
    if about.tuned:
        lines.append(f"Settings of the rules: those chosen in {Path(about.tuned).name}.")
    entered = Counter((line.rule.title, line.entry) for line in experiment.lines if line.entry)
    if entered:
        counts = (f"{rule} as {entry} on {n} of {len(about.tasks)} tasks" for (rule, entry), n in entered.items())
        lines.append(f"Entered in the form that was tuned better: {', '.join(counts)}.")
    if done < planned:
        lines.append(f"**{planned - done} of its {planned} runs are not finished; numbers will change.**")
    return "\n\n".join(line for line in lines if line.strip())


def _beside_the_paper(experiment: Findings, name: str, tasks: Sequence[Task]) -> str:
    """Accuracy and stability: what is printed, and ours under each semantics."""
    rows = []
    for task, rule in product(tasks, experiment.rules):
        row = {"task": task.title, "rule": rule.title}
        lines = {line.staleness: line for line in experiment.lines if line.task is task and line.rule is rule}
        for measure in JUDGED if lines else ():
            printed = next(iter(lines.values())).paper(PRINTED[measure.name])
            row[f"{measure.title}: paper"] = NOTHING if printed is None else f"{printed:.4f}"
            for way in experiment.semantics:
                line = lines.get(way) or lines.get(ANY)
                row[f"{measure.title}: {WORDS[way]}"] = NOTHING if line is None else measured(measure, line)
        rows += [row] if lines else []
    return table(f"### {name}", rows)


def _differences(experiment: Findings) -> str:
    """The first rule minus each other one, on the same seeds and arrivals."""
    first, judged = experiment.rules[0], ("final accuracy", "stability (lower is steadier)")
    rows = [
        {"task": ours.task.title, "staleness": WORDS[way], "difference": f"{first.title} − {other.rule.title}"}
        | {name: difference(measure.difference(ours, other)) for name, measure in zip(judged, JUDGED, strict=True)}
        for way, ours, other in experiment.pairs
        if ours.rule is first and other.rule is not first
    ]
    return table(f"### {first.title} against the others, paired by seed (bold: the interval excludes 0)", rows)


def _between_semantics(experiment: Findings) -> str:
    """What the aliased semantics of the published code adds."""
    names = ("task", "rule", "final accuracy", "stability")
    rows = [
        dict(zip(names, (line.task.title, line.rule.title, *map(difference, gaps)), strict=True))
        for line, gaps in between_semantics(experiment)
    ]
    return table("### Published code − true staleness, paired by seed", rows)


def between_semantics(experiment: Findings) -> Iterator[tuple[Line, list[Estimate | None]]]:
    """Each line of the published code, minus that of true staleness in accuracy and stability, where both are there."""
    true = {(line.task.name, line.rule.label): line for line in experiment.lines if line.staleness == "true"}
    for line in experiment.lines:
        other = true.get((line.task.name, line.rule.label))
        if line.staleness == "published-code" and other is not None:
            yield line, [measure.difference(line, other) for measure in JUDGED]


def _line_by_line(experiment: Findings, measures: Sequence[Measure], title: str) -> str:
    if len(experiment.lines) > MEASURED:
        return f"### {title}\n\n{len(experiment.lines)} rows, in table.csv."
    rows = [
        {"task": line.task.title, "rule": line.rule.title, "staleness": WORDS[line.staleness]}
        | {measure.title: measured(measure, line) for measure in measures}
        for line in experiment.lines
    ]
    return table(f"### {title}", rows)


def lines(experiment: Findings) -> list[dict[str, Any]]:
    """A row for each rule on each task: seeds finished, accuracy with its interval, and how stale."""
    shown = (ACCURACY, *reading.own(experiment.lines), *reading.ENDS[:2], STABILITY, reading.BEHAVIOUR[0])
    if experiment.about.kind == "timelines":
        shown = (reading.OF_TIMELINES[0], *reading.OF_TIMELINES[2:])
    rows = []
    for line in experiment.lines:
        place = (experiment.about.name, line.task.name, line.rule.label, line.staleness)
        row: dict[str, Any] = dict(zip((*PLACE, "seeds"), (*place, len(line.finished)), strict=True))
        for measure in shown:
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
    found = [verdict(experiment, "Everything", experiment.tasks)] if several and len(groups) > 1 else []
    limited = any(line.staleness == ANY and line.finished for line in experiment.lines)
    for name, tasks in groups.items():
        found += [verdict(experiment, name, tasks)] if several and len(tasks) > 1 else []
        shown = MATRICES | (BESIDE_THE_LIMIT if limited else {})
        found += [_matrix(experiment, tasks, f"### {name}: {title}", cell) for title, cell in shown.items()]
        found += [leads(experiment, name, tasks)] if several else []
    return found


def leads(experiment: Findings, name: str, tasks: Sequence[Task]) -> str:
    """The first rule minus each other one, paired by seed."""
    first, way = experiment.rules[0], experiment.semantics[0]
    corrected = _corrected(experiment, first)
    ours = {task.name: line for task in tasks for line in experiment.beside(task, way) if line.rule is first}

    def lead(each: Standing) -> str:
        task = each.line.task.name
        found = ACCURACY.difference(ours[task], each.line) if task in ours and each.line.rule is not first else None
        return difference(found, bold=corrected.get((task, each.line.rule.label), 1.0) < 1.0 - LEVEL)

    bold = f"(bold: significant by Holm's correction over {len(corrected)} comparisons)"
    return _matrix(experiment, tasks, f"### {name}: {first.title} minus the others, paired by seed {bold}", lead)


def _corrected(experiment: Findings, first: Contender) -> dict[tuple[str, str], float]:
    """p of the first rule against each other that competes, on each task, corrected for all of them together."""
    raw = {
        (line.task.name, line.rule.label): p_value(differences_by_seed(ACCURACY.by_seed(ours), ACCURACY.by_seed(line)))
        for way, ours, line in experiment.pairs
        if way == experiment.semantics[0] and ours.rule is first and line.staleness != ANY
    }
    return {place: p for place, p in zip(raw, holm(list(raw.values())), strict=True) if p is not None}


def verdict(experiment: Findings, name: str, tasks: Sequence[Task]) -> str:
    """How often each rule is the best one, and where it falls short most; of the limit only where it falls short."""
    way, rows = experiment.semantics[0], []
    every = [each for task in tasks for each in standings(experiment, task, way)]
    paced = any(each.limit for each in every)
    for rule in experiment.rules:
        mine = [each for each in every if each.line.rule is rule]
        if not mine:
            continue
        judged = {name: sum(getattr(each, name) for each in mine) for name in ("best", "ahead", "within", "fastest")}
        silent = {*judged} if mine[0].limit and way != ANY else set() if paced else {"fastest"}
        counts = {name: NOTHING if name in silent else f"{n} of {len(mine)}" for name, n in judged.items()}
        shares, deviations = [each.share for each in mine], [each.stability for each in mine]
        rows.append(
            {
                "rule": rule.title,
                "best": counts["best"],
                "ahead of every other, paired": counts["ahead"],
                "best or within the best's interval": counts["within"],
                f"first to {NEAR:.0%} of the limit": counts["fastest"],
                "largest shortfall to the best": _extreme(max, mine, [each.shortfall for each in mine], ".4f"),
                "smallest share of the limit": _extreme(min, mine, [each and each.mean for each in shares], ".1%"),
                "least steady": _extreme(max, mine, [each and each.mean for each in deviations], ".4f"),
            }
        )
    return table(f"### {name}: verdict over {len(tasks)} tasks", rows)


def _extreme(pick: Callable[..., Any], standings: Sequence[Standing], values: Sequence[Any], form: str) -> str:
    """The largest or smallest of the values there are, and the task that it is of."""
    known = [(value, each.line.task) for value, each in zip(values, standings, strict=True) if value is not None]
    value, task = pick(known, key=lambda pair: pair[0], default=(None, None))
    return NOTHING if task is None else f"{value:{form}} ({task.title})"


def _matrix(experiment: Findings, tasks: Sequence[Task], title: str, cell: Cell) -> str:
    """A row for each task and a column for each rule that has something to say."""
    rows = []
    for task in tasks:
        cells = {each.line.rule.label: cell(each) for each in standings(experiment, task, experiment.semantics[0])}
        rows.append({"task": task.short} | {rule.title: cells.get(rule.label, NOTHING) for rule in experiment.rules})
    return table(title, rows)


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


MATRICES: dict[str, Cell] = {
    f"final accuracy (bold: the best; {WITHIN}: within its 95% interval)": _accuracy,
    "stability (standard deviation of the last ten log accuracies)": lambda each: number(each.stability, 4),
}
BESIDE_THE_LIMIT: dict[str, Cell] = {
    "share of the accuracy without staleness, in %": (
        lambda each: number(None if each.limit else each.share, 1, scale=100)
    ),
    f"steps to {NEAR:.0%} of the accuracy without staleness (bold: the fewest, with every seed)": _pace,
}


def sensitivity(experiment: Findings) -> str:
    """A row for each rule and task."""
    rows = []
    for sweep in sweeps(experiment):
        fold, cut = sweep.held()
        over = sweep.over()
        typical, least = (NOTHING, NOTHING) if over is None else (f"{value:.4f}" for value in over)
        rows.append(
            {
                "task": sweep.task.title,
                "rule": sweep.rule.title,
                "best rate": f"{sweep.rates[sweep.best]:.3g}",
                "accuracy there": f"{sweep.accuracies[sweep.best].mean:.4f}",
                f"mean accuracy over its best {FOLD:g}-fold range of rates": typical,
                "least accuracy in it": least,
                f"range with {KEPT:.0%} of its best accuracy, fold": f"{'at least ' if cut else ''}{fold:.1f}",
            }
        )
    return table("### Accuracy when the learning rate is wrong", rows)


# ---- the leaderboard of a store

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


def leaderboard(results: Results, folder: str) -> str:
    """Rules on tasks, whose differences are significant, and times to targets; the store is called `folder`."""
    boards = [each for each in results.experiments if each.about.baseline and each.about.kind == "training"]
    tasks = [(each, task) for each in boards for task in each.tasks]
    rules = {line.rule.label for each in boards for line in each.lines if line.finished}
    runs = {run.key: run for each in boards for line in each.lines for run in line.finished}
    head = HEAD.format(count=len(rules), tasks=len(tasks), runs=len(runs), folder=folder, method=METHOD)
    held = max((run.settings.get("validation", 0.0) for run in runs.values()), default=0.0)
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
    rows = []
    for title, mine in sorted(found.items(), key=lambda pair: mean(place for place, _ in pair[1])):
        places, tied = zip(*mine, strict=True)
        row = {"rule": title, "tasks": f"{len(mine)}", "mean place": f"{mean(places):.1f}"}
        rows.append(row | {"first": f"{places.count(1)}", "first or tied with it": f"{sum(tied)}"})
    return table("## All tasks", rows)


def board(experiment: Findings, task: Task) -> str:
    """One task: the rules in their order, the ties, and what targets cost."""
    measure, rows = reading.judged(experiment), []
    for place, (line, others) in enumerate(ties(experiment, task), 1):
        row = {"place": f"{place}", "rule": line.rule.title, measure.title: measured(measure, line)}
        row["tied with"] = _places(others)
        row |= {cost.title: measured(cost, line) for cost in reading.targets(experiment)}
        for title, found in sooner(experiment, line).items():
            row[f"sooner, {title}"] = number(found, 2, len(line.runs))
        rows.append(row)
    return table(f"## {task.title}", rows)


def _places(places: Sequence[int]) -> str:
    """1, 2, 3, 5 as 1–3, 5."""
    runs: list[list[int]] = []
    for place in places:
        if not runs or place != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(place)
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs) or NOTHING


# ---- how a number is written


def number(found: Estimate | None, digits: int, planned: int | None = None, scale: float = 1) -> str:
    """0.9712 ± 0.0021; with `planned` also the number of seeds it rests on, (3), or of how many, (2 of 3)."""
    if found is None:
        return NOTHING
    spread = "" if found.half is None else f" ± {scale * found.half:.{digits}f}"
    of = f" of {planned}" if found.count != planned else ""
    count = "" if planned is None else f" ({found.count}{of})"
    return f"{scale * found.mean:.{digits}f}{spread}{count}"


def measured(measure: Measure, line: Line) -> str:
    """A measure of a line, with the seeds it rests on."""
    return number(measure.estimate(line), measure.digits, len(line.runs))


def difference(found: Estimate | None, bold: bool | None = None) -> str:
    """With its sign; bold where the interval excludes zero, unless told otherwise."""
    if found is None:
        return NOTHING
    text = number(found, 4, found.count)
    signed = text if text.startswith("-") else f"+{text}"
    return f"**{signed}**" if (found.excludes_zero if bold is None else bold) else signed


def table(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Empty without rows; a column that says nothing anywhere is left out."""
    names = dict.fromkeys(name for row in rows for name in row)
    kept = [name for name in names if any(row.get(name, NOTHING) != NOTHING for row in rows)]
    lines = (kept, ["---"] * len(kept), *([row.get(name, NOTHING) for name in kept] for row in rows))
    text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return f"{title}\n\n{text}" if kept else ""


# ---- CSV


def texts(results: Results, pictures: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """Every file of a report that is text: name -> content."""
    sheets = {"numbers.csv": by_run, "table.csv": by_line, "differences.csv": differences, "verdict.csv": standing}
    sheets |= {"rates.csv": by_rate} if any(each.tried for each in results.experiments) else {}
    return {"report.md": markdown(results, pictures)} | {name: sheet(results) for name, sheet in sheets.items()}


def by_run(results: Results) -> str:
    """numbers.csv: one row per run and number."""
    rows: list[tuple[Any, ...]] = []
    for experiment, line, place in _every(results):
        for seed, run in line.runs.items():
            known = {measure.name: measure.of(run) for measure in all_of(experiment)}
            for row in run.summary.get("aggregated") or ():
                known[f"aggregated_{row['mu']:g}"] = row["number"]
                known[f"aggregated_staleness_{row['mu']:g}"] = row["staleness"]
            rows += [(*place, seed, run.key, name, value) for name, value in known.items() if value is not None]
    return _text((*PLACE, "seed", "run", "number", "value"), rows)


def by_line(results: Results) -> str:
    """table.csv: mean and interval of every number of a line, and what the paper prints."""
    rows = []
    for experiment, line, place in _every(results):
        for measure in all_of(experiment):
            found = measure.estimate(line)
            paper = line.paper(PRINTED[measure.name]) if measure.name in PRINTED else None
            if found is not None or paper is not None:
                rows.append((*place, measure.name, *_numbers(found), paper))
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
                place = (experiment.name, task.name, each.line.rule.label, way)
                best, within, ahead, fastest = map(int, (each.best, each.within, each.ahead, each.fastest))
                accuracy, share, steady, steps = map(_numbers, (each.accuracy, each.share, each.stability, each.steps))
                row = (*place, *accuracy[:3], each.shortfall, best, within, ahead, *share[:3], steady[0])
                rows.append((*row, steps[0], steps[3], fastest))
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
    return [each for each in results.experiments if each.about.kind == "training" and not each.tried]


def _every(results: Results) -> Iterable[tuple[Findings, Line, tuple[str, ...]]]:
    """Each line with its experiment and what PLACE names."""
    for experiment in results.experiments:
        for line in experiment.lines:
            yield experiment, line, (experiment.name, line.task.name, line.rule.label, line.staleness)


def _numbers(found: Estimate | None) -> tuple[Any, ...]:
    return (None, None, None, 0) if found is None else (found.mean, found.low, found.high, found.count)


def _text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return csv_text((dict(zip(head, row, strict=True)) for row in rows), head)
