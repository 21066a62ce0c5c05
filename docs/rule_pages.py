"""The pages of docs/rules: each rule's facts, signature and parts, our words about its use, and its results.

    python docs/rule_pages.py [FOLDER]

Results are those of the stores in results/; a rule that is in none of them is "not yet run".
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kasync import Arrivals, Rule, ServerState, report, rules
from kasync.experiments.experiment import Task
from kasync.experiments.store import Run
from kasync.report.numbers import Sweep, sweeps
from kasync.report.results import ACCURACY, STABILITY

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SHOWN = (ACCURACY, STABILITY)
Results = dict[str, dict[str, dict[str, str]]]  # rule -> task -> column -> text
SYMBOLS = (
    "$w$ is the model, $g_i$ a delivered gradient (or start minus trained model), $s_i$ its staleness, $m_i$ its batch "
    "size, $K$ the number of deliveries of a step, $P$ that of clients, $\\eta$ the rate."
)
NEEDS = {
    "staleness": "staleness",
    "losses": "losses",
    "batch_sizes": "batch sizes",
    "clients": "who delivered",
    "starts": "the model each client started from",
    "server_gradient": "a gradient of the server's own, on a few samples",
}
KEPT = 0.95  # of the best accuracy
LENGTH = 7919  # parameters of a model on which what rules remember is counted
COUNTED = ("no", "one", "two", "three")
WIDTH = 150  # of a line of prose
WORD = re.compile(r"(?:\$[^$]*\$|`[^`]*`|\[[^\]]*\]|\S)+")
ABOUT = """
What the server can do with k deliveries. Every rule runs in the simulator and on Flower and Ray, takes any optimiser of
`torch.optim` and a schedule, and can be taken apart: `rule.without(Part)`. `kasync rules` prints the same list, and
[a rule of your own](../write-a-rule.md) takes a dozen lines. [Which one to take](which.md) has a table. "Not yet run"
says that there is no result of ours.
"""
OWN = """from kasync import data, models, rules, server_gradient

