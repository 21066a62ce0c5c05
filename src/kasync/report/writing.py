"""What files make up a report? Tables in Markdown, numbers in CSV, figures in PNG and PDF, and one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kasync.experiments import files
from kasync.report import results as reading
from kasync.report import sheets, tables
from kasync.report.figures import save
from kasync.report.payload import payload
from kasync.report.rates import tried
from kasync.report.webpage import html as page_of


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
    saved = save(results, files.make_folder(folder / "figures")) if figures else []
    pictures = [(name, path.relative_to(folder).as_posix()) for name, path in saved]
    files.write(folder / "report.md", tables.markdown(results, pictures))
    texts = {"numbers.csv": sheets.by_run, "table.csv": sheets.by_line, "differences.csv": sheets.differences}
    texts |= {"verdict.csv": sheets.standing}
    texts |= {"rates.csv": sheets.by_rate} if any(tried(each) for each in results.experiments) else {}
    for name, text_of in texts.items():
        files.write(folder / name, text_of(results))
    page = folder / "report.html" if html else None
    if page is not None:
        files.write(page, page_of(payload(results)))
    numbers = tuple(folder / name for name in texts)
    return Written(folder, folder / "report.md", page, numbers, tuple(path for _, path in saved))
