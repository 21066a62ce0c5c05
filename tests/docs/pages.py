"""The code blocks of the pages, in order, and the commands that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?:<!-- not run: (?P<reason>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"(?:`|^    )kasync ([^`\n]+)", re.M)  # inline, or indented as code


@dataclass(frozen=True)
class Block:
    """One fenced block; `reason` says why it is not run, where a comment before it does."""

    page: Path
    line: int  # of its first line of code
    language: str
    code: str
    reason: str | None

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str = "python") -> list[Block]:
    """The blocks of a page in one language, from top to bottom."""
    text = page.read_text()
    found = [
        Block(page, text.count("\n", 0, match.start("code")) + 1, match["language"], match["code"], match["reason"])
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block.language == language]


def commands(page: Path) -> Iterator[str]:
    """Every command line of ours that a page names, without `kasync` and without what is said about it."""
    shells = re.sub(r"^(?=\S)", "    ", "".join(block.code for block in blocks(page, "console")), flags=re.M)
    for words in COMMAND.findall(page.read_text() + "\n" + shells):
        line = re.split(r"\s#|  +|\s[|>&]", words)[0].strip()
        if re.match(r"[a-z]", line):  # `kasync COMMAND` stands for any
            yield line
