"""Does a program that is killed again and again end as one that was let alone, with nothing lost, doubled or left?"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
PROGRAMS = ["simulate", "reproduce", "tune", "flower, all", "flower, two of three"]
HUNTER = str(Path(__file__).with_name("killing.py"))


def hunted(kills: int, folder: Path, programs: list[str]) -> dict[str, dict]:
    """What the hunter saw of each program; it is a process of its own, since it forks."""
    words = [sys.executable, HUNTER, str(kills), str(folder), *programs]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row.pop("program"): row for row in rows}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return hunted(3, tmp_path_factory.mktemp("killed"), PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_a_few_times_it_ends_as_if_nothing_had_happened(program, few):
    assert few[program]["wrong"] == []
    assert few[program]["kills"] >= 3


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_sixty_times_it_ends_as_if_nothing_had_happened(program, tmp_path, capsys):
    told = hunted(60, tmp_path, [program])[program]
    with capsys.disabled():
        print(f"\n{program}: {told['kills']} kills in {told['campaigns']} campaigns, {told['seconds']} s")
    assert told["wrong"] == []
    assert told["kills"] >= 60
