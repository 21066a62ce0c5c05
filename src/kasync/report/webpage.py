"""How does a report fit into one page that needs no network? Style, scripts and data are put into it."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from kasync.errors import UserError

SCRIPTS = ("charts.js", "page.js", "controls.js")
NOWHERE, SAME_ORIGIN = "'none'", "'self'"  # what the page may connect to


def html(data: dict[str, Any], live: bool = False) -> str:
    """The page with its data; a live one asks its own server for newer data, any other connects to nothing."""
    parts = {
        "CONNECT": SAME_ORIGIN if live else NOWHERE,
        "LIVE": "data.json" if live else "",
        "TITLE": escape(data["title"]),
        "STYLE": _packaged("page.css"),
        "PLOTLY": _as_script(_plotly()),
        "DATA": as_json(data).replace("<", "\\u003c"),
        "SCRIPT": "\n".join(_as_script(_packaged(name)) for name in SCRIPTS),
    }
    pieces = re.split(r"\{\{([A-Z]+)\}\}", _packaged("page.html"))
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def fingerprint(text: str) -> str:
    """Twelve digits that change when the text does."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _packaged(name: str) -> str:
    return (files("kasync.report") / "page" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as problem:
        raise UserError("the page needs plotly: pip install 'kasync[report]'.") from problem
    return get_plotlyjs()


def _as_script(text: str) -> str:
    """Nothing inside may end the element that holds it."""
    return re.sub(r"</(script)", r"<\\/\1", text, flags=re.IGNORECASE)
