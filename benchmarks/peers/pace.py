"""Stops and starts the loops of other libraries in turns, so that several can be timed side by side.

A contestant runs in a process of its own and calls `done` after every server step. There it waits until it is asked to
go on: a line with a number on its standard input is a turn of that many seconds, the end of the input is the end.
"""

from __future__ import annotations

import json
import os
import sys
import time


class Pace:
    """Counts client updates and reports them, one JSON line for each turn."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints must not get between the reports
        self.updates, self.steps, self.began, self.until = 0, 0, 0.0, -1.0
        self.facts: dict[str, str] = {}

    def ready(self, **facts: str) -> None:
        """Tell what runs here (version, mode, changes) and wait for the first turn."""
        self._say(facts)
        self._wait()

    def done(self, updates: int) -> None:
        """A server step that used this many client updates is over."""
        self.updates, self.steps = self.updates + updates, self.steps + 1
        now = time.perf_counter()
        if now >= self.until:
            self._say({"updates": self.updates, "steps": self.steps, "seconds": now - self.began})
            self._wait()

    def _say(self, told: dict) -> None:
        print(json.dumps(told), file=self.out, flush=True)

    def _wait(self) -> None:
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        self.updates, self.steps, self.began = 0, 0, time.perf_counter()
        self.until = self.began + float(line)
