"""The oldest and the newest Flower that pyproject.toml allows: the strategy's tests, with each of them in turn.

The one before the oldest is refused in a sentence.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
TESTS = ("test_live_as_fedavg.py", "test_live_replies.py", "test_live_mailbox.py")


def oldest() -> str:
    return re.findall(r'"flwr\[simulation\]>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())[0]


def newest() -> str:
    said = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "flwr"], capture_output=True, text=True)
    found = re.findall(r"Available versions: ([0-9.]+)", said.stdout)
    return found[0] if found else pytest.skip("there is no package index here")


def ran_with(version: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with this Flower before all others."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, f"flwr~={version}.0" if version.count(".") == 1 else f"flwr=={version}"], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("version", [oldest, newest])
def test_the_strategy_works_with_this_flower(version, tmp_path):
    wanted = version()
    ran = ran_with(wanted, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout or "100%" in ran.stdout
    asked = "import flwr, importlib.metadata as known; print(known.version('flwr'), flwr.__file__)"
    had, where = ran_with(wanted, tmp_path, "-c", asked).stdout.split()
    assert had.startswith(wanted)
    assert where.startswith(str(tmp_path))


def test_the_flower_before_the_oldest_is_refused_with_what_to_do(tmp_path):
    major, minor = oldest().split(".")[:2]
    ran = ran_with(f"{major}.{int(minor) - 1}", tmp_path, "-c", "import kasync.live.flower")
    assert ran.returncode == 1
    assert f"kasync.live.flower needs Flower {major}.{minor} or newer" in ran.stderr.splitlines()[-1]
    assert "pip install -U 'kasync[flower]'" in ran.stderr.splitlines()[-1]
