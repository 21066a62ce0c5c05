"""Observers of a live run: a table of its clients, records of its updates, and the sinks that receive them.

A record is a plain dictionary. It goes to `on_update`, to every sink (TensorBoard, MLflow, WandB, Prometheus, or
anything that can be called with it) and, as a line of json, into the folder that `kasync live` and `kasync report`
read.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

from kasync import tracking
from kasync.errors import UserError
from kasync.live.loop import Federation, Update

log = logging.getLogger("kasync.live")
Record = dict[str, Any]
OnUpdate = Callable[[Record], object]
UPDATES, CLIENTS, ABOUT = "updates.jsonl", "clients.json", "live.json"  # files of a record folder
COLUMNS = {  # of the table of clients -> how wide
    "client": 6,
    "node": 20,
    "state": 9,
    "seen": 8,
    "seconds": 8,
    "staleness": 9,
    "used": 6,
    "influence": 9,
    "refused": 7,
    "failed": 6,
}


class Sink(Protocol):
    """Anything that takes records; `close` is called at the end where it is there."""

    def __call__(self, record: Record) -> object: ...


@dataclass
class Watch:
    """The onlookers of one run."""

    on_update: OnUpdate | None = None
    sinks: Sequence[Sink] = ()
    folder: Path | None = None
    begun: bool = False  # to write into the folder
    broken: set[int] = field(default_factory=set)  # sinks that have failed, by their place

    def update(self, federation: Federation, update: Update, metrics: Mapping[str, Any] | None = None) -> None:
        """Tell everybody of an update."""
        losses = [each.loss for each in update.used if each.loss is not None]
        record: Record = {
            "update": update.number,
            "time": round(update.time, 3),
            "loss": sum(losses) / len(losses) if losses else None,
            "lr": float(update.step.lr),
            "deliveries": len(update.used),
            "staleness": list(update.staleness),
            "shares": [round(share, 6) for share in update.shares],
            "clients": [each.client for each in update.used],
            "metrics": _numbers(metrics or {}),
            "tally": federation.tally,
        }
        self._give(federation, record, now=update.time + federation.began)
        if self.on_update is not None:
            self.on_update(record | {"table": federation.table(update.time + federation.began)})

    def evaluated(self, federation: Federation, number: int, metrics: Mapping[str, Any], now: float) -> None:
        """Tell everybody of an evaluation."""
        time = round(now - federation.began, 3)
        self._give(federation, {"evaluation": number, "time": time, "metrics": _numbers(metrics)}, now)

    def close(self, federation: Federation, now: float, ended: str = "") -> None:
        """The run is over."""
        if self.folder is not None:
            file = self.folder / ABOUT
            if not file.exists():  # it ended before its first update
                self._begin(federation)
            self._write_clients(federation, now)
            about = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            put(file, {**about, "finished": True, "ended": ended})
        for sink in self.sinks:
            close = getattr(sink, "close", None)
            if close is not None:
                close()

    def _give(self, federation: Federation, record: Record, now: float) -> None:
        if self.folder is not None:
            self._write(federation, record, now)
        shown = record | {"table": federation.table(now)} if self.sinks else record
        for place, sink in enumerate(self.sinks):
            try:
                sink(shown)
            except Exception as problem:  # a logger that is away must not end a federation
                if place not in self.broken:
                    log.warning("%s fails (%s: %s)", type(sink).__name__, type(problem).__name__, problem)
                self.broken.add(place)

    def _write(self, federation: Federation, record: Record, now: float) -> None:
        assert self.folder is not None
        if not self.begun:
            self.begun = True
            self._begin(federation)
        with open(self.folder / UPDATES, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._write_clients(federation, now)

    def _begin(self, federation: Federation) -> None:
        assert self.folder is not None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"record = {self.folder} cannot be written ({problem.strerror}): name a folder.") from None
        terms = {name: value for name, value in asdict(federation.terms).items() if not callable(value)}
        terms = {
            name: str(value) if value == math.inf or name == "versions" else value for name, value in terms.items()
        }
        about = {"rule": federation.rule.name, "described": str(federation.rule), "terms": terms, "finished": False}
        put(self.folder / ABOUT, about)
        if federation.updates <= 1 and (self.folder / UPDATES).exists():
            (self.folder / UPDATES).unlink()

    def _write_clients(self, federation: Federation, now: float) -> None:
        assert self.folder is not None
        table = {"time": round(now - federation.began, 1), "clients": federation.table(now), "tally": federation.tally}
        put(self.folder / CLIENTS, table)


def put(path: Path, table: Mapping[str, Any]) -> None:
    """Write a json file; who reads it sees the old one or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    aside.write_text(json.dumps(table), encoding="utf-8")
    aside.replace(path)


