"""Does a run that is killed again and again, at any moment, end with the same numbers as one that is not?"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def one_run(place: str | None) -> list[float]:
    """Every number of a whole run, in a process that may die at any moment."""
    from small_worlds import CLIENTS, make_rule, mlp, vectors

    from kasync import Gradient, simulate, timelines

    simulation = simulate(
        mlp(),
        vectors(),
        make_rule("wkafl", mlp(), vectors()),
        timelines.uniform(CLIENTS, 3, 150, seed=4),
        Gradient(4),
        evaluate_every=5,
        checkpoint=place,
        checkpoint_every=0.0,
    )
    told = [value for record in simulation for value in (record.step, record.loss, record.accuracy or 0.0)]
    return told + simulation.params.tolist()


def in_a_child(place: str | None, result: Path, patience: float | None) -> bool:
    """Run in a forked process and kill it after so many seconds; whether it was killed before it ended."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        result.write_text(json.dumps(one_run(place)))
        os._exit(0)
    deadline = None if patience is None else time.monotonic() + patience
    while deadline is None or time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def kill_again_and_again(folder: str, kills: int) -> None:
    """Print how often a run was killed, and whether it ended as the one that was not."""
    import small_worlds  # noqa: F401  (torch is loaded once, before the forks)

    place = Path(folder) / "run.ckpt"
    began = time.monotonic()
    in_a_child(None, place.with_name("expected"), None)
    whole = time.monotonic() - began
    draw = random.Random(0)
    killed = 0
    for _ in range(kills):
        killed += in_a_child(str(place), place.with_name("result"), draw.uniform(0.05, 0.35) * whole)
    in_a_child(str(place), place.with_name("result"), None)
    left = sorted(path.name for path in Path(folder).iterdir())
    same = place.with_name("result").read_text() == place.with_name("expected").read_text()
    print(json.dumps({"killed": killed, "same": same, "left": left}))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_killed_at_random_moments_gives_the_same_numbers(tmp_path):
    script = [sys.executable, __file__, str(tmp_path), "6"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["same"], told
    assert told["killed"] >= 2, "a run that is not killed shows nothing"
    assert "run.ckpt" in told["left"]


if __name__ == "__main__":
    kill_again_and_again(sys.argv[1], int(sys.argv[2]))
