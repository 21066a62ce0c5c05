"""Hosts of a test: network namespaces joined by a network of this file, with delay, loss and partitions.

Every host has a tun device; a process of its own passes their packets on, late and not all of them. Needs root.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def possible() -> bool:
    """Whether this machine lets us make hosts."""
    return os.geteuid() == 0 and Path("/dev/net/tun").exists() and not ip("netns", "list", check=False).returncode


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


class Network:
    """Hosts by number, at 10.77.0.1, 10.77.0.2, ...; delay in seconds each way, loss as a share of the packets."""

    def __init__(self, hosts: int, delay: float, loss: float) -> None:
        self.names = [f"kasync{os.getpid() % 10000}h{number}" for number in range(hosts)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(hosts)]
        self.devices: list[int] = []
        for number, name in enumerate(self.names):
            device = f"kt{os.getpid() % 10000}n{number}"
            file = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
            self.devices.append(file)
            ip("netns", "add", name)
            ip("link", "set", device, "netns", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{self.addresses[number]}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(delay), str(loss), *map(str, self.devices)],
            stdin=subprocess.PIPE,
            pass_fds=self.devices,
            text=True,
        )

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for file in self.devices:
            os.close(file)
        for name in self.names:
            ip("netns", "del", name, check=False)

    def cut(self, host: int) -> None:
        """Nothing reaches this host or leaves it."""
        self._tell(f"cut {host}")

    def join(self, host: int) -> None:
        self._tell(f"join {host}")

    def _tell(self, sentence: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{sentence}\n")
        self.process.stdin.flush()


def forward(delay: float, loss: float, devices: list[int]) -> None:
    """Pass packets on until nobody is there to be told."""
    places = {socket.inet_aton(f"10.77.0.{number + 1}"): number for number in range(len(devices))}
    cut: set[int] = set()
    late: list[tuple[float, int, int, bytes]] = []  # when, order, to whom, what
    draw, count = random.Random(0), 0
    poll = select.poll()
    for file in (*devices, sys.stdin.fileno()):
        poll.register(file, select.POLLIN)
    while True:
        wait = None if not late else max(late[0][0] - time.monotonic(), 0.0) * 1e3
        for file, _ in poll.poll(wait):
            if file == sys.stdin.fileno():
                words = sys.stdin.readline().split()
                if not words:
                    return
                (cut.add if words[0] == "cut" else cut.discard)(int(words[1]))
                continue
            packet = os.read(file, 65536)
            to, sender = places.get(packet[16:20]), devices.index(file)
            if to is None or packet[0] >> 4 != 4 or {to, sender} & cut or draw.random() < loss:
                continue
            count += 1
            heapq.heappush(late, (time.monotonic() + delay, count, to, packet))
        while late and late[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(late)
            if to not in cut:
                os.write(devices[to], packet)


if __name__ == "__main__":
    forward(float(sys.argv[1]), float(sys.argv[2]), [int(each) for each in sys.argv[3:]])
