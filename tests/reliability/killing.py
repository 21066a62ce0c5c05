"""Kills a program again and again at random moments and looks at what is left of it.

A warm process imports everything once and forks; each fork lives one life of the program. Most lives end by SIGKILL at
a drawn moment; the next one starts from what is on disk. When the program has come to its end, its folder is compared
with that of an uninterrupted life, and it begins again in a new folder until it was killed often enough.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

PATIENCE = 120.0  # seconds after which a life that was let alone counts as stuck


class Program(Protocol):
    """Something that can be started again in its folder until it has come to its end."""

    may_remain: str  # the end of file names that an end may or may not leave, "" for none

    def live(self, folder: Path) -> None:
        """One life, in a process of its own; it goes on where the last one was killed."""

    def story(self, folder: Path) -> Any:
        """Everything that must be the same whether it was killed or not."""

    def after_death(self, folder: Path, seen: dict[str, Any]) -> list[str]:
        """What is wrong with the folder of a killed life; `seen` is kept from death to death."""


@dataclass
class Told:
    """What was seen."""

    kills: int = 0
    campaigns: int = 0  # how often the program came to its end
    wrong: list[str] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)  # seconds of life, of the killed ones
    seconds: float = 0.0


def hunt(make: Callable[[], Program], folder: Path, kills: int, seed: int = 0) -> Told:
    """Kill at least so often."""
    began, draw, told = time.monotonic(), random.Random(seed), Told()
    program = make()
    quiet = folder / "quiet"
    quiet.mkdir(parents=True)
    start = time.monotonic()
    end_of(life(program, quiet), None)
    whole = time.monotonic() - start
    expected, files = program.story(quiet), names(quiet, program.may_remain)
    while told.kills < kills and not told.wrong:
        told.campaigns += 1
        here = folder / f"campaign{told.campaigns}"
        here.mkdir()
        campaign(make(), here, draw, whole, 1.5 / kills, told)
        if program.story(here) != expected:
            told.wrong.append(f"campaign {told.campaigns}: other numbers than the uninterrupted life")
        if found := set(names(here, program.may_remain)) ^ set(files):
            told.wrong.append(f"campaign {told.campaigns}: these files are too many or missing: {sorted(found)}")
    told.seconds = round(time.monotonic() - began, 1)
    return told


def campaign(program: Program, folder: Path, draw: random.Random, whole: float, more: float, told: Told) -> None:
    """Kill until a life comes to its end; later lives of a campaign are given more time, so that one does."""
    seen: dict[str, Any] = {}
    for attempt in range(1000):
        moment = draw.uniform(0.0, 0.4 + more * attempt) * whole
        child = life(program, folder)
        if end_of(child, moment):
            return
        told.kills += 1
        told.moments.append(round(moment, 4))
        told.wrong += [f"kill {told.kills}: {wrong}" for wrong in program.after_death(folder, seen)]
        told.wrong += [f"kill {told.kills}: {count} processes left" for count in [left_in(child)] if count]
    told.wrong.append("it never came to its end")


def life(program: Program, folder: Path) -> int:
    """A fork that lives once; its number is also that of its process group."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            program.live(folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    return child


def end_of(child: int, moment: float | None) -> bool:
    """Wait, and kill at the moment if there is one; whether it came to its end before."""
    until = time.monotonic() + (PATIENCE if moment is None else moment)
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status != 0:
                raise RuntimeError(f"a life ended with status {status}; see above")
            return True
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if moment is None:
        raise RuntimeError(f"a life that was let alone did not end in {PATIENCE:.0f} s")
    return False


def left_in(group: int) -> int:
    """How many processes of a dead one's group are still there after a moment."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return 0
        time.sleep(0.05)
    return 1


def names(folder: Path, may_remain: str) -> list[str]:
    """Every file that counts, hidden ones too."""
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in found if not may_remain or not name.endswith(may_remain))


def main(kills: int, folder: Path, wanted: list[str]) -> None:
    """Hunt each program and print what was seen as json, one line each; "ray" finds its cluster in $KASYNC_RAY."""
    for other in ("simulator", "live", "rules"):
        sys.path.append(str(Path(__file__).parents[1] / other))
    for name in wanted:
        if name == "ray":
            from ray_clients import Rayed as program
        else:
            from killed_programs import PROGRAMS

            program = PROGRAMS[name]
        print(json.dumps({"program": name, **asdict(hunt(program, folder / name, kills))}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
