"""How is a contestant installed, started, given turns and ended, and what is said when it cannot run?"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 600.0  # seconds until a contestant must have reported


@dataclass(frozen=True)
class Contestant:
    """Who runs: a script beside this file, what pip must install for it, and its surroundings."""

    name: str
    script: str
    package: str = ""  # nothing: the Python that runs this file
    threads: int = 1
    surroundings: dict[str, str] = field(default_factory=dict)


class CannotRun(Exception):
    """A contestant did not install or did not run; the message says why."""


def python_of(contestant: Contestant, venvs: Path) -> str:
    """The Python that has the contestant's package; its environment is made where there is none."""
    import torch

    if not contestant.package:
        return sys.executable
    folder = venvs / re.sub(r"[^\w.]+", "-", contestant.package)
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"installing {contestant.package} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = [contestant.package, f"torch=={torch.__version__.split('+')[0]}"]  # everybody computes with the same
        done = subprocess.run([python, "-m", "pip", "install", "-q", *wanted], capture_output=True, text=True)
        if done.returncode:
            raise CannotRun(f"does not install: {last_line(done.stderr)}")
        (folder / "installed").touch()
    return str(python)


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


class Running:
    """A contestant's process."""

    def __init__(self, contestant: Contestant, python: str, task: Path) -> None:
        threads = str(contestant.threads)
        given = {"PEERS_TASK": str(task), "PEERS_THREADS": threads, "OMP_NUM_THREADS": threads}
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        given |= {"PYTHONPATH": os.pathsep.join(paths), **contestant.surroundings}
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process runs
        self.process = subprocess.Popen(
            [python, str(HERE / contestant.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **given},
        )
        self.facts: dict[str, str] = self._read()

    def turn(self, seconds: float) -> tuple[int, float]:
        """Client updates and seconds of one turn; it ends with the first server step after the time is over."""
        assert self.process.stdin is not None
        try:
            print(seconds, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise CannotRun(f"stopped: {self._last_words()}") from None
        told = self._read()
        return told["updates"], told["seconds"]

    def end(self) -> None:
        """Close its input, which is how it knows; take it down if it does not listen."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> dict:
        assert self.process.stdout is not None
        watch = threading.Timer(PATIENCE, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            self.process.wait()
            raise CannotRun(f"does not run: {self._last_words()}")
        return json.loads(line)

    def _last_words(self) -> str:
        self.log.seek(0)
        return last_line(self.log.read())
