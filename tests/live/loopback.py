"""A real federation for a test: SuperLink, SuperNodes and Flower's own CLI, with TLS and keys, here or on hosts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

BIN = Path(sys.executable).parent
APP = Path(__file__).parents[2] / "examples" / "flower_app"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Processes:
    """Processes of this test; all of them, and whatever they started, are gone when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"KASYNC_TEST={uuid.uuid4()}"
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "KASYNC_TEST": self.mark.split("=")[1],
        }

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + 30
        while (living := self.all()) and time.monotonic() < deadline:
            self.kill(living)
            time.sleep(0.2)

    def start(self, name: str, *command: str | Path, host: str | None = None) -> subprocess.Popen[bytes]:
        """Start a program of Flower, on a host where one is named; what it says goes into a file of this name."""
        with open(self.log(name), "ab") as said:
            return subprocess.Popen(
                [*inside(host), BIN / command[0], *map(str, command[1:])],
                stdout=said,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def run(self, *command: str | Path, timeout: float = 300, host: str | None = None) -> str:
        done = subprocess.run(
            [*inside(host), BIN / command[0], *map(str, command[1:])],
            env=self.environment,
            cwd=self.folder,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.log(name).read_text(errors="replace") if self.log(name).exists() else ""

    def all(self) -> list[int]:
        """Every living process that carries this test's mark."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def family(self, process: subprocess.Popen[bytes]) -> list[int]:
        """A process and everything it started, directly or not."""
        parents = {}
        for pid in self.all():
            with contextlib.suppress(OSError):
                parents[pid] = int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
        found = {process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found)

    def named(self, program: str) -> list[int]:
        """The living processes that run this program."""
        found = []
        for pid in self.all():
            with contextlib.suppress(OSError):
                if program.encode() in (Path("/proc") / str(pid) / "cmdline").read_bytes():
                    found.append(pid)
        return found

    @staticmethod
    def kill(pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def inside(host: str | None) -> list[str]:
    """What comes before a command that is to run in a network namespace."""
    return [] if host is None else ["ip", "netns", "exec", host]


def wait_for(what: str, happened: Callable[[], object], timeout: float = 300) -> None:
    deadline = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout} s"
        time.sleep(0.3)


class Loopback:
    """A SuperLink with TLS and node authentication, and an app to run on it."""

    def __init__(
        self, processes: Processes, nodes: int, address: str = "127.0.0.1", host: str | None = None, database: str = ""
    ) -> None:
        self.processes, self.folder = processes, processes.folder
        self.address, self.host, self.database = address, host, database
        self.port = free_port()
        self.app = self.folder / "app"
        shutil.copytree(APP, self.app, ignore=shutil.ignore_patterns("__pycache__", "keys"))
        self.keys = self.folder / "keys"
        processes.run("python", self.app / "make_keys.py", self.keys, "--nodes", str(nodes), "--host", address)
        home = self.folder / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n[superlink.loopback]\naddress = "{address}:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.pem"}"\n'
        )
        self.superlink = self.start_superlink()
        wait_for("the SuperLink's start", self._answers, 300)

    def start_superlink(self) -> subprocess.Popen[bytes]:
        return self.processes.start(
            "superlink",
            "flower-superlink",
            *("--ssl-ca-certfile", self.keys / "ca.pem"),
            *("--ssl-certfile", self.keys / "superlink.pem"),
            *("--ssl-keyfile", self.keys / "superlink.key"),
            *("--host", self.address, "--port", str(self.port)),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *(("--database", self.database) if self.database else ()),
            host=self.host,
        )

    def _answers(self) -> bool:
        """Asked where it runs: other hosts are not ours to reach."""
        ask = f"import socket; raise SystemExit(socket.socket().connect_ex(('{self.address}', {self.port})))"
        return not subprocess.run([*inside(self.host), sys.executable, "-c", ask], check=False).returncode

    def trusted_by(self, authority: Path | None) -> bool:
        """Whether somebody who trusts this authority gets a TLS connection to the SuperLink."""
        context = ssl.create_default_context(cafile=authority)
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="127.0.0.1"):
                    return True
            except ssl.SSLError:
                return False

    def register(self, number: int) -> str:
        """Let this SuperNode in; its id."""
        key = self.keys / f"supernode-{number}.pub"
        return re.findall(
            r"SuperNode (\d+) registered",
            self.processes.run("flwr", "supernode", "register", key, "loopback", host=self.host),
        )[0]

    def start_node(self, number: int, config: str, host: str | None = None) -> subprocess.Popen[bytes]:
        return self.processes.start(
            f"supernode-{number}",
            "flower-supernode",
            *("--root-certificates", self.keys / "ca.pem"),
            *("--superlink", f"{self.address}:{self.port}"),
            *("--auth-supernode-private-key", self.keys / f"supernode-{number}"),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", config),
            host=host,
        )

    def start_run(self, name: str, config: str) -> subprocess.Popen[bytes]:
        run = ("flwr", "run", self.app, "loopback", "--stream", "--run-config", config)
        return self.processes.start(name, *run, host=self.host)

    def updates(self, name: str) -> int:
        """The last update that a run has told of."""
        told = re.findall(r"update (\d+):", self.processes.said(name))
        return int(told[-1]) if told else 0
