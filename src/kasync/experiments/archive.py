"""Results to keep: run folders packed into tables, old layouts converted, runs exported, and made again to compare."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from kasync import files
from kasync.errors import UserError
from kasync.experiments import metrics
from kasync.experiments.experiment import Experiment, cell_record, load, names
from kasync.experiments.runner import finished
from kasync.experiments.runner import run as make
from kasync.experiments.settings import RunSettings
from kasync.experiments.store import ABOUT, TABLES, Run, Store, run_in, write_table
from kasync.files import flat

OLD = "experiments"  # the folder of lists that version 0.1 wrote


def stores(folder: Path) -> list[Path]:
    """The results folders at or under this one."""
    found = sorted({path.parent for name in (ABOUT, TABLES[0]) for path in folder.rglob(name)})
    if not found:
        raise UserError(f"{folder} holds no store: give a results folder, or pack one with kasync results pack.")
    return found


def pack(folder: Path) -> int:
    """Every finished run into the tables, lists of version 0.1 too; how many runs were packed."""
    if not any((folder / name).exists() for name in (ABOUT, OLD, "runs", TABLES[0])):
        raise UserError(f"{folder} is not a results folder: it holds neither {ABOUT} nor runs.")
    store = Store(folder)
    old = [path for path in sorted((folder / OLD).glob("*.json")) if path.name != "lock.json"]
    for path in old:
        about, cells = _converted(files.read_json(path), store)
        store.record(path.stem, about, cells, mixed=True)
        path.unlink()
    if old and not any((folder / OLD).iterdir()):
        (folder / OLD).rmdir()
    return store.pack()


def _converted(table: Mapping[str, Any], store: Store) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An experiment and its cells from a list of version 0.1, which had axes and factors in titles and labels only."""
    known = load(table["name"], table["scale"]) if table["name"] in names() else None
    axes = {each.name: {"axes": each.axes, "names": each.names} for each in (known.tasks if known else ())}
    rates = {each.label: vars(each) for each in (known.rules if known else ())}
    tasks = [
        {name: value for name, value in row.items() if value is not None}
        | {"short": row["title"].removeprefix(f"{row.get('group')}, "), **axes.get(row["name"], {})}
        for row in table["tasks"]
    ]
    rules = [{**row, "name": row["title"], **rates.get(row["label"], {})} for row in table["rules"]]
    about = Experiment.of({**table, "tasks": tasks, "rules": rules, "x_title": known.x_title if known else ""})
    by_name, by_label = {each.name: each for each in about.tasks}, {each.label: each for each in about.rules}
    record = about.record()
    for new, row in zip(record["tasks"], table["tasks"], strict=True):
        new["problem"] = row.get("problem", "")
    cells = []
    for row in table["cells"]:
        run = store.run(Path(row["run"]).name)
        made = _kind(run) if run.begun else (None, None)
        cells.append(
            cell_record(by_name[row["task"]], by_label[row["rule"]], row["staleness"], row["seed"], run.key, *made)
        )
    return record, cells


def _kind(run: Run) -> tuple[str, str]:
    """The kind of device that a run of version 0.1 was made on, and its precision."""
    return str(run.settings["device"]).partition(":")[0], run.made.get("products", "float32")


# ---- what there is


def listed(folder: Path) -> list[dict[str, Any]]:
    """A row for each experiment of each store: runs planned and finished, rules, tasks, seeds, device, precision."""
    rows: list[dict[str, Any]] = []
    for path in stores(folder):
        store = Store(path)
        cells = store.cells()
        for name, about in sorted(store.experiments().items()):
            mine = [cell for cell in cells if cell["experiment"] == name]
            runs = {cell["key"]: store.run(cell["key"]) for cell in mine}
            done = [run for run in runs.values() if run.finished]
            row = {"store": path.as_posix(), "experiment": name, "finished": len(done), "planned": len(runs)}
            seeds, devices = {cell["seed"] for cell in mine}, _all(run.made.get("device") for run in done)
            row |= {"tasks": len(about["tasks"]), "rules": len(about["rules"]), "seeds": len(seeds)}
            rows.append(row | {"device": devices, "precision": _all(cell.get("precision") for cell in mine)})
        if loose := len(set(store.every()) - {cell["key"] for cell in cells}):
            rows.append({"store": path.as_posix(), "experiment": "(runs of no experiment)", "finished": loose})
    return rows


