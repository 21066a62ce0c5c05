"""The store of a results folder: what was planned, and settings, summary and evaluations of every run, as tables.

    RESULTS/experiments.json     titles, tasks, rules and the paper's numbers of each experiment
    RESULTS/cells.parquet        which run stands where: experiment, task, rule, staleness, seed, axes and factors
    RESULTS/runs.parquet         one row per packed run: its summary, device, precision and versions
    RESULTS/settings.parquet     one row per packed run: every setting that decides its numbers
    RESULTS/metrics.parquet      one row per evaluation of a packed run
    RESULTS/runs/KEY/            a run that is not packed: its working place, docs/results-format.md

All tables share the column `key`. A run is read the same way whether it is packed or not.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kasync import files, lock, statistics
from kasync.errors import UserError, optional
from kasync.files import flat, nested

FORMAT, VERSION = "kasync results", 2
ABOUT, CELLS, TABLES = "experiments.json", "cells.parquet", ("runs.parquet", "settings.parquet", "metrics.parquet")
PARTS = ("run.toml", "metrics.csv", "steps.npz", "summary.json")  # of a run's folder
COUNTS = (  # distributions over all steps of a run, the only arrays of steps.npz that are packed
    *("staleness_count", "staleness_weight", "weight_count"),
    *("similarity_count", "selected_count", "predominant_count"),
)
MADE = {  # column of runs.parquet -> name in [made] of run.toml
    **{name: name for name in ("kasync", "torch", "numpy", "python", "device", "source", "hold")},
    "precision": "products",
}
WHOLE = ("step", "updates", "stage", "dropped")  # columns of metrics that are whole numbers
JSON = b"json"  # marks a column whose values are of several types, held as JSON text


@dataclass(frozen=True, eq=False)
class Run:
    """One run, as far as it has come: everything is empty before it begins, `summary` is empty until it is finished."""

    key: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)  # with which versions, on which device, in which precision
    rows: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False)  # metric -> [evaluations]
    steps: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)  # of steps.npz; of packed runs COUNTS
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def begun(self) -> bool:
        return bool(self.settings)

    @property
    def step(self) -> int:
        """Steps made so far, as of the last evaluation."""
        steps = (self.rows or self.steps).get("step")
        return int(steps[-1]) if steps is not None and len(steps) else 0

    def reached(self, target: float, metric: str = "accuracy") -> Mapping[str, float]:
        """Step, virtual time and client updates of the first evaluation that meets this accuracy or perplexity."""
        if not self.rows:
            return {}
        lower = metric == "perplexity"
        values, bound = (-self.rows["test_loss"], -math.log(target)) if lower else (self.rows["accuracy"], target)
        first = statistics.reached(values, bound)
        return {} if first is None else {name: float(self.rows[name][first]) for name in ("step", "time", "updates")}

    def aggregated(self, ratio: float) -> float | None:
        """N_ave of the summary for this mu."""
        rows = self.summary.get("aggregated") or ()
        return next((row["number"] for row in rows if row["mu"] == ratio), None)


@dataclass(frozen=True)
class Store:
    """A results folder; opening it reads nothing."""

    folder: Path

    def run(self, key: str) -> Run:
        """A run of this key; an empty one where nothing was begun."""
        packed = self._packed()
        return packed[key] if key in packed else run_in(self.folder / "runs" / key)

    def every(self) -> list[str]:
        """Every run there is, planned or not."""
        loose = {path.parent.name for path in (self.folder / "runs").glob("*/run.toml")}
        return sorted(self._packed().keys() | loose)

    def finished(self, key: str) -> bool:
        return key in self._packed() or (self.folder / "runs" / key / "summary.json").exists()

    def experiments(self) -> dict[str, dict[str, Any]]:
        """What is recorded of each experiment: title, tasks, rules, the paper's numbers."""
        path = self.folder / ABOUT
        if not path.exists():
            return {}
        table = files.read_json(path)
        if not isinstance(table, dict) or (table.get("format"), table.get("version")) != (FORMAT, VERSION):
            raise UserError(f"{path} is no list of experiments of this version: delete it and run the command again.")
        found: dict[str, dict[str, Any]] = table["experiments"]
        return found

    def cells(self) -> list[dict[str, Any]]:
        """Which run stands where, in the order they were planned."""
        path = self.folder / CELLS
        return _rows(path) if path.exists() else []

    def record(
        self, name: str, about: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], mixed: bool = False
    ) -> dict[str, str]:
        """Add an experiment, or add to it, and say which label each rule got; several processes may do so at once.

        A rule with a `fingerprint` never takes the place of another one: it gets a label that tells the two apart.
        Several kinds of device or precisions in one experiment are refused, unless what there is of old is `mixed`.
        """
        files.make_folder(self.folder)
        with lock.held(self.folder, wait=10.0):
            every = self.experiments()
            before, there = every.get(name, {}), self.cells()
            entered = {row["label"]: dict(row) for row in before.get("rules", [])}
            stored = {_place(cell): cell["key"] for cell in there}
            ours = [{"experiment": name, **cell} for cell in cells]
            labels = {row["label"]: _entered(row, entered, ours, stored) for row in about["rules"]}
            ours = [{**cell, "rule": labels.get(cell["rule"], cell["rule"])} for cell in ours]
            tasks = {row["name"]: row for row in [*before.get("tasks", []), *about["tasks"]]}
            every[name] = {**about, "tasks": list(tasks.values()), "rules": list(entered.values())}
            places = {_place(cell) for cell in ours}
            kept = [cell for cell in there if _place(cell) not in places]
            mine = [cell for cell in kept if cell["experiment"] == name and cell.get("device")]
            kinds = {(cell["device"], cell["precision"]) for cell in [*mine, *ours] if "device" in cell}
            one_kind(set() if mixed else kinds, name)
            write_table(self.folder / CELLS, [*kept, *ours])
            files.write_json(self.folder / ABOUT, {"format": FORMAT, "version": VERSION, "experiments": every})
        return labels

    def pack(self) -> int:
        """Move every finished run from its folder into the tables; how many were moved.

        The tables are replaced before a folder goes, so that a run is never in neither. Arrays by step stay behind.
        """
        with lock.held(self.folder, wait=10.0):
            folders = sorted(path.parent for path in (self.folder / "runs").glob("*/summary.json"))
            if folders:
                every = {**self._packed(), **{folder.name: run_in(folder) for folder in folders}}
                write_tables(self.folder, [every[key] for key in sorted(every)])
            for folder in folders:
                shutil.rmtree(folder)
        return len(folders)

    def _packed(self) -> Mapping[str, Run]:
        changed = tuple(_changed(self.folder / name) for name in TABLES)
        return {} if None in changed else _tables(self.folder, changed)


