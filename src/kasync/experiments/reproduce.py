"""How is a table or figure of the paper made again? Its cells are planned, recorded and made; `report` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kasync.errors import UserError
from kasync.experiments import catalogue, files, grid
from kasync.experiments.display import Display
from kasync.experiments.experiment import Cell, Experiment
from kasync.experiments.tuned import Tuned

BOTH = ("true", "published-code")


@dataclass(frozen=True)
class Plan:
    """What `reproduce` was asked for, checked: experiments and all their cells."""

    scale: str
    experiments: Sequence[tuple[Experiment, Sequence[Cell]]]
    tuned: Tuned | None = None
    rules: Sequence[str] | None = None

    @property
    def cells(self) -> list[Cell]:
        return [cell for _, cells in self.experiments for cell in cells]

    @property
    def runs(self) -> int:
        """Distinct runs; experiments share some."""
        return len({cell.settings.name for cell in self.cells})


def plan(
    names: Sequence[str] = (),
    *,
    scale: str = "quick",
    seeds: int | None = None,
    staleness: str = "true",
    tuned: str | None = None,
    rules: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Plan:
    """Everything that will be run; whatever cannot work is refused here. `tasks` are names or patterns (`mnist*`)."""
    if seeds is not None and seeds < 1:
        raise UserError(f"seeds = {seeds}: give at least 1.")
    chosen = Tuned.read(Path(tuned)) if tuned else None
    semantics = BOTH if staleness == "both" else tuple(staleness.split(","))
    planned = []
    for name in names or catalogue.names():
        one = catalogue.load(name).only(scale, tasks)
        one_tuned = chosen if one.kind == "training" else None
        wanted = range(seeds) if seeds is not None else None
        of_rules = rules if one.kind == "training" else None
        ways = semantics if one.kind == "training" else ("true",)
        planned.append((one, one.cells(scale, wanted, ways, one_tuned, overrides, of_rules)))
    return Plan(scale, planned, chosen, rules)


def carry_out(
    made: Plan,
    out: Path,
    *,
    engine: str = "local",
    jobs: int = 1,
    address: str | None = None,
    display: Display | None = None,
) -> grid.Outcome:
    """Record the experiments and make their runs; what is finished is skipped, what is not continues."""
    files.make_folder(out)
    suffix = "-tuned" if made.tuned else ""
    for one, cells in made.experiments:
        rules = made.rules if one.kind == "training" else None
        source = made.tuned.source if made.tuned else None
        grid.record(out, one.entry(made.scale, rules), cells, source, suffix)
    return grid.make(made.cells, out, engine=engine, jobs=jobs, address=address, display=display)


def rows(made: Plan, out: Path) -> list[dict[str, Any]]:
    """One row per experiment, task, rule and semantics: seeds finished, and the means of their metrics."""
    table: dict[tuple[str, ...], dict[str, Any]] = {}
    for one, cells in made.experiments:
        for cell in cells:
            key = (one.name, cell.task, cell.rule, cell.staleness)
            row = table.setdefault(key, {**dict(zip(("experiment", "task", "rule", "staleness"), key, strict=True))})
            row.setdefault("summaries", [])
            path = out / "runs" / cell.settings.name / "summary.json"
            if path.exists():
                row["summaries"].append(files.read_json(path))
    return [_averaged(row) for row in table.values()]


def _averaged(row: dict[str, Any]) -> dict[str, Any]:
    summaries = row.pop("summaries")
    row["seeds"] = len(summaries)
    for name in ("final_accuracy", "stability", "average_staleness", "bound", "held", "delivered"):
        values = [summary[name] for summary in summaries if summary.get(name) is not None]
        if values:
            row[name] = sum(values) / len(values)
    return row
