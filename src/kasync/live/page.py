"""The page of a live run: its record folder as one html file, or served here and followed as the run goes on."""

from __future__ import annotations

import json
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from kasync import serving
from kasync.errors import UserError
from kasync.live.watch import ABOUT, CLIENTS, UPDATES

MOST = 1500  # points of a curve; a longer run is thinned out


def is_live(folder: Path) -> bool:
    """Whether a live run writes, or wrote, its records here."""
    return (folder / ABOUT).is_file()


def read(folder: Path) -> dict[str, Any]:
    """What the folder says now; a line that is being written is left for the next look."""
    if not is_live(folder):
        raise UserError(
            f"{folder} holds no records of a live run: give the folder that record= named (a finished simulation is "
            f"shown by kasync report)."
        )
    try:
        about = parsed((folder / ABOUT).read_text(encoding="utf-8"))
        clients = parsed((folder / CLIENTS).read_text(encoding="utf-8")) if (folder / CLIENTS).exists() else {}
        lines = (folder / UPDATES).read_text(encoding="utf-8").splitlines() if (folder / UPDATES).exists() else []
    except (OSError, ValueError) as problem:
        raise UserError(f"{folder} cannot be read ({problem}): is it the folder of a live run?") from None
    updates: dict[int, dict[str, Any]] = {}
    evaluations: dict[int, dict[str, Any]] = {}
    for line in lines:
        try:
            record = parsed(line)
        except ValueError:
            continue
        if "update" in record:
            updates[record["update"]] = record  # one that was made again after a death is the later one
        else:
            evaluations[record["evaluation"]] = record
    every = -(-len(updates) // MOST) if updates else 1
    kept = [updates[number] for number in sorted(updates)]
    return {
        "name": folder.name,
        "about": about,
        "updates": [record for place, record in enumerate(kept) if place % every == 0 or place >= len(kept) - 300],
        "evaluations": [evaluations[number] for number in sorted(evaluations)],
        "clients": clients,
    }


def parsed(text: str) -> dict[str, Any]:
    """A record; what is no number, such as the loss of a model that diverged, is null, since a browser knows no NaN."""
    return json.loads(text, parse_constant=lambda name: None)


def html(data: dict[str, Any], follow: bool = False) -> str:
    """One page that needs no network; one that follows asks its own server for newer data."""
    text = (files("kasync.live") / "page.html").read_text(encoding="utf-8")
    inside = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    title = escape(f"{data['name']}: {data['about'].get('rule', '')}")
    connect = "'self'" if follow else "'none'"
    return (
        text.replace("{{TITLE}}", title)
        .replace("{{CONNECT}}", connect)
        .replace("{{FOLLOW}}", "data.json" if follow else "")
        .replace("{{DATA}}", inside)
    )


def write(folder: Path, out: Path | None = None) -> Path:
    """The page as a file, in the folder itself where no other place is named."""
    path = (folder if out is None else out) / "live.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html(read(folder)), encoding="utf-8")
    return path


def serve(folder: Path, port: int = 8766) -> None:
    """Serve the page until Ctrl-C."""
    read(folder)  # a folder that is none is refused now
    data = partial(json.dumps, allow_nan=False)
    after = "The page is no longer served; the run goes on."
    serving.serve(lambda: html(read(folder), follow=True), lambda: data(read(folder)), port, f"follows {folder}", after)
