"""Writes the results under faults, as tables and a picture, between two marks of docs/faults.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kasync.statistics import Estimate, estimate, paired

BEGIN, END = "<!-- what follows is written by benchmarks/faults.py -->", "<!-- until here -->"
PLAIN, MOST = "kasync_sgd", 0.1  # plain averaging; a rule that loses no more accuracy than this holds
WORDS = {
    "leave": "leave for good",
    "return": "leave and return",
    "stall": "stall",
    "twice": "deliver twice",
    "nan": "NaN",
    "inf": "infinity",
    "zero": "zero",
    "huge": "a million times too long",
    "noise": "noise, a hundred times as long",
    "flip_labels": "labels flipped",
    "flip_sign": "sign flipped",
    "flip_sign x 5": "sign flipped, five times as long",
}

Key = tuple[str, str, float]  # rule, fault, share


class Runs:
    """The accuracies of every cell, by seed."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.found: dict[Key, dict[int, float]] = {}
        for row in rows:
            self.found.setdefault((row["rule"], row["fault"], row["share"]), {})[row["seed"]] = row["accuracy"]

    def accuracies(self, rule: str, fault: str, share: float) -> dict[int, float]:
        return self.found.get((rule, fault if share else "none", share), {})

    def mean(self, rule: str, fault: str, share: float) -> Estimate | None:
        return estimate(list(self.accuracies(rule, fault, share).values()))

    def loss(self, rule: str, fault: str, share: float) -> Estimate | None:
        """Accuracy without faults minus accuracy with them, seed by seed."""
        return paired(self.accuracies(rule, fault, 0.0), self.accuracies(rule, fault, share))

    def holds(self, rule: str, fault: str, share: float) -> bool:
        lost = self.loss(rule, fault, share)
        return lost is not None and lost.mean <= MOST


def write_page(
    rows: Sequence[Mapping[str, Any]], rules: Sequence[str], faults: Sequence[str], shares: Sequence[float], docs: Path
) -> None:
    """The tables into docs/faults.md, the picture into docs/faults.png."""
    page = docs / "faults.md"
    page.write_text(rewritten(page.read_text(), rows, rules, faults, shares))
    draw(Runs(rows), rules, faults, max(shares), docs / "faults.png")


def rewritten(
    text: str, rows: Sequence[Mapping[str, Any]], rules: Sequence[str], faults: Sequence[str], shares: Sequence[float]
) -> str:
    """The page with the tables that these runs make."""
    before, rest = text.split(BEGIN)
    made = "\n\n".join(tables(Runs(rows), rules, faults, shares))
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}"


def tables(runs: Runs, rules: Sequence[str], faults: Sequence[str], shares: Sequence[float]) -> Iterator[str]:
    """Who holds, then one table for each fault."""
    most = max(shares)
    yield f"### Who holds at {most:.0%}"
    head = ["fault", "plain averaging", "hold", "do not: accuracy they lose"]
    yield _table(head, [_verdict(runs, rules, fault, most) for fault in faults])
    for fault in faults:
        yield f"### {WORDS[fault].capitalize() if WORDS[fault] != 'NaN' else 'NaN'}"
        head = ["rule", *(f"{share:.0%} of the clients" if share else "none" for share in (0.0, *shares))]
        cells = [[rule, *(_cell(runs, rule, fault, share) for share in (0.0, *shares))] for rule in rules]
        yield _table(head, cells)


def _verdict(runs: Runs, rules: Sequence[str], fault: str, share: float) -> list[str]:
    holding = [rule for rule in rules if runs.holds(rule, fault, share)]
    losses = {rule: runs.loss(rule, fault, share) for rule in rules if rule not in holding}
    known = {rule: lost.mean for rule, lost in losses.items() if lost is not None}
    others = ", ".join(f"{rule} {_short(lost)}" for rule, lost in sorted(known.items(), key=lambda pair: pair[1]))
    plain = runs.mean(PLAIN, fault, share)
    told = ", ".join(holding) or "nobody"
    if 2 * len(holding) > len(rules):
        told = "all" if len(holding) == len(rules) else "all others"
    return [WORDS[fault], "–" if plain is None else _short(plain.mean), told, others or "–"]


def _cell(runs: Runs, rule: str, fault: str, share: float) -> str:
    found = runs.mean(rule, fault, share)
    if found is None:
        return "–"
    text = _short(found.mean) if found.half is None else f"{_short(found.mean)} ± {_short(found.half)}"
    return text if share == 0 or runs.holds(rule, fault, share) else f"**{text}**"


def _short(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def draw(runs: Runs, rules: Sequence[str], faults: Sequence[str], share: float, path: Path) -> None:
    """Accuracy of every rule under every fault, as a table of colours."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def number(rule: str, fault: str, of: float) -> float:
        found = runs.mean(rule, fault, of)
        return float("nan") if found is None else found.mean

    columns = ["none", *faults]
    values = np.array([[number(rule, fault, 0.0 if fault == "none" else share) for fault in columns] for rule in rules])
    figure = Figure(figsize=(11.5, 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = axes.imshow(values, cmap="cividis", vmin=0.1, vmax=0.9, aspect="auto")
    for row, column in np.ndindex(values.shape):
        dark = values[row, column] < 0.5
        axes.text(
            column, row, _short(values[row, column]), ha="center", va="center", fontsize=9,
            color="white" if dark else "black",
        )  # fmt: skip
    names = ["no fault", *(WORDS[fault] for fault in faults)]
    axes.set_xticks(range(len(columns)), names, rotation=45, ha="left", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(range(len(rules)), rules, fontsize=9)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.axvline(0.5, color="white", linewidth=5)
    axes.set_title(f"Accuracy when {share:.0%} of the clients are faulty", loc="left", pad=12)
    figure.colorbar(shown, ax=axes, pad=0.01, label="accuracy on the test set")
    figure.savefig(path, dpi=130)