def write_tables(folder: Path, runs: Sequence[Run]) -> None:
    """The three tables of these runs."""
    write_table(folder / "metrics.parquet", _metrics(runs))
    write_table(folder / "settings.parquet", [{"key": run.key, **dict(flat(run.settings))} for run in runs])
    write_table(folder / "runs.parquet", [_row(run) for run in runs])


def _row(run: Run) -> dict[str, Any]:
    """A run's row in runs.parquet."""
    columns = {name: column for column, name in MADE.items()}
    made = {columns.get(name, name): value for name, value in run.made.items()}
    counts = {name: run.steps[name].tolist() for name in COUNTS if name in run.steps}
    summary = {name: value for name, value in run.summary.items() if name not in ("format", "version")}
    return {"key": run.key, **dict(flat(summary)), **made, **counts}


# ---- tables


def _arrow() -> tuple[Any, Any]:
    words = "the store needs pyarrow: pip install 'kasync[cli]'."
    return optional("pyarrow", words), optional("pyarrow.parquet", words)


def write_table(path: Path, table: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> None:
    """One parquet file of rows or of columns, whole or not at all; a value that a row lacks is null."""
    arrow, parquet = _arrow()
    if not isinstance(table, Mapping):
        names = dict.fromkeys(name for row in table for name in row)
        table = {name: [row.get(name) for row in table] for name in names}
    columns, fields, few = [], [], []  # few: values that come so often again that a dictionary of them saves room
    for name, values in table.items():
        mixed = _mixed(values)
        texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values] if mixed else []
        column = arrow.array(texts, arrow.string()) if mixed else arrow.array(values)
        columns.append(column)
        fields.append(arrow.field(name, column.type, metadata={JSON: b"1"} if mixed else None))
        if not arrow.types.is_nested(column.type) and 2 * len(column.unique()) < len(column):
            few.append(name)
    content, whole = io.BytesIO(), arrow.Table.from_arrays(columns, schema=arrow.schema(fields))
    parquet.write_table(whole, content, compression="zstd", compression_level=19, use_dictionary=few)
    files.write(path, content.getvalue())


