"""How does a number stand in a table, and how is a table written in Markdown?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kasync.report.intervals import Estimate

NOTHING = "–"
WORDS = {"true": "true staleness", "published-code": "published code", "none": "no staleness"}


def number(found: Estimate | None, digits: int, planned: int) -> str:
    """0.9712 ± 0.0021 (3), with the number of seeds it rests on, of how many where some are missing."""
    if found is None:
        return NOTHING
    spread = "" if found.half is None else f" ± {found.half:.{digits}f}"
    count = f"{found.count}" if found.count == planned else f"{found.count} of {planned}"
    return f"{found.mean:.{digits}f}{spread} ({count})"


def difference(found: Estimate, digits: int = 4) -> str:
    """With its sign; bold where the interval excludes zero."""
    spread = "" if found.half is None else f" ± {found.half:.{digits}f}"
    text = f"{found.mean:+.{digits}f}{spread} ({found.count})"
    return f"**{text}**" if found.excludes_zero else text


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty without rows; a column that says nothing anywhere is left out."""
    rows = list(rows)
    kept = [place for place in range(len(head)) if any(row[place] != NOTHING for row in rows)]
    if not rows or not kept:
        return ""
    lines = [[head[place] for place in kept], ["---"] * len(kept), *([row[place] for place in kept] for row in rows)]
    text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return f"{title}\n\n{text}"
