"""The page carries all that it needs and nothing that could do harm."""

import json
import re
import shutil
import sys

import pytest

from kasync.errors import UserError
from kasync.report import results as reading
from kasync.report import write
from kasync.report.page import html, payload


@pytest.fixture(scope="module")
def page(small):
    return html(payload(reading.read(small)))


def own_part(page):
    """The page without plotly, whose text names addresses that it never asks for."""
    start, end = page.index("<script>") + len("<script>"), page.index('<script id="data"')
    return page[:start] + page[end:]


def data_of(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S).group(1))


def test_the_page_asks_the_network_for_nothing(page):
    assert "default-src 'none'" in page
    assert "connect-src 'none'" in page
    assert not re.search(r"<script[^>]+src=|<link[^>]+href=.(?!data:)|@import|url\(", own_part(page))
    assert set(re.findall(r"https?://[^\s\"'<>]+", own_part(page))) <= {"http://www.w3.org/2000/svg"}


def test_plotly_is_in_it_once(page):
    assert page.count("plotly.js v") <= 2  # its banner
    assert len(page) < 6_500_000


def test_the_data_are_plain_json_with_every_line_of_every_experiment(page, experiments):
    data = data_of(page)
    assert [experiment["name"] for experiment in data["experiments"]] == sorted(experiments)
    for experiment in data["experiments"]:
        assert len(experiment["lines"]) == len(experiments[experiment["name"]].lines)
    line = data["experiments"][2]["lines"][0]
    for axis in ("step", "time", "updates"):
        assert {"x", "mean", "low", "high"} == line["accuracy"][axis].keys()
    assert sum(line["counts"]["staleness_count"]) == pytest.approx(1.0, abs=1e-3)
    assert sum(line["labels"]["label_weight"]) == pytest.approx(1.0, abs=1e-3)
    assert line["clients"]["client_weight"] == sorted(line["clients"]["client_weight"], reverse=True)
    assert line["settings"]["rule.kind"] == "wkafl"


def test_a_title_cannot_break_out_of_the_page(small, tmp_path):
    shutil.copytree(small, tmp_path / "results")
    path = tmp_path / "results" / "experiments.json"
    evil = "</script><script>alert(1)</script>"
    path.write_text(path.read_text().replace('"Accuracy by staleness"', json.dumps(evil)))
    made = html(payload(reading.read(tmp_path / "results")))
    assert evil not in made
    assert data_of(made)["experiments"][2]["title"] == evil


def test_the_same_results_give_the_same_report(small, tmp_path):
    written = [list(write(small, tmp_path / name, figures=False)) for name in ("one", "two")]
    assert [path.name for path in written[0]] == [
        "report.md",
        "numbers.csv",
        "table.csv",
        "differences.csv",
        "verdict.csv",
        "report.html",
    ]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]


def test_without_plotly_the_tables_are_written_and_the_page_says_what_to_install(small, tmp_path, monkeypatch):
    from kasync.report.page import _plotly

    _plotly.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert write(small, tmp_path, html=False, figures=False).page is None
    with pytest.raises(UserError, match=r"kasync\[report\]"):
        write(small, tmp_path, figures=False)


def test_without_matplotlib_a_figure_says_what_to_install(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"kasync\[plot\]"):
        write(small, tmp_path)


def test_a_folder_that_cannot_be_written_is_a_sentence(small, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        write(small, tmp_path / "file" / "report")
