"""The imports point one way.

core <- parts <- rules, and work, <- simulator | live <- theory <- experiments <- cli;  timelines know none of them.
"""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "kasync"
LAYERS = [  # a module may import from the layers before its own, and from its own package
    {"errors", "counter", "kernel", "constants", "statistics", "notebook"},
    {"checks", "verdict", "span", "checkpoint", "files", "lock", "fingerprint", "components"},
    {"tracking", "serving"},
    {
        "arrivals",
        "step",
        "discounts",
        "schedules",
        "optimizers",
        "timelines",
        "data",
        "models",
        "adapters",
    },
    {"work", "faults"},
    {"core"},
    {"parts"},
    {"rules"},
    {"simulator", "live"},
    {"theory"},
    {"experiments"},
    {"report"},
    {"comparison"},
    {"cli"},
]
NEVER = {"utils", "common", "base", "helpers", "manager"}  # names that say nothing
OPTIONAL = [
    "matplotlib",
    "flwr",
    "ray",
    "pandas",
    "typer",
    "rich",
    "plotly",
    "PIL",
    "mlxtend",
    "datasets",
    "scipy",
    "pyarrow",
]
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@functools.cache
def origins() -> dict[str, str]:
    """Where each name that kasync offers comes from: simulate -> kasync.simulator."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in froms if str(node.module).startswith("kasync.")]
    return {alias.name: str(node.module) for node in ours for alias in node.names}


@functools.cache
def imported(file: Path) -> list[str]:
    """Every module that a file imports, anywhere in it, with its dots."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "kasync":
            names += [origins().get(alias.name, f"kasync.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the package in full"
            names.append(str(node.module))
    return names


def home(file: Path) -> str:
    """The module directly under kasync that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def layer(module: str) -> int:
    found = [number for number, names in enumerate(LAYERS) if module in names]
    assert found, f"kasync.{module} has no layer: enter it into LAYERS where it belongs"
    return found[0]


def upward(file: Path) -> list[str]:
    """What a file imports that does not lie below it."""
    others = {name: name.split(".")[1] for name in imported(file) if name.startswith("kasync.")}
    return [name for name, other in others.items() if other != home(file) and layer(other) >= layer(home(file))]


def test_imports_point_one_way():
    wrong = {name_of(file): upward(file) for file in FILES if home(file) != "__init__"}
    assert {name: names for name, names in wrong.items() if names} == {}


def test_only_the_flower_transport_imports_flwr_and_only_ray_modules_import_ray():
    for file in FILES:
        tops = {name.split(".")[0] for name in imported(file)}
        assert "flwr" not in tops or name_of(file).startswith("live/flower"), name_of(file)
        assert "ray" not in tops or "ray" in re.split(r"[/._]", name_of(file)), name_of(file)


def test_a_timeline_needs_no_torch():
    assert not [file for file in FILES if home(file) == "timelines" and "torch" in imported(file)]


def test_a_module_opens_with_a_statement_of_what_is_in_it_and_has_a_name_that_says_something():
    root = PACKAGE.parents[1]
    others = [
        path for name in ("tests", "benchmarks", "examples", "docs", ".ci") for path in (root / name).rglob("*.py")
    ]
    for file in (*FILES, *others):
        text = file.read_text()
        told = ast.get_docstring(ast.parse(text)) or ""
        assert not text.strip() or told, f"{file} has no docstring"
        assert "?" not in told.partition("\n")[0], f"{file} asks instead of saying what is in it"
        assert not NEVER & set(file.relative_to(root).with_suffix("").parts), file


def test_importing_kasync_needs_torch_and_numpy_only():
    program = f"import sys; sys.modules |= dict.fromkeys({OPTIONAL!r}); import kasync; kasync.rules.wkafl(0.1)"
    subprocess.run([sys.executable, "-c", program], check=True)  # a module that is None cannot be imported


def test_importing_kasync_loads_nothing_it_does_not_need():
    program = f"import sys, kasync; print(*(name for name in {OPTIONAL!r} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == []
