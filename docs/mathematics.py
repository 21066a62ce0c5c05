"""How do formulas get onto the pages? $...$ becomes MathML when the site is built: no script, no network."""

import re
from typing import Any

from latex2mathml.converter import convert

FENCED = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)  # code, in which a dollar is a dollar
FORMULA = re.compile(r"(?<![\\$\w])\$([^$\n]+)\$(?![\w$])")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its formulas converted, its code untouched."""
    pieces = FENCED.split(markdown)
    return "".join(piece if place % 2 else FORMULA.sub(_mathml, piece) for place, piece in enumerate(pieces))


def _mathml(found: re.Match[str]) -> str:
    return convert(found[1]).replace("|", "&#124;")  # a bar would end a cell of a table
