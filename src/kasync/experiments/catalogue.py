"""Which experiments are there, and what do their files say? A misspelt key is an error that names the nearest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kasync.errors import UserError, unknown
from kasync.experiments import toml
from kasync.experiments.axes import crossed
from kasync.experiments.experiment import TITLES, Experiment, Task, Variant
from kasync.experiments.problems import problem
from kasync.experiments.settings import RunSettings

PAPERS = Path(__file__).parent / "papers"
SCALES = ("quick", "full")
KEYS = ("title", "shows", "command", "rules", "rates", "seeds", "figures", "targets", "kind", "variants", "axes")


def names() -> list[str]:
    """The experiments of the paper."""
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


def load(name: str) -> Experiment:
    """One of the paper's by its name, or any from a file."""
    if name.endswith(".toml"):
        return read(Path(name))
    if name not in names():
        raise unknown("experiment", name, names())
    return read(PAPERS / f"{name}.toml")


def read(path: Path) -> Experiment:
    """An experiment from its file; a misspelt key is an error that names the nearest one."""
    table = toml.read(path)
    where = path.name
    _known(table, (*KEYS, *SCALES), where)
    missing = [key for key in ("title", "shows", "command", "rules") if key not in table]
    if missing:
        raise UserError(f"{path} lacks {' and '.join(missing)}: add it.")
    axes = table.get("axes", {})
    tasks = {
        scale: [_task(each, f"[[{scale}]] of {where}") for row in table[scale] for each in crossed(row, axes, where)]
        for scale in SCALES
        if scale in table
    }
    seeds = table.get("seeds", {})
    _known(seeds, SCALES, f"[seeds] of {where}")
    kind = table.get("kind", "training")
    if kind not in ("training", "timelines"):
        raise unknown(f"kind in {where}", kind, ("training", "timelines"))
    rules = table["rules"]
    variants = {label: _variant(label, row, where) for label, row in table.get("variants", {}).items()}
    if "rates" in table:
        variants = _at_rates(rules, variants, table["rates"], where)
        rules = list(variants)
    return Experiment(
        name=path.stem,
        title=table["title"],
        shows=table["shows"],
        command=table["command"],
        rules=tuple(rules),
        tasks=tasks,
        seeds={"quick": 2, "full": 3, **seeds},
        figures=tuple(table.get("figures", ())),
        targets=tuple(table.get("targets", ())),
        kind=kind,
        variants=variants,
    )


def _task(row: Mapping[str, Any], where: str) -> Task:
    _known(row, ("name", "title", "problem", "run", "group", "x", "note", "paper"), where)
    for key in ("name", "problem"):
        if key not in row:
            raise UserError(f"a task in {where} has no {key}: add it.")
    run = row.get("run", {})
    _known(run, [each.name for each in fields(RunSettings)], f"run of {row['name']!r} in {where}")
    base = problem(row["problem"])
    return Task(
        name=row["name"],
        title=row.get("title", row["name"]),
        problem=base,
        run=run,
        group=row.get("group"),
        x=row.get("x"),
        note=row.get("note", ""),
        paper=row.get("paper", {}),
    )


def _variant(label: str, row: Mapping[str, Any], where: str) -> Variant:
    if "rule" not in row:
        raise UserError(f"[variants.{label}] of {where} has no rule: add one.")
    own = {name: value for name, value in row.items() if name not in ("rule", "title", "run")}
    return Variant(row["rule"], row.get("title", label), own, row.get("run", {}))


def _at_rates(rules: Sequence[str], variants: Mapping[str, Variant], factors: Any, where: str) -> dict[str, Variant]:
    """Every rule once for each factor on its learning rate."""
    if not isinstance(factors, list) or not all(isinstance(each, int | float) and each > 0 for each in factors):
        raise UserError(f"rates = {factors!r} in {where}: give factors above 0, such as [0.1, 1, 10].")
    every = {}
    for label in rules:
        base = variants.get(label) or Variant(label, TITLES.get(label, label))
        for factor in factors:
            title = f"{base.title}, rate × {factor:g}"
            every[f"{label}@{factor:g}"] = replace(base, title=title, of=label, factor=float(factor))
    return every


def _known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise unknown(f"key in {where}", key, known)
