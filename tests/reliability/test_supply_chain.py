"""Every dependency has a range and a reason, the lock is complete, and nothing is sent anywhere."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared() -> set[tuple[str, str, str]]:
    """(extra, package, range) of everything that pyproject.toml names; "" for what is always needed."""
    extras = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    found = set()
    for extra, lines in extras.items():
        for line in lines:
            name, _, bounds = re.fullmatch(r"([\w-]+)(\[[\w,]+\])?(.*)", line).groups()
            if name != "kasync":
                found.add((extra, name, bounds))
    return found


def told() -> dict[tuple[str, str, str], str]:
    """The same, of the tables of docs/dependencies.md; with the reason for the range."""
    found = {}
    for line in (ROOT / "docs" / "dependencies.md").read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4:
            found["", cells[0], cells[1]] = cells[3]
        elif line.startswith("| `"):
            found[cells[0], cells[1], cells[2]] = cells[4]
    return found


def test_every_dependency_has_a_row_with_its_range_and_its_reason():
    assert declared() == set(told())
    assert all(len(reason) > 5 for reason in told().values())


def test_every_dependency_has_a_lower_end():
    assert [row for row in declared() if not row[2].startswith(">=")] == []


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements-dev.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_lock_pins_every_dependency_within_its_range():
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    versions = locked()
    for _, name, bounds in declared():
        assert versions[canonicalize_name(name)] in SpecifierSet(bounds), name


def test_the_lock_names_no_place_to_fetch_from():
    text = (ROOT / "requirements-dev.lock").read_text()
    assert not re.search(r"://|@|--index|--find", text)
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.!]+", f"{name}=={version}") for name, version in locked().items())


WATCHED = """
import socket, sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        where = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[0]
        if where not in ("localhost", "127.0.0.1", None) and not (isinstance(where, tuple) and where[0] == "127.0.0.1"):
            print("WENT OUT", event, where, flush=True)

sys.addaudithook(watch)
from kasync.cli import main
for words in (["run", "--dataset", "synthetic", "--clients", "20", "-k", "4", "--partition", "iid", "--steps", "10",
               "--lr", "0.05", "--out", sys.argv[1]], ["report", sys.argv[1], "--html"]):
    sys.argv[:] = [sys.argv[0], sys.argv[1]]
    place = sys.argv[1]
    sys.argv = ["kasync", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code
    sys.argv = ["watched", place]
print("WATCHED")
"""


def test_a_run_and_its_report_connect_to_nobody(tmp_path):
    words = [sys.executable, "-c", WATCHED, str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert "WATCHED" in done.stdout, done.stderr
    assert "WENT OUT" not in done.stdout


def test_the_watch_sees_who_goes_out():
    program = WATCHED.split("from kasync")[0] + "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 9))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "WENT OUT socket.sendto ('192.0.2.1', 9)" in done.stdout


def test_flower_is_told_not_to_report_in_our_example():
    app = ROOT / "examples" / "flower_app"
    assert 'setdefault("FLWR_TELEMETRY_ENABLED", "0")' in (app / "digits_app" / "__init__.py").read_text()
    commands = (app / "README.md").read_text()
    assert 0 < commands.index("export FLWR_TELEMETRY_ENABLED=0") < commands.index("flwr run")


def test_ray_is_told_not_to_report_wherever_we_start_it():
    texts = {file.name: file.read_text() for file in (ROOT / "src" / "kasync").rglob("*.py")}
    starting = {name: text.partition("ray.init(")[0] for name, text in texts.items() if "ray.init(" in text}
    assert starting
    assert all('setdefault("RAY_USAGE_STATS_ENABLED", "0")' in before for before in starting.values())


def test_no_module_of_ours_knows_the_network_but_those_that_are_asked_to():
    """`kasync data get` fetches, the pages and the Prometheus sink serve; `socket` is for this machine's name."""
    nets = {"urllib.request", "http.client", "requests", "httpx", "aiohttp", "ftplib", "smtplib", "telnetlib"}
    serving = {(name, "http.server") for name in ("serving.py", "watch.py")}
    found = set()
    for file in sorted((ROOT / "src" / "kasync").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            found |= {(file.name, name) for name in names if name in nets or name == "http.server"}
    assert found == {("get.py", "urllib.request"), *serving}
