"""The oldest and the newest Flower that pyproject.toml allows: the strategy's tests, with each of them in turn."""

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


@pytest.mark.parametrize("version", [oldest, newest])
def test_the_strategy_works_with_this_flower(version, tmp_path):
    wanted = version()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, f"flwr~={wanted}.0" if wanted.count(".") == 1 else f"flwr=={wanted}"], check=True)
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    ran = subprocess.run(
        command, cwd=Path(__file__).parent, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout or "100%" in ran.stdout
