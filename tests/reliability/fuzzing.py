"""Feeds many thousands of damaged inputs to the readers: samples or a sentence, never a traceback or a pickle.

python tests/reliability/fuzzing.py 10000            each kind of input so often
python tests/reliability/fuzzing.py 1 settings 4711  one input again, with its traceback
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import resource
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from kasync.errors import UserError

LONGEST = 6000  # characters of a sentence: a value of one's own may be quoted in it
ROOM = 1 << 30  # bytes of address space that reading may take beyond what the process has
PEAK = 32 << 20  # bytes that reading one of our small inputs may allocate
M_ARENA_MAX = -8  # of mallopt in glibc: heaps, each of which reserves 64 MiB of address space


class Target(Protocol):
    """One kind of input: how it is made and how it is read."""

    def make(self, draw: Random) -> Any:
        """A spoilt input, written where `read` finds it."""

    def read(self, made: Any) -> None:
        """Read it as a person's command would; UserError refuses."""


@dataclass
class Told:
    """What became of the inputs of one kind."""

    tried: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    peak: int = 0  # bytes
    sentences: Counter[str] = field(default_factory=Counter)  # how they begin
    wrong: list[tuple[int, str]] = field(default_factory=list)  # (number, what)


def fuzz(target: Target, count: int, canary: Path, first: int = 0, measured: int = 10) -> Told:
    """Inputs first..first+count-1; the memory of every `measured`-th is traced."""
    told, began = Told(), time.monotonic()
    for number in range(first, first + count):
        draw = Random(number)
        told.tried += 1
        traced = number % measured == 0
        made = target.make(draw)
        wrong = ""
        if traced:
            tracemalloc.start()
        try:
            target.read(made)
            told.read += 1
        except UserError as problem:
            sentence = str(problem)
            told.refused += 1
            told.sentences[sentence[:30]] += 1
            wrong = "" if is_sentence(sentence) else f"not a sentence: {sentence[:300]!r}"
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt):
                raise
            wrong = "".join(traceback.format_exception(problem, limit=-6))
        if traced:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            told.peak = max(told.peak, peak)
            wrong = wrong or ("" if peak < PEAK else f"it took {peak >> 20} MiB")
        if canary.exists():
            canary.rmdir()
            wrong = "a pickle was executed"
        if wrong:
            told.wrong.append((number, wrong))
    told.seconds = time.monotonic() - began
    return told


def is_sentence(text: str) -> bool:
    return "\n" not in text and 10 < len(text) < LONGEST


@contextlib.contextmanager
def little_room() -> Any:
    """No more address space than there is now and a bit."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main(count: int, wanted: list[str], first: int = 0) -> int:
    """Fuzz, print the figures; the exit code."""
    for other in ("data", "simulator"):
        sys.path.append(str(Path(__file__).parents[1] / other))
    import torch
    from fuzz_targets import TARGETS

    torch.set_num_threads(1)  # a thread's stack and heap take address space, of which there is little
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)  # threads of finished runs linger until they are collected
    warnings.simplefilter("ignore")
    failed, rows = False, []
    with tempfile.TemporaryDirectory() as place:
        for name in wanted or list(TARGETS):
            folder = Path(place) / name.replace(" ", "-")
            folder.mkdir()
            target = TARGETS[name](folder)
            with little_room():
                told = fuzz(target, count, folder / "canary", first)
            rows.append((name, told))
            kinds: dict[str, tuple[int, int, str]] = {}
            for number, wrong in told.wrong:
                key = wrong.strip().splitlines()[-1][:80]
                kinds[key] = (kinds.get(key, (0,))[0] + 1, *(kinds[key][1:] if key in kinds else (number, wrong)))  # type: ignore[assignment]
            for times, number, wrong in kinds.values():
                failed = True
                print(f"{name} {number} (and {times - 1} like it):\n{wrong}", flush=True)
            print(json.dumps(figures(name, told)), flush=True)
    print(f"{'inputs':<14}{'tried':>8}{'read':>8}{'refused':>9}{'wrong':>7}{'peak MiB':>10}{'seconds':>9}")
    for name, told in rows:
        print(
            f"{name:<14}{told.tried:>8}{told.read:>8}{told.refused:>9}{len(told.wrong):>7}"
            f"{told.peak / 2**20:>10.1f}{told.seconds:>9.1f}"
        )
    return 1 if failed else 0


def figures(name: str, told: Told) -> dict[str, Any]:
    return {"inputs": name, "refused_by": dict(told.sentences.most_common(6))}


if __name__ == "__main__":
    sys.exit(
        main(
            int(sys.argv[1]) if len(sys.argv) > 1 else 10_000,
            sys.argv[2:3],
            int(sys.argv[3]) if len(sys.argv) > 3 else 0,
        )
    )