digits = data.load("digits")
clients = data.federate(digits, data.partition.labels(1)(digits, clients=100))
own = server_gradient(models.build("logistic", clients), clients, clients.server_sample(100), batch=50)
"""


def pages() -> dict[str, str]:
    """Every page of docs/rules, by its file name."""
    words = tomllib.loads((HERE / "rule_words.toml").read_text())
    results = read_results()
    made = {f"{name}.md": page(name, words, results.get(name, {})) for name in rules.RULES}
    return made | {"index.md": index(words)}


def page(name: str, words: dict[str, Any], results: dict[str, dict[str, str]]) -> str:
    """One rule."""
    own, facts = words[name], rules.facts(name)
    sections = [
        f"# {facts.title}",
        f"`rules.{name}`",
        *(f"${formula}$" for formula in own["formula"]),
        SYMBOLS,
        f"**Paper.** {facts.paper}",
        *([facts.notes] if facts.notes else []),
        *([f"**Our reading.** {own['reading']}"] if "reading" in own else []),
        "## When to use it",
        paragraph(own["when"]),
        "## When not to",
        paragraph(own["beware"]),
        "## What it needs",
        needed(facts, own),
        "## Settings",
        settings(facts.make, words["meaning"] | own.get("meaning", {})),
        f"```python\n{example(own)}\n```",
        "## What it is made of",
        composition(built(own)),
        "## How much its rate matters",
        sensitivity(name),
        "## In our results",
        told(results),
    ]
    return "\n\n".join(folded(section) for section in sections) + "\n"


def needed(facts: rules.Facts, own: dict[str, Any]) -> str:
    """What it reads of a delivery, what it remembers, and whether its runs can be stacked."""
    reads = [NEEDS[need] for need in NEEDS if need in (facts.needs or ())]
    rows = [
        f"- Beside the gradients: {', '.join(reads) if reads else 'nothing'}.",
        f"- It remembers {Held.by(built(own))}",
        *([f"- {own['cost']}"] if "cost" in own else []),
        f"- Its rate is called `{facts.rate}`" + (f", its main knob `{facts.knob}`." if facts.knob else "."),
        "- Runs of it can" + ("" if facts.stackable else "not") + " share their steps on a GPU (`kasync.together`).",
    ]
    return "\n".join(rows)


@dataclass(frozen=True)
class Held:
    """What a server holds for a rule after a step, counted on a model of LENGTH parameters."""

    rows: float  # as long as the model, for each client
    queued: int  # the same, in a queue
    vectors: int  # as long as the model,
    exact: int  # and how many of them are in float64
    each: bool  # a number or two for every client
    numbers: int  # others

    @classmethod
    def by(cls, rule: Rule) -> Held:
        params, (few, none) = torch.zeros(LENGTH), (torch.zeros(2, LENGTH), [0, 0])
        delivered = Arrivals(few, none, [1.0, 1.0], [1, 1], [0, 1], few)
        memory = list(rule.shaped([(LENGTH,)])(ServerState.initial(params), delivered)[0].memory.values())
        tables = sum(len(each) - 1 for each in memory if each.dim() == 2)  # the last row of each is nobody's
        vectors = [each.dtype for each in memory if each.shape == params.shape]
        small = [len(each) for each in memory if each.dim() == 1 and len(each) < LENGTH]
        clients = rule.clients or 0
        return cls(
            rows=tables / clients if clients else 0.0,
            queued=0 if clients else tables,
            vectors=len(vectors),
            exact=vectors.count(torch.float64),
            each=bool(clients) and any(number > clients for number in small),
            numbers=sum(number for number in small if not 0 < clients < number),
        )

    def __str__(self) -> str:
        found = []
        if self.rows:
            found.append(f"{COUNTED[int(self.rows)]} row{'s' * (self.rows > 1)} as long as the model for every client")
        if self.queued:
            found.append(f"{self.queued} rows as long as the model, the queue")
        if self.vectors:
            found.append(f"{COUNTED[self.vectors]} vector{'s' * (self.vectors > 1)} as long as the model")
        if self.exact:
            found[-1] += f", {'one of them ' * (self.vectors > 1)}in float64"
        if self.each:
            found.append("a number or two for every client")
        if self.numbers:
            found.append(f"{self.numbers:,} numbers")
        return ("; ".join(found) or "nothing") + "."


@functools.cache
def tries() -> dict[str, dict[str, dict[float, list[float]]]]:
    """rule -> task -> rate -> held-out accuracies, of everything that was tried while tuning."""
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for path in sorted(RESULTS.glob("*/tuned/*.toml")):
        alone = len(list(path.parent.glob("*.toml"))) == 1
        where = path.parents[1].name if alone else path.stem.rpartition("-")[0]  # its store, or its experiment
        for row in tomllib.loads(path.read_text()).get("tried", []):
            if row["rule"] in rules.RULES:
                task = found.setdefault(row["rule"], {}).setdefault(f"{where}: {row['task']}", {})
                rate = row["settings"][rules.facts(row["rule"]).rate]
                task.setdefault(rate, []).append(row["accuracy"])
    return found


def sensitivity(name: str) -> str:
    """Over which rates it keeps most of its accuracy: on the fleet that all rules share, and in tuning."""
    return "\n\n".join([*on_the_fleet(name), *in_tuning(name)]) or "Not yet measured."


@functools.cache
def at_rates() -> dict[str, tuple[Sweep, Run]]:
    """rule -> its accuracies at several rates on the fleet that all rules share, and one of the runs."""
    found = {}
    for folder in sorted(path.parent for path in RESULTS.glob("*/experiments.json")):
        for experiment in (each for each in report.read(folder).experiments if each.tried):
            runs = {line.rule.of: line.finished[0] for line in experiment.lines if line.finished}
            found |= {sweep.rule.label: (sweep, runs[sweep.rule.label]) for sweep in sweeps(experiment)}
    return found


def on_the_fleet(name: str) -> list[str]:
    """What the fleet is, the accuracy at every rate, and how wide the range of good ones is beside other rules'."""
    if name not in at_rates():
        return []
    sweep, run = at_rates()[name]
    about = [f"Measured on one fleet for all rules: {sweep.task.note}"]
    if run.settings["k"] == 1:
        about.append("This rule takes one delivery at a time.")
    if run.settings["arrivals"]["kind"] == "once_per_round":
        about.append("For this rule everybody delivers once in a round.")
    seeds = min(each.count for each in sweep.accuracies)
    about.append(f"Final accuracy on the test set, mean of {seeds} seeds (`results/README.md`):")
    means = [each.mean for each in sweep.accuracies]
    rows = [
        f"| `{rules.facts(name).rate}` | " + " | ".join(f"{rate:.2g}" for rate in sweep.rates) + " |",
        "|---" * (1 + len(means)) + "|",
        "| accuracy | " + " | ".join(f"{mean:.3f}" for mean in means) + " |",
    ]
    return [folded(" ".join(about)), "\n".join(rows), folded(width(name))]


def width(name: str) -> str:
    """How many-fold the range of rates is that keeps most of the best accuracy, and its place among those of all."""
    sweep, _ = at_rates()[name]
    fold, cut = sweep.held(KEPT)
    best, every = sweep.accuracies[sweep.best].mean, [each.held(KEPT)[0] for each, _ in at_rates().values()]
    return (
        f"It keeps {KEPT:.0%} of its best, {best:.3f} at {sweep.rates[sweep.best]:.2g}, over "
        f"{'at least ' * cut}a {fold:.2g}-fold range of rates, place {1 + sum(each > fold for each in every)} of "
        f"{len(every)} from the widest."
    )