def as_text(table: Sequence[Mapping[str, Any]], most: int = 40) -> str:
    """The clients, a line each; those that were used least come first where they are many."""
    rows = sorted(table, key=lambda row: row["used"])[:most] if len(table) > most else table
    lines = ["  ".join(f"{name:>{width}}" for name, width in COLUMNS.items()) + "  why"]
    for row in rows:
        cells = ["" if row[name] is None else str(row[name]) for name in COLUMNS]
        line = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))
        lines.append(f"{line}  {row['why'][:60]}".rstrip())
    if len(table) > most:
        lines.append(f"... and {len(table) - most} more")
    return "\n".join(lines)


class Tracker:
    """A sink that puts the numbers of every record into a log."""

    def __init__(self, log: tracking.Log) -> None:
        self.log = log

    def __call__(self, record: Record) -> None:
        step = record.get("update", record.get("evaluation"))
        self.log.put(0 if step is None else int(step), scalars(record))

    def close(self) -> None:
        self.log.close(True)


class TensorBoard(Tracker):
    """Scalars of every update for `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(tracking.open_tensorboard(folder))


class MLflow(Tracker):
    """Metrics of every update in a run of its own: MLflow(run_name="hospital"), in an `experiment`, with `tags`."""

    def __init__(self, settings: Mapping[str, Any] | None = None, **run: Any) -> None:
        super().__init__(tracking.open_mlflow(settings, **run))
        self.run = self.log.key

    def __call__(self, record: Record) -> None:
        step = record.get("update", record.get("evaluation"))
        numbers = {name.replace("/", "."): value for name, value in scalars(record).items()}
        self.log.put(0 if step is None else int(step), numbers)


class WandB(Tracker):
    """Numbers of every update in a run of Weights & Biases; `init` as wandb.init takes it: project, mode ..."""

    def __init__(self, settings: Mapping[str, Any] | None = None, **init: Any) -> None:
        super().__init__(tracking.open_wandb(settings, **init))


class Prometheus:
    """The newest numbers at http://address:port/metrics, for a Prometheus server to collect."""

    def __init__(self, port: int = 9464, address: str = "127.0.0.1") -> None:
        self.text = ""
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = sink.text.encode() if self.path == "/metrics" else b""
                self.send_response(200 if body or self.path == "/metrics" else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """A look every few seconds is no news."""

        try:
            self.server = ThreadingHTTPServer((address, port), Handler)
        except (OSError, OverflowError) as problem:
            raise UserError(f"port = {port} cannot be used ({problem}): choose another.") from None
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, name="kasync-prometheus", daemon=True).start()

    def __call__(self, record: Record) -> None:
        self.text = exposition(record, self.text)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def exposition(record: Record, before: str = "") -> str:
    """A record in Prometheus' text format; what it does not name stays as it was, except clients of another table."""
    kept = {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in before.splitlines() if line}
    if "table" in record:  # a client that is at another node now must not be there twice
        kept = {name: value for name, value in kept.items() if not name.startswith("kasync_client_")}
    for name, value in scalars(record).items():
        kept[f"kasync_{re.sub('[^a-zA-Z0-9_]', '_', name)}"] = f"{value:g}"
    if "update" in record:
        kept["kasync_updates_total"] = str(record["update"])
    for outcome, count in record.get("tally", {}).items():
        kept[f'kasync_replies_total{{outcome="{outcome}"}}'] = str(count)
    for row in record.get("table", ()):
        about = f'{{client="{row["client"]}",node="{_quoted(row["node"])}"}}'
        for name in ("seen", "seconds", "staleness", "used", "influence", "refused", "failed", "epsilon"):
            if row.get(name) is not None:
                kept[f"kasync_client_{name}{about}"] = f"{row[name]:g}"
    return "".join(f"{name} {value}\n" for name, value in kept.items())


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record that can be drawn."""
    found = {name: record.get(name) for name in ("time", "loss", "lr", "deliveries")} if "update" in record else {}
    staleness = record.get("staleness")
    if staleness:
        found |= {"staleness": sum(staleness) / len(staleness), "max_staleness": max(staleness)}
    if record.get("shares"):
        found["largest_share"] = max(record["shares"])
    where = "evaluation" if "evaluation" in record else "clients"
    found |= {f"{where}/{name}": value for name, value in record.get("metrics", {}).items()}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
