"""Every code block and command of the pages works."""

import sys
import types

import pytest
from pages import PAGES, ROOT, blocks, commands, name_of
from surroundings import SHORTER, prepare, shortened

from kasync import rules

SLOW = {"docs/ray.md"}  # starts processes
SHOWN = [page for page in PAGES if blocks(page)]
MARKED = [pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] * (name_of(page) in SLOW)) for page in SHOWN]


@pytest.mark.parametrize("page", MARKED)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, reader, results, monkeypatch):
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))  # a page enters a rule of its own
    module.__dict__.update(prepare(page, reader, results))
    for block in blocks(page):
        if block.reason is None:
            above = "\n" * (block.line - 1)  # so that a traceback names the line of the page
            exec(compile(above + shortened(page, block.code), str(page), "exec"), module.__dict__)


def test_few_blocks_are_not_run_and_each_says_why():
    left_out = [block for page in SHOWN for block in blocks(page) if block.reason is not None]
    assert all(len(block.reason.split()) > 3 for block in left_out)
    assert len(left_out) <= 3, [str(block) for block in left_out]


def test_every_python_fence_is_found():
    for page in PAGES:
        assert len(blocks(page)) == page.read_text().count("```python"), name_of(page)


@pytest.mark.parametrize("page", [page for page in PAGES if list(commands(page))], ids=name_of)
def test_every_command_that_a_page_names_exists_with_its_options(page):
    typer = pytest.importorskip("typer")
    from kasync.cli.app import app

    for line in commands(page):
        command, words = typer.main.get_command(app), line.split()
        while words and hasattr(command, "commands"):
            name = words.pop(0)
            assert name in command.commands, f"{name_of(page)}: kasync {line}"
            command = command.commands[name]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {
            "--help",
            "-h",
        }
        used = {word.split("=")[0] for word in words if word.startswith("-")}
        assert used <= known, f"{name_of(page)}: kasync {line}: {used - known}"


def test_the_readme_example_has_ten_lines():
    first, *_ = blocks(ROOT / "README.md")
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 10


def test_the_commands_of_a_typo_would_be_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Say `kasync runn --rule wkafl`.\n\n    kasync run --seedz 3   # three seeds\n")
    assert list(commands(page)) == ["runn --rule wkafl", "run --seedz 3"]


def test_what_a_page_takes_for_granted_is_still_on_it():
    for name, replaced in SHORTER.items():
        code = "".join(block.code for block in blocks(ROOT / name))
        assert all(written in code for written in replaced), f"{name} no longer says {[*replaced]}"
