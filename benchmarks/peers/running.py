"""Installs, starts, paces and ends a contestant, and reports one that cannot run."""

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


@dataclass(frozen=True)
class Done:
    """What was done in one turn."""

    updates: int
    seconds: float
    processor: float  # seconds of processor time, its children's included

    @property
    def rate(self) -> float:
        return self.updates / self.seconds

    @property
    def thrift(self) -> float:
        """Updates per second of processor time: hardly changed by others on the same machine."""
        return self.updates / self.processor if self.processor > 0 else float("nan")


def processor_seconds(process: int) -> float:
    """Processor time of a process and all its descendants so far; 0 where there is no /proc."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()  # a name may contain spaces
        except OSError:
            continue  # ended meanwhile
        number = int(path.parent.name)
        children.setdefault(int(words[1]), []).append(number)
        ticks[number] = sum(map(int, words[11:15]))  # user and system, its own and of children that ended
    waiting, found = [process], 0
    while waiting:
        number = waiting.pop()
        found += ticks.get(number, 0)
        waiting += children.get(number, [])
    return found / os.sysconf("SC_CLK_TCK")


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

    def turn(self, seconds: float) -> Done:
        """One turn; it ends with the first server step after the time is over."""
        assert self.process.stdin is not None
        before = processor_seconds(self.process.pid)
        try:
            print(seconds, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise CannotRun(f"stopped: {self._last_words()}") from None
        told = self._read()
        return Done(told["updates"], told["seconds"], processor_seconds(self.process.pid) - before)

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
