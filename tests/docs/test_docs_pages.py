"""The pages agree with the code: rules, drawings, dependencies, links; the site builds without a warning."""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest
from pages import PAGES, ROOT, name_of

from kasync import rules
from kasync.experiments.experiment import Contender, Task
from kasync.report.numbers import Sweep
from kasync.statistics import Estimate

DOCS = ROOT / "docs"
NOT_PROSE = r"^```.*?^```|^    kasync .*?$|^\|.*?$|^!\[.*?$|^<.*?$|^\$.*?\$$"  # code, commands, tables, formulas
PUBLIC = [
    "kasync",
    "kasync.comparison",
    "kasync.data",
    "kasync.data.partition",
    "kasync.faults",
    "kasync.parts",
    "kasync.report",
    "kasync.simulator",
    "kasync.theory",
    "kasync.timelines",
    "kasync.work",
]


def script(name: str):
    """A program of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def without_results(page: str) -> str:
    return page.partition("## In our results")[0]


def test_every_rule_has_the_page_that_its_docstring_makes():
    for name, made in script("rule_pages").pages().items():
        kept = DOCS / "rules" / name
        assert kept.exists(), "run python docs/rule_pages.py"
        assert without_results(kept.read_text()) == without_results(made), f"{name}: run python docs/rule_pages.py"
    assert {page.stem for page in (DOCS / "rules").glob("*.md")} == {*rules.RULES, "index", "which"}


def test_what_rules_cost_is_what_they_hold_after_a_step():
    """The table of the page "Which rule should I take?", every rule once, against a count of its memory."""
    pages, words = script("rule_pages"), tomllib.loads((DOCS / "rule_words.toml").read_text())
    found = {name: pages.Held.by(pages.built(words[name])) for name in rules.RULES}
    kinds = {
        "none, or a few numbers": lambda held: not (held.rows or held.queued or held.vectors or held.each),
        "one to three vectors as long as the model": lambda held: held.vectors in (1, 2, 3) and not held.rows,
        "one number for every client": lambda held: held.each and not held.rows,
        "one row as long as the model for each place of a queue": lambda held: held.queued > 0,
        "one row as long as the model for every client": lambda held: held.rows == 1,
        "two rows as long as the model for every client": lambda held: held.rows == 2,
    }
    table = (DOCS / "rules" / "which.md").read_text().partition("## What they cost")[2].partition("\n## ")[0]
    told = {}
    for line in table.strip().splitlines()[2:]:
        kind, names = (cell.strip() for cell in line.strip("|").split("|"))
        for title in names.split(", "):
            assert told.setdefault(title.lower(), kind) is kind, f"{title} stands there twice"
    assert told.keys() == {rules.facts(name).title.lower() for name in rules.RULES}
    for name, held in found.items():
        fits = [kind for kind, holds in kinds.items() if holds(held)]
        assert fits == [told[rules.facts(name).title.lower()]], f"{name}: {held}"


def test_a_page_says_over_how_wide_a_range_of_rates_its_rule_stays_good(monkeypatch):
    pages = script("rule_pages")
    rates = [0.1, 0.316, 1.0, 3.16, 10.0]
    fleet = Task("fleet", "fleet", note="Three clients.")
    settings = {"k": 10, "arrivals": {"kind": "clock"}}
    swept = {
        name: (Sweep(fleet, Contender(name, name), rates, rates, [Estimate(one, 0.01, 3) for one in means]), run)
        for name, means, run in (
            ("fedbuff", (0.2, 0.8, 0.8, 0.8, 0.2), SimpleNamespace(settings=settings)),
            ("krum", (0.2, 0.2, 0.8, 0.2, 0.2), SimpleNamespace(settings=settings | {"k": 1})),
            ("recall", (0.2, 0.8, 0.8, 0.8, 0.8), SimpleNamespace(settings=settings)),
        )
    }
    monkeypatch.setattr(pages, "at_rates", lambda: swept)
    monkeypatch.setattr(pages, "tries", dict)
    text = pages.sensitivity("fedbuff")
    assert "Measured on one fleet for all rules: Three clients. Final accuracy on the test set, mean of 3 seeds" in text
    assert "| `lr` | 0.1 | 0.32 | 1 | 3.2 | 10 |" in text
    assert "| accuracy | 0.200 | 0.800 | 0.800 | 0.800 | 0.200 |" in text
    assert "its best, 0.800 at 0.32, over a 12-fold range of rates, place 2 of 3 from the widest." in text
    assert "one delivery at a time" not in text
    assert "This rule takes one delivery at a time." in pages.sensitivity("krum")
    assert "over at least a 34-fold range of rates, place 1 of 3 from the widest." in pages.sensitivity("recall")
    assert pages.sensitivity("zeno") == "Not yet measured."


def test_a_rule_without_results_says_so_and_one_with_results_shows_them():
    told = script("rule_pages").told
    assert told({}) == "Not yet run."
    assert "| digits | 0.9 | – | 0.8 (3) | – |" in told({"digits": {"paper": "0.9", "final_accuracy true": "0.8 (3)"}})


def test_the_drawings_are_what_the_script_draws():
    for name, draw in script("drawings").DRAWINGS.items():
        assert (DOCS / name).read_text() == draw(), f"{name}: run python docs/drawings.py"


def test_the_map_shows_every_package():
    boxes = script("drawings").BOXES
    packages = {path.parent.name for path in (ROOT / "src" / "kasync").glob("*/__init__.py")}
    assert packages - set(boxes) == set(), "enter it into BOXES of docs/drawings.py"


def test_a_circle_of_imports_is_refused():
    with pytest.raises(AssertionError, match="a circle of imports: a -> b"):
        script("drawings").reached({"a": {"b"}, "b": {"a"}}, "a")


def test_what_the_walk_through_the_architecture_names_is_there():
    text = (DOCS / "architecture.md").read_text()
    named = re.findall(r"`(\w+)` in `([\w/]+\.py)`", text)
    assert len(named) > 15
    for name, file in named:
        tree = ast.parse((ROOT / "src" / "kasync" / file).read_text())
        assert name in {getattr(node, "name", None) for node in tree.body}, f"{name} is not in {file}"
    for place in re.findall(r"\| `(tests/[\w/.]+)` \|", text):
        assert (ROOT / place).exists(), place


def test_the_readme_is_short_and_prose_lines_are_not_long():
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
    others = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "results/README.md")]
    for page in (*PAGES, *others):
        prose = re.sub(NOT_PROSE, "", page.read_text(), flags=re.M | re.S)
        assert not (long := [line for line in prose.splitlines() if len(line) > 160]), f"{name_of(page)}: {long[0]}"


def test_links_between_files_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), f"{name_of(page)} links to {link}"


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert listed == {page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)}


def test_the_api_page_has_every_public_name():
    words = set(re.findall(r"\w+", (DOCS / "api.md").read_text()))
    for name in PUBLIC:
        missing = set(importlib.import_module(name).__all__) - words
        assert not missing, f"docs/api.md lacks {sorted(missing)} of {name}"


def test_settings_laid_out_in_columns_become_a_list():
    listed = script("site_hooks").listed
    assert listed("What it is.\n\nk    deliveries\n     of a step\nlr   the rate") == (
        "What it is.\n\n- `k`: deliveries of a step\n- `lr`: the rate"
    )
    assert listed("A sentence.  Another one\nthat goes on.") == "A sentence.  Another one\nthat goes on."


def test_the_command_reference_has_every_command_and_option():
    typer = pytest.importorskip("typer")
    from kasync.cli.app import app

    told, commands = script("site_hooks").commands(), typer.main.get_command(app).commands
    for name, command in commands.items():
        assert f"kasync {name}" in told
        assert all(f"`{flag}`" in told for option in command.params for flag in option.opts if flag.startswith("--"))


def html(text: str) -> str:
    """The page as the site has it."""
    markdown = pytest.importorskip("markdown", reason="comes with mkdocs: pip install 'kasync[docs]'")
    pytest.importorskip("latex2mathml")
    hooks = script("site_hooks")
    known = ["tables", "md_in_html", "attr_list", "footnotes", "toc", "pymdownx.superfences"]
    return hooks.on_page_content(markdown.markdown(hooks.on_page_markdown(text), extensions=known))


def test_formulas_become_mathml_and_code_keeps_its_dollars():
    cell = html("| a | b |\n|---|---|\n| $|w_j|$ | x |")
    assert cell.count("<td>") == 2
    assert cell.count("<math") == 1
    kept = "`$KASYNC_DATA` and `$PATH`\n\n```console\necho $A $B\n```\n"
    assert script("site_hooks").on_page_markdown(kept) == kept


def test_a_formula_stays_in_its_sentence_and_is_displayed_where_it_is_alone():
    made = html("$w$ is the model, $g_i$ a gradient.\n\n$w - g_i$\n")
    assert made.count("<p>") == 1
    assert made.index("</p>") > made.index("a gradient.")
    assert made.count('display="block"') == 1


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == DOCS / "rules"], ids=name_of)
def test_every_formula_of_the_rule_pages_is_typeset(page):
    text = page.read_text()
    formulas = re.findall(r"(?<!\\)\$[^$\n]+\$", re.sub(r"```.*?```|`[^`\n]+`", "", text, flags=re.S))
    assert html(text).count("<math") == len(formulas)


def test_a_command_that_cannot_be_typeset_is_named():
    with pytest.raises(ValueError, match=r"does not know \\arg"):
        html(r"$\arg x$")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path):
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: pip install 'kasync[docs]'")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="?(https?:[^"\s>]+)', page.read_text())
        assert not fetched, f"{page.name} fetches {fetched}"
