"""What does each rule's page say? Its docstring, signature and parts, our words about its use, and its results.

    python docs/rule_pages.py [FOLDER]

Results are those of the reports that lie in results/; a rule that is in none of them is "not yet run".
"""

from __future__ import annotations

import csv
import html
import inspect
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import torch

from kasync import Rule, rules

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
SHOWN = ("final_accuracy", "stability")
Results = dict[str, dict[str, dict[str, str]]]  # rule -> task -> column -> text
SYMBOLS = """
`g_i` is a delivered gradient (or start minus trained model), `s_i` its staleness, `m_i` its batch size, `K` the number
of deliveries, `w` the model.
"""
ABOUT = """
What the server can do with k deliveries. Every rule runs in the simulator and on Flower and Ray, takes any optimiser of
`torch.optim` and a schedule, and can be taken apart: `rule.without(Part)`. `kasync rules` prints the same list, and
[a rule of your own](../write-a-rule.md) takes a dozen lines. "Not yet run" says that there is no result of ours.
"""
OWN = """from kasync import data, models, rules, server_gradient

digits = data.load("digits")
clients = data.federate(digits, data.partition.labels(1)(digits, clients=100))
own = server_gradient(models.build("logistic", clients), clients, clients.server_sample(100))
"""


def pages() -> dict[str, str]:
    """Every page of docs/rules, by its file name."""
    words = tomllib.loads((HERE / "rule_words.toml").read_text())
    results = read_results()
    made = {f"{name}.md": page(name, words, results.get(name, {})) for name in rules.RULES}
    return made | {"index.md": index(words)}


def page(name: str, words: dict[str, Any], results: dict[str, dict[str, str]]) -> str:
    """One rule."""
    make, own = rules.RULES[name], words[name]
    paper = (inspect.getdoc(make) or "").partition("\n")[2]
    sections = [
        f"# {own['title']}",
        f"`rules.{name}`",
        f"```text\n{formula(name)}\n```",
        paragraph(SYMBOLS),
        paragraph(paper),
        "## When to use it",
        paragraph(own["when"]),
        *([f"**Beware.** {paragraph(own['beware'])}"] if "beware" in own else []),
        *([f"**Memory.** {own['cost']}"] if "cost" in own else []),
        "## Settings",
        settings(make, words["meaning"] | own.get("meaning", {})),
        f"```python\n{example(own)}\n```",
        "## What it is made of",
        composition(built(own)),
        "## In our results",
        told(results),
    ]
    return "\n\n".join(sections) + "\n"


def index(words: dict[str, Any]) -> str:
    """The catalogue."""
    rows = [f"| [{words[name]['title']}]({name}.md) | {in_a_cell(formula(name))} |" for name in rules.RULES]
    table = "\n".join(["| rule | formula |", "|---|---|", *rows])
    return "\n\n".join(["# Rules", paragraph(ABOUT), paragraph(SYMBOLS), table]) + "\n"


def formula(name: str) -> str:
    return (inspect.getdoc(rules.RULES[name]) or "").partition("\n")[0].rstrip(".")


def in_a_cell(text: str) -> str:
    """Code for a cell of a table, in which a bar would end it."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"


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
    return f"`{text}`" + (f" ({source}" if source else "")


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
    """Every finished number of the reports in results/."""
    found: Results = {}
    for table in sorted(RESULTS.glob("*/report/table.csv")):
        titles = task_titles(table.parents[1] / "experiments")
        for row in csv.DictReader(table.read_text().splitlines()):
            if row["number"] in SHOWN:
                task = titles.get((row["experiment"], row["task"]), row["task"])
                numbers = found.setdefault(row["rule"], {}).setdefault(f"{table.parents[1].name}: {task}", {})
                numbers[f"{row['number']} {row['staleness']}"] = f"{float(row['mean']):.4f} ({row['seeds']})"
                if row["number"] == "final_accuracy" and row["paper"]:
                    numbers["paper"] = row["paper"]
    return found


def task_titles(folder: Path) -> dict[tuple[str, str], str]:
    """(experiment, task) -> its title for people."""
    told = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return {(name, task["name"]): _titled(task) for name, one in told.items() for task in one["tasks"]}


def _titled(task: dict[str, Any]) -> str:
    stands_for = task.get("stands_for")
    told = stands_for and not task["title"].replace("-", "").startswith(stands_for)
    return task["title"] + (f" (the paper: {stands_for})" if told else "")


def paragraph(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "rules"
    folder.mkdir(exist_ok=True)
    for name, content in pages().items():
        (folder / name).write_text(content)
    print(f"{len(rules.RULES)} rules in {folder}")