def in_tuning(name: str) -> list[str]:
    """What was tried while tuning, where it was."""
    rows = []
    for task, rates in tries().get(name, {}).items():
        means = {rate: sum(each) / len(each) for rate, each in rates.items()}
        best = max(means, key=lambda rate: means[rate])
        kept = [rate for rate in means if means[rate] >= KEPT * means[best]]
        least, most = min(kept), max(kept)
        rows.append(f"| {task} | {len(means)} | {best:.2g} | {means[best]:.3f} | {least:.2g} to {most:.2g} |")
    if not rows:
        return []
    head = f"| task | rates tried | best | held-out accuracy | rates that keep {KEPT:.0%} of it |"
    note = (
        "While tuning, on held-out samples; neighbouring rates are a factor of 2 to 3.2 apart, and the wider the "
        "range, the easier the rule:"
    )
    return [note, "\n".join([head, "|---" * 5 + "|", *rows])]


def index(words: dict[str, Any]) -> str:
    """The catalogue."""
    rows = [f"| [{rules.facts(name).title}]({name}.md) | ${words[name]['formula'][0]}$ |" for name in rules.RULES]
    table = "\n".join(["| rule | formula |", "|---|---|", *rows])
    return "\n\n".join(["# Rules", folded(paragraph(ABOUT)), folded(SYMBOLS), table]) + "\n"


def settings(make: Any, meaning: dict[str, str]) -> str:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for each in inspect.signature(make).parameters.values():
        required = each.default is inspect.Parameter.empty
        default = "must be given" if required else "none" if each.default is None else f"`{each.default}`"
        rows.append(f"| `{each.name}` | {default} | {meaning[each.name]} |")
    return "\n".join(rows)


def example(own: dict[str, Any]) -> str:
    start = OWN if "server_gradient" in own["example"] else "from kasync import rules\n\n"
    return f"{start}rule = {own['example']}"


def built(own: dict[str, Any]) -> Rule:
    """The rule of the example, with any function for the server's gradient."""
    return eval(own["example"], {"rules": rules, "own": torch.zeros_like})


def composition(rule: Rule) -> str:
    rows = [f"1. `{type(part).__name__}`: {summary(part)}" for part in rule.parts]
    if rule.optimizer is not None:
        made = getattr(rule.optimizer, "func", rule.optimizer)
        rows.append(f"1. `{made.__name__}` on the direction d: {summary(made)}")
    return "\n".join(rows) if rows else "No parts at all: the mean of the deliveries is the direction."


def summary(part: Any) -> str:
    text, _, source = (inspect.getdoc(part) or "").partition("\n")[0].partition("   (")
    return f"`{text.replace('`', '')}`" + (f" ({source}" if source else "")


def told(results: dict[str, dict[str, str]]) -> str:
    if not results:
        return "Not yet run."
    columns = ["paper", "final_accuracy published-code", "final_accuracy true", "stability true"]
    rows = [
        f"| {task} | " + " | ".join(numbers.get(column, "–") for column in columns) + " |"
        for task, numbers in results.items()
    ]
    head = "| task | paper: final accuracy | ours, published code's semantics | ours, true staleness | stability |"
    note = "Means; the number of seeds in brackets. Intervals, settings and what the numbers mean: `results/README.md`."
    return "\n".join([head, "|---" * (1 + len(columns)) + "|", *rows, "", note])


def read_results() -> Results:
    """Every finished number of the stores that lie in results/."""
    found: Results = {}
    for folder in sorted(path.parent for path in RESULTS.glob("*/experiments.json")):
        for experiment in report.read(folder).experiments:
            for line in experiment.lines:
                numbers = found.setdefault(line.rule.label, {}).setdefault(f"{folder.name}: {_titled(line.task)}", {})
                for measure in SHOWN:
                    mean = measure.estimate(line)
                    if mean is not None:
                        numbers[f"{measure.name} {line.staleness}"] = f"{mean.mean:.4f} ({mean.count})"
                if (printed := line.paper("accuracy")) is not None:
                    numbers["paper"] = str(printed)
    return found


def _titled(task: Task) -> str:
    told = task.stands_for and not task.title.replace("-", "").startswith(task.stands_for)
    return task.title + (f" (the paper: {task.stands_for})" if told else "")


def paragraph(text: str) -> str:
    return " ".join(text.split())


def folded(text: str) -> str:
    """A paragraph in lines of at most WIDTH characters, broken nowhere inside a formula, code or a link's text."""
    if "\n" in text or text.startswith(("#", "|")) or (text[0] == text[-1] == "$"):
        return text
    lines = [""]
    for word in WORD.findall(text):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append("")
        lines[-1] += " " * bool(lines[-1]) + word
    return "\n".join(lines)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "rules"
    folder.mkdir(exist_ok=True)
    for name, content in pages().items():
        (folder / name).write_text(content)
    print(f"{len(rules.RULES)} rules in {folder}")
