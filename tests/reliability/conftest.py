"""Shared by the reliability tests: a command line in this process, and a disk as small as one likes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

for other in ("data", "simulator", "live", "rules"):  # the worlds and judges of other tests
    sys.path.append(str(Path(__file__).parents[1] / other))


@pytest.fixture
def kasync(capsys, monkeypatch):
    """kasync("run", ...) -> (exit code, what it printed, what it complained)."""
    from kasync.cli import main

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["kasync", *map(str, words)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


class Disk:
    """A file system of its own, in memory."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def mount(self, *options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(self.place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a small disk cannot be mounted here ({done.stderr.strip()})")

    def fill(self, but: int = 0) -> None:
        """Until there is no room but so many bytes."""
        content = self.place / "filler"
        with open(content, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        os.truncate(content, max(0, content.stat().st_size - but))

    def make_read_only(self) -> None:
        self.mount("remount", "ro")


@pytest.fixture
def disk(tmp_path):
    """A disk of one megabyte."""
    made = Disk(tmp_path / "disk")
    made.place.mkdir()
    made.mount("size=1m")
    yield made
    subprocess.run(["umount", "--lazy", str(made.place)], check=False)  # a live checkpoint is held until we end
