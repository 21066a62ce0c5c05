"""Reports: tables, figures and one page; results are only read.

kasync.report.write("kasync-runs")      # report.md, figures and report.html in kasync-runs/report
kasync.report.serve("kasync-runs")      # the same page at http://127.0.0.1:8765 while runs go on
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kasync import files
from kasync.report import figures as drawing
from kasync.report import results as reading
from kasync.report import tables
from kasync.report.page import html as page_of
from kasync.report.page import payload, serve
from kasync.report.results import read

__all__ = ["Written", "read", "serve", "write"]


@dataclass(frozen=True)
class Written:
    """Where the report is; `page` is None where none was asked for."""

    folder: Path
    tables: Path
    page: Path | None
    sheets: tuple[Path, ...]  # CSV
    figures: tuple[Path, ...]  # the PNG files, a PDF beside each

    def __iter__(self) -> Iterator[Path]:
        """Every file but the PDFs."""
        yield from (self.tables, *self.sheets, *self.figures, *([self.page] if self.page else []))


def write(
    results_folder: str | Path, out: str | Path | None = None, html: bool = True, figures: bool = True
) -> Written:
    """Read the results, write the report into `out` (the folder `report` in the results where it is not said)."""
    results = reading.read(results_folder)
    folder = files.make_folder(Path(out) if out is not None else results.folder / "report")
    saved = drawing.save(results, files.make_folder(folder / "figures")) if figures else []
    pictures = [(name, path.relative_to(folder).as_posix()) for name, path in saved]
    texts = tables.texts(results, pictures)
    for name, text in texts.items():
        files.write(folder / name, text)
    page = folder / "report.html" if html else None
    if page is not None:
        files.write(page, page_of(payload(results)))
    numbers = tuple(folder / name for name in texts if name != "report.md")
    return Written(folder, folder / "report.md", page, numbers, tuple(path for _, path in saved))
