"""Notebook display of objects: one line of words, and a picture where matplotlib is installed."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable
from html import escape
from typing import Any

DPI = 80


def running() -> bool:
    """Whether a Jupyter kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def card(words: str, draw: Callable[[Any], None] | None, width: float = 9.0, height: float = 2.6) -> str:
    """HTML of the words above what `draw` puts on a figure of this size in inches."""
    text = f"<p>{escape(words)}</p>"
    if draw is None:
        return text
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return text
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    return f"{text}\n{image(figure, words)}"


def image(figure: Any, words: str) -> str:
    """The figure as an image that lies in the page itself."""
    drawn = base64.b64encode(png(figure)).decode()
    return f'<img alt="{escape(words)}" style="max-width: 100%" src="data:image/png;base64,{drawn}">'


def png(figure: Any, dpi: int = DPI) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    return content.getvalue()


def shown(figure: Any) -> Any:
    """The figure, which a notebook shows even where no backend of matplotlib's is loaded."""
    figure._repr_png_ = lambda: png(figure, 110)
    return figure
