"""The version is one, text files are read as UTF-8 everywhere, and what is built from a clone is whole."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import kasync

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_the_version_stands_in_one_place_and_the_citation_agrees():
    assert "version" in PROJECT["project"]["dynamic"]
    assert f"\nversion: {kasync.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{kasync.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def without_encoding(file: Path) -> list[str]:
    """Calls that read or write text in the encoding of the system, which Windows has its own of."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and not any(each.arg == "encoding" for each in node.keywords):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            named = node.args if isinstance(node.func, ast.Attribute) else node.args[1:]
            modes = [each.value for arg in named for each in ast.walk(arg) if isinstance(each, ast.Constant)]
            method = isinstance(node.func, ast.Attribute) and node.args  # of Path its first argument is a mode
            other = method and not isinstance(node.args[0], ast.Constant | ast.IfExp)
            opens = name == "open" and not other and not any("b" in str(mode) for mode in modes)
            reads = name == "read_text" and not node.args
            if opens or reads or (name == "write_text" and len(node.args) == 1):
                found.append(ast.unparse(node))
    return [call for call in found if not call.startswith(("Image.open", "os.open", "tarfile.open", "webbrowser.open"))]


def test_text_is_read_and_written_as_utf_8_on_every_system():
    wrong = {file.name: without_encoding(file) for file in SOURCES}
    assert {name: calls for name, calls in wrong.items() if calls} == {}


def test_a_file_opened_without_an_encoding_would_be_found(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("open('a')\nopen('a', 'rb')\nPath('b').read_text()\nPath('b').write_text('c', encoding='utf-8')\n")
    assert without_encoding(file) == ["open('a')", "Path('b').read_text()"]


def test_no_module_imports_what_only_unix_has_before_it_is_needed():
    for file in SOURCES:
        tops = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in tops if isinstance(node, ast.Import) for alias in node.names}
        assert not names & {"fcntl", "resource", "pwd", "grp", "termios"}, file.name


def test_the_python_versions_that_are_tested_are_those_that_are_promised():
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow)[1]) == promised
    wheels = [each.removesuffix("-*").replace("cp3", "3.") for each in PROJECT["tool"]["cibuildwheel"]["build"]]
    assert wheels == promised


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked archive has no history")
def test_a_fresh_clone_stays_under_25_mb(tmp_path):
    words = ["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(tmp_path / "clone")]
    subprocess.run(words, check=True)
    size = sum(path.lstat().st_size for path in (tmp_path / "clone").rglob("*") if not path.is_dir())
    assert 1e6 < size < 25e6


@pytest.mark.long
def test_the_source_archive_and_the_wheel_hold_everything(tmp_path):
    pytest.importorskip("build", reason="make dist installs it")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)], check=True)
    (archive,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    for name in ("README.md", "CHANGELOG.md", "Makefile", "mkdocs.yml", "docs/demo.png", "src/kasync/_kernel_tiles.h"):
        assert name in names
    inside = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.suffix in {".py", ".toml", ".html", ".css", ".js"} and "egg-info" not in str(path)
    }
    assert sources <= inside