def _mixed(values: Any) -> bool:
    """Whether a column holds values of several types, or tables of several shapes."""
    known = [value for value in values if value is not None] if isinstance(values, list) else []
    tables = {tuple(row) for value in known if isinstance(value, list) for row in value if isinstance(row, dict)}
    return len({type(value) for value in known}) > 1 or len(tables) > 1


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, values that are null included."""
    arrow, parquet = _arrow()
    try:
        table = parquet.read_table(path)
    except (OSError, arrow.ArrowException) as problem:
        raise _damaged(path, problem) from None
    texts = [each.name for each in table.schema if (each.metadata or {}).get(JSON)]
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row.update({name: json.loads(row[name]) for name in texts if row[name] is not None})
    return rows


def _metrics(runs: Sequence[Run]) -> dict[str, Any]:
    """Columns of metrics.parquet: the evaluations of one run after the other."""
    arrow, _ = _arrow()
    counts = [len(next(iter(run.rows.values()), ())) for run in runs]
    keys = [run.key for run, count in zip(runs, counts, strict=True) for _ in range(count)]
    columns: dict[str, Any] = {"key": arrow.array(keys, arrow.string()).dictionary_encode()}
    for name in dict.fromkeys(name for run in runs for name in run.rows):
        values = [run.rows.get(name, np.full(count, np.nan)) for run, count in zip(runs, counts, strict=True)]
        joined = np.concatenate(values)
        whole = name in WHOLE and np.isfinite(joined).all()
        columns[name] = joined.astype(np.int64) if whole else joined
    return columns


@lru_cache(maxsize=16)
def _tables(folder: Path, changed: tuple[int | None, ...]) -> Mapping[str, Run]:
    """Every packed run by its key."""
    arrow, parquet = _arrow()
    try:
        table = parquet.read_table(folder / "metrics.parquet")
        keys, starts, counts = np.unique(np.asarray(table["key"], str), return_index=True, return_counts=True)
        columns = {name: np.asarray(table[name], np.float64) for name in table.column_names if name != "key"}
    except (OSError, KeyError, arrow.ArrowException) as problem:
        raise _damaged(folder / "metrics.parquet", problem) from None
    places = dict(zip(keys.tolist(), map(slice, starts, starts + counts), strict=True))  # a run's rows are together
    settings = {row.pop("key"): row for row in _rows(folder / "settings.parquet")}
    runs = {}
    for row in _rows(folder / "runs.parquet"):
        key = row.pop("key")
        known = {name: value for name, value in row.items() if value is not None}
        made = {name: known.pop(column) for column, name in MADE.items() if column in known}
        steps = {name: np.asarray(known.pop(name)) for name in COUNTS if name in known}
        rows = {name: values[places[key]] for name, values in columns.items()} if key in places else {}
        told = nested({name: value for name, value in settings[key].items() if value is not None})
        runs[key] = Run(key, told, made, rows, steps, nested(known))
    return runs


# ---- the folder of one run


def run_in(folder: Path) -> Run:
    """The run of this folder; what has not changed since it was last read is not read again."""
    return _run_in(folder, tuple(_changed(folder / name) for name in PARTS))


@lru_cache(maxsize=4096)
def _run_in(folder: Path, changed: tuple[int | None, ...]) -> Run:
    readers = (files.read_toml, _evaluations, _arrays, files.read_json)
    parts = zip(PARTS, readers, changed, strict=True)
    settings, rows, steps, summary = ({} if when is None else read(folder / name) for name, read, when in parts)
    made = settings.pop("made", {})
    return Run(folder.name, settings, made, rows, steps, summary)


def _changed(path: Path) -> int | None:
    """When the file was last written, None when it is not there."""
    try:
        return path.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


def _evaluations(path: Path) -> dict[str, NDArray[np.float64]]:
    try:
        table = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        columns = {name: np.array([float(row[name] or "nan") for row in table]) for name in (table[0] if table else ())}
    except (OSError, ValueError, TypeError) as problem:
        raise _damaged(path, problem) from None
    if columns and not {"step", "time", "updates", "accuracy"} <= columns.keys():
        raise _damaged(path, "columns are missing")
    return columns


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, ValueError, zipfile.BadZipFile) as problem:
        raise _damaged(path, problem) from None


def _damaged(path: Path, problem: object) -> UserError:
    return UserError(f"{path} cannot be read ({problem}): delete it and run the command again.")


def one_kind(kinds: set[tuple[str, str]], where: str) -> None:
    """Runs that are compared are made on one kind of device, in one precision."""
    if len(kinds) > 1:
        named = ", ".join(sorted(f"{precision} on {device}" for device, precision in kinds))
        raise UserError(f"{where} would mix {named}: make all of them alike, or give another folder with --out.")


def _place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[key] for key in ("experiment", "task", "rule", "staleness", "seed"))


def _entered(
    row: Mapping[str, Any],
    entered: dict[str, dict[str, Any]],
    cells: Sequence[Mapping[str, Any]],
    stored: Mapping[tuple[Any, ...], str],
) -> str:
    """Put a rule among those entered by label; the label it got, its own unless that is another rule's.

    Rules of one name are told apart by the settings that differ, or else by digits of what their runs are made of.
    """
    given = str(row["label"])
    mine = [cell for cell in cells if cell["rule"] == given]
    alike = [each for each in entered.values() if given in (each["label"], each.get("given"))]
    if not alike or "fingerprint" not in row:
        entered[given] = dict(row)
        return given
    for each in alike:
        places = {_place({**cell, "rule": each["label"]}): cell["key"] for cell in mine}
        same = each.get("fingerprint") in (row["fingerprint"], None)
        if same and all(stored.get(place, key) == key for place, key in places.items()):
            each["fingerprint"] = row["fingerprint"]
            return str(each["label"])
    first = alike[0]
    ours, theirs = dict(row.get("settings", {})), dict(first.get("settings", {}))
    differing = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
    words = _words(ours, differing)
    if not words or f"{given} ({words})" in entered:
        digest = hashlib.sha256("".join([row["fingerprint"], *(cell["key"] for cell in mine)]).encode()).hexdigest()
        words = ", ".join(filter(None, (words, digest[:6])))
    elif first.get("name", given) == row.get("name", given) and (before := _words(theirs, differing)):
        first["name"] = f"{first.get('name') or given} ({before})"
    label = f"{given} ({words})"
    entered[label] = {**row, "label": label, "name": f"{row.get('name') or given} ({words})", "given": given}
    return label


def _words(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """Those of these settings that there are, as people write them."""
    pairs = ((name, settings[name]) for name in names if name in settings)
    return ", ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in pairs)
