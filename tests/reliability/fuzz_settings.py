"""Damaged settings and traces, and their readers."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from mutations import ODD, spoilt_bytes, spoilt_fields

from kasync import files, timelines
from kasync.experiments.build import ready
from kasync.experiments.settings import RunSettings
from kasync.timelines import durations

TINY = 60  # clients and steps of settings that are also run


def said(value: Any) -> Any:
    """What TOML can say of it: it has no word for nothing."""
    if isinstance(value, dict):
        return {name: said(each) for name, each in value.items() if each is not None}
    return [said(each) for each in value if each is not None] if isinstance(value, list) else value


class Settings:
    """A TOML file of a run; what is accepted and small is also run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.toml"
        trace = folder / "trace.csv"
        trace.write_text("client,seconds\n0,1.5\n1,2\n")
        pareto = {"kind": "pareto", "least": 1.0, "shape": 2.0}
        local = {"kind": "local_sgd", "steps": 2, "lr": 0.1, "batch_size": 2}
        leaving = {"kind": "clock", "dropouts": {"chance": 0.1}}
        dirichlet = {"kind": "dirichlet", "alpha": 1.0}
        wrong = [{"kind": "stall", "share": 0.2, "delay": 2}, {"kind": "nan", "clients": [1, 2], "chance": [0.5, 1.0]}]
        base = {"dataset": "synthetic", "clients": 8, "k": 2, "steps": 4, "seed": 3, "partition": {"kind": "iid"}}
        clock = {"kind": "clock", "durations": pareto, "speeds": {"kind": "constant", "each": 2.0}, "lost": 0.1}
        traced = {"kind": "clock", "mode": "async", "durations": {"kind": "trace", "source": str(trace)}}
        self.tables = [
            RunSettings.of({**base, **more}).resolved().table()
            for more in (
                {"rule": {"kind": "wkafl", "lr": 0.1}, "faults": wrong},
                {"rule": {"kind": "fedasync", "mixing": 0.5}, "arrivals": clock},
                {"rule": {"kind": "ca2fl", "lr": 0.1}, "work": local},
                {"rule": {"kind": "zeno", "lr": 0.1}, "optimizer": "adam", "schedule": "cosine", "validation": 0.2},
                {"rule": {"kind": "gsgm", "lr": 0.1}, "arrivals": traced, "partition": dirichlet},
                {"rule": {"kind": "krum", "lr": 0.1, "byzantine": 0}, "arrivals": leaving},
            )
        ]

    def make(self, draw: Random) -> Path:
        table = draw.choice(self.tables)
        if draw.random() < 0.7:
            table = spoilt_fields(draw, table)
        text = files.toml_text(said(table)).encode()
        self.path.write_bytes(text if draw.random() < 0.6 else spoilt_bytes(draw, text, len(text)))
        return self.path

    def read(self, made: Path) -> None:
        settings = RunSettings.read(made).resolved()
        sizes = (settings.clients, settings.steps, settings.work.settings.get("steps", 1))
        if max(*sizes, settings.work.settings.get("batch_size", 1)) > TINY or settings.data or settings.root:
            return
        parts = ready(settings)
        for _ in parts.simulation():
            pass


class Traces:
    """A csv file with measured seconds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trace.csv"
        self.rows = [["client", "seconds"], *([str(row % 4), f"{1 + row / 7:.3f}"] for row in range(20))]

    def make(self, draw: Random) -> Path:
        rows = [list(row) for row in self.rows]
        for _ in range(draw.choice((0, 1, 1, 2, 5))):
            row = draw.choice(rows)
            match draw.randrange(5):
                case 0:
                    row[draw.randrange(len(row)) if row else 0 :] = [str(draw.choice(ODD))[:9000]]
                case 1:
                    row.append(str(draw.choice(ODD))[:50])
                case 2:
                    row.clear()
                case 3:
                    rows.insert(draw.randrange(len(rows)), list(draw.choice(rows)))
                case 4:
                    rows.remove(row)
            if not rows:
                break
        comma = draw.choice((",",) * 9 + (";",))
        text = "\n".join(comma.join(row) for row in rows).encode(errors="replace")
        self.path.write_bytes(text if draw.random() < 0.5 else spoilt_bytes(draw, text, len(text)))
        return self.path

    def read(self, made: Path) -> None:
        found = durations.trace(made)
        timelines.clock(6, 2, 5, found)