def _all(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value is not None}))


def chosen(store: Store, patterns: Sequence[str]) -> list[Run]:
    """The runs whose key is one of these or fits one of these patterns; all without."""
    keys = [key for key in store.every() if not patterns or any(fnmatchcase(key, each) for each in patterns)]
    if not keys:
        raise UserError(f"no run of {store.folder} fits {', '.join(patterns)}: see kasync results show {store.folder}.")
    return [store.run(key) for key in keys]


def frames(folder: Path, patterns: Sequence[str] = ()) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows (one per place of a run in an experiment, with axes, settings, device and summary) and evaluations."""
    store = Store(folder)
    places: dict[str, list[dict[str, Any]]] = {}
    for cell in store.cells():
        places.setdefault(cell["key"], []).append({name: each for name, each in cell.items() if each is not None})
    rows, evaluations = [], []
    for run in chosen(store, patterns):
        about = {name: value for name, value in flat(run.summary) if not isinstance(value, list)}
        about |= {f"made.{name}": value for name, value in run.made.items()}
        about["precision"] = run.settings.get("precision", run.made.get("products", "float32"))
        about |= {f"set.{name}": value for name, value in flat(run.settings)}
        rows += [{**place, **about} for place in places.get(run.key, [{"key": run.key}])]
        numbers = zip(*run.rows.values(), strict=True)
        evaluations += [{"key": run.key, **dict(zip(run.rows, each, strict=True))} for each in numbers]
    return rows, evaluations


# ---- is it so


def derived(run: Run) -> Iterator[str]:
    """What of a run's summary does not follow from its evaluations."""
    accuracies = [float(value) for value in run.rows.get("accuracy", ()) if np.isfinite(value)]
    for name, value in metrics.of_accuracies(accuracies).items() if accuracies else ():
        stored = run.summary.get(name)
        if not np.isclose(np.nan if stored is None else stored, value, 1e-12, equal_nan=True):
            yield f"{run.key}: {name} is {stored}, its evaluations give {value}"


def rerun(
    folder: Path, sample: int, scratch: Path, patterns: Sequence[str] = (), device: str = "cpu", seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Make so many of the store's runs again in `scratch`, drawn at random; a row for each beside what is stored.

    `same` is whether all evaluations are, to the last bit; `stored` and `again` are final accuracies. A run that was
    made again before is made once more, beside it; one that was interrupted goes on.
    """
    runs = [run for run in chosen(Store(folder), patterns) if run.finished]
    if sample < 1:
        raise UserError(f"sample = {sample}: give at least 1 run.")
    for run in random.Random(seed).sample(runs, min(sample, len(runs))):
        settings = replace(RunSettings.of(run.settings, run.key), device=device, root="")
        places = (scratch / (run.key if number == 1 else f"{run.key}-{number}") for number in count(1))
        place = next(each for each in places if not finished(each))
        make(settings, place)
        found = run_in(place)
        same = all(np.array_equal(run.rows[name], found.rows.get(name, []), equal_nan=True) for name in run.rows)
        row: dict[str, Any] = {"key": run.key, "same": same}
        row |= {name: each.summary.get("final_accuracy") for name, each in (("stored", run), ("again", found))}
        yield row | {name: str(each.made.get("device")) for name, each in (("device", run), ("here", found))}


# ---- for other programs


def export(folder: Path, out: Path, patterns: Sequence[str] = ()) -> dict[Path, int]:
    """Runs, and in a folder evaluations too, as CSV or parquet; the files with their numbers of rows."""
    rows, evaluations = frames(folder, patterns)
    if out.suffix not in ("", ".csv", ".parquet"):
        raise UserError(f"out = {out}: give a file that ends in .csv or .parquet, or a folder.")
    wanted = {out: rows} if out.suffix else {out / "runs.csv": rows, out / "metrics.csv": evaluations}
    files.make_folder(next(iter(wanted)).parent)
    for path, table in wanted.items():
        if path.suffix == ".parquet":
            write_table(path, table)
        else:
            files.write(path, files.csv_text(table))
    return {path: len(table) for path, table in wanted.items()}
