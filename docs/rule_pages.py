"""What does each rule's page say? Its docstring, signature and parts, our words about its use, and its results.

    python docs/rule_pages.py [FOLDER]

docs/rule_results.csv is the table.csv of a report (`kasync report RESULTS`); a rule that is not in it is "not yet run".
"""

from __future__ import annotations

import csv
import inspect
import sys
import tomllib
from pathlib import Path
from typing import Any

import torch

from kasync import Rule, rules

HERE = Path(__file__).parent
NUMBERS = {"final_accuracy": "final accuracy", "stability": "stability", "average_staleness": "average staleness"}
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
    results = read_results(HERE / "rule_results.csv")
    made = {f"{name}.md": page(name, words, results.get(name, {})) for name in rules.RULES}
    return made | {"index.md": index(words, results)}


def page(name: str, words: dict[str, Any], results: dict[tuple[str, str, str], dict[str, str]]) -> str:
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


def index(words: dict[str, Any], results: dict[str, Any]) -> str:
    """The catalogue."""
    rows = [
        f"| [{words[name]['title']}]({name}.md) | `{formula(name).replace('|', chr(92) + '|')}` "
        f"| {'yes' if name in results else 'not yet run'} |"
        for name in rules.RULES
    ]
    table = "\n".join(["| rule | formula | in our results |", "|---|---|---|", *rows])
    return "\n\n".join(["# Rules", paragraph(ABOUT), paragraph(SYMBOLS), table]) + "\n"


def formula(name: str) -> str:
    return (inspect.getdoc(rules.RULES[name]) or "").partition("\n")[0].rstrip(".")


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
        rows.append("1. AMSGrad on the direction")
    return "\n".join(rows) if rows else "No parts at all: the mean of the deliveries is the direction."


def summary(part: Any) -> str:
    text, _, source = (inspect.getdoc(part) or "").partition("\n")[0].partition("   (")
    return f"`{text}`" + (f" ({source}" if source else "")


def told(results: dict[tuple[str, str, str], dict[str, str]]) -> str:
    if not results:
        return "Not yet run."
    rows = [
        f"| {experiment} | {task} | {staleness} | " + " | ".join(numbers.get(name, "") for name in NUMBERS) + " |"
        for (experiment, task, staleness), numbers in results.items()
    ]
    head = "| experiment | task | staleness | " + " | ".join(NUMBERS.values()) + " |"
    return "\n".join([head, "|---" * (3 + len(NUMBERS)) + "|", *rows, "", "In brackets the number of seeds."])


def read_results(path: Path) -> dict[str, dict[tuple[str, str, str], dict[str, str]]]:
    """rule -> (experiment, task, staleness) -> number -> text; nothing without the file."""
    found: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {}
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    for row in rows:
        if row["number"] in NUMBERS:
            cell = found.setdefault(row["rule"], {}).setdefault((row["experiment"], row["task"], row["staleness"]), {})
            spread = f" ± {(float(row['high']) - float(row['low'])) / 2:.4f}" if row["low"] else ""
            cell[row["number"]] = f"{float(row['mean']):.4g}{spread} ({row['seeds']})"
    return found


def paragraph(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "rules"
    folder.mkdir(exist_ok=True)
    for name, content in pages().items():
        (folder / name).write_text(content)
    print(f"{len(rules.RULES)} rules in {folder}")
