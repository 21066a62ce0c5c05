"""Do the imports point one way?

core <- parts <- rules <- simulator | live <- experiments <- cli;  timelines and theory know none of them.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "kasync"
LAYERS = [  # a module may import from the layers before its own, and from its own package
    {"errors", "counter", "kernel"},
    {"checks", "span"},
    {"arrivals", "discounts", "schedules", "optimizers", "timelines", "theory", "data", "models", "work"},
    {"core"},
    {"parts"},
    {"rules"},
    {"simulator", "live"},
    {"experiments"},
    {"report"},
    {"cli"},
]
NEVER = {"utils", "common", "base", "helpers", "manager"}  # names that say nothing
OPTIONAL = ["matplotlib", "flwr", "ray", "pandas", "typer", "rich", "plotly", "PIL", "mlxtend", "datasets", "scipy"]
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


every_file = pytest.mark.parametrize("file", FILES, ids=name_of)


def imported(file: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it, with its dots."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the package in full"
            names = [f"kasync.{alias.name}" for alias in node.names] if node.module == "kasync" else [node.module]
            yield from (str(name) for name in names)


def home(file: Path) -> str:
    """The module directly under kasync that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def layer(module: str) -> int:
    found = [number for number, names in enumerate(LAYERS) if module in names]
    assert found, f"kasync.{module} has no layer: enter it into LAYERS where it belongs"
    return found[0]


@every_file
def test_imports_point_one_way(file):
    mine = home(file)
    if mine == "__init__":
        return
    for name in imported(file):
        package, *rest = name.split(".")
        if package == "kasync" and rest and rest[0] != mine:
            assert layer(rest[0]) < layer(mine), f"{name_of(file)} imports kasync.{rest[0]}, which lies above it"


@every_file
def test_only_the_flower_transport_imports_flwr_and_only_ray_modules_import_ray(file):
    tops = {name.split(".")[0] for name in imported(file)}
    if not name_of(file).startswith("live/flower"):
        assert "flwr" not in tops
    if "ray" not in re.split(r"[/._]", name_of(file)):
        assert "ray" not in tops


def test_a_timeline_needs_no_torch():
    for file in (PACKAGE / "timelines").rglob("*.py"):
        assert "torch" not in {name.split(".")[0] for name in imported(file)}, name_of(file)


@every_file
def test_a_module_opens_with_the_question_it_answers_and_has_a_name_that_says_something(file):
    assert not NEVER & set(name_of(file).removesuffix(".py").split("/"))
    text = file.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{name_of(file)} has no docstring"


def test_importing_kasync_needs_torch_and_numpy_only():
    program = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL!r}); import kasync; kasync.rules.wkafl(0.1)"
    subprocess.run([sys.executable, "-c", program], check=True)  # a module that is None cannot be imported


def test_importing_kasync_loads_nothing_it_does_not_need():
    program = f"import sys, kasync; print(*(name for name in {OPTIONAL!r} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == []
