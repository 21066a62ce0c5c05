"""Fetching of Flower replies such that no client can hold up the others.

Flower's pull blocks while a reply is half uploaded, for minutes if its sender was killed. So pulling has a thread of
its own; and when a pull takes longer than `patience`, everything it asked for is followed one by one, each in its own
thread, so that only what is stuck stays stuck.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

log = logging.getLogger("kasync.live")
THREADS = 64  # that follow single replies


class Mailbox:
    """Watches message ids and puts their replies into `replies`."""

    def __init__(self, grid: Grid, poll: float = 0.3, patience: float = 5.0) -> None:
        self.grid, self.poll, self.patience = grid, poll, patience
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.watched: set[str] = set()  # asked for in common
        self.followed: set[str] = set()  # asked for one by one
        self.fetched: deque[tuple[str, str]] = deque(maxlen=1000)  # the last ones
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="kasync-mailbox", daemon=True)

    def __enter__(self) -> Mailbox:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()

    def watch(self, message: str) -> None:
        with self.lock:
            self.watched.add(message)

    def forget(self, message: str) -> None:
        with self.lock:
            self.watched.discard(message)
            self.followed.discard(message)

    def take(self, timeout: float) -> list[Message]:
        """The replies that are here, waiting a while for the first."""
        taken = []
        try:
            taken.append(self.replies.get(timeout=timeout))
            while True:
                taken.append(self.replies.get_nowait())
        except queue.Empty:
            return taken

    def _watch(self) -> None:
        while not self.closed.wait(self.poll):
            with self.lock:
                asked = set(self.watched)
            if not asked:
                continue
            pull = threading.Thread(target=self._pull, args=(asked,), name="kasync-pull", daemon=True)
            pull.start()
            pull.join(self.patience)
            if pull.is_alive():
                self._follow(asked)

    def _follow(self, asked: set[str]) -> None:
        """Something among these is stuck: from now on, ask for each alone."""
        with self.lock:
            stuck = sorted(asked & self.watched)
            self.watched -= asked
            self.followed |= set(stuck)
        log.warning("a reply takes long to fetch; %d outstanding replies are fetched one by one", len(stuck))
        for first in range(min(THREADS, len(stuck))):
            threading.Thread(target=self._ask, args=(stuck[first::THREADS],), name="kasync-follow", daemon=True).start()

    def _ask(self, messages: list[str]) -> None:
        left = list(messages)
        while left and not self.closed.wait(self.poll):
            for message in left:
                self._pull({message})
            with self.lock:
                left = [message for message in left if message in self.followed]

    def _pull(self, asked: Iterable[str]) -> None:
        try:
            found = list(self.grid.pull_messages(list(asked)))
        except Exception as problem:  # the SuperLink may be away for a while
            log.warning("replies cannot be fetched (%s: %s); trying again", type(problem).__name__, problem)
            time.sleep(self.poll)
            return
        for message in found:
            about = message.metadata.reply_to_message_id
            name = (about, message.metadata.message_id)
            with self.lock:
                self.watched.discard(about)
                self.followed.discard(about)
                known = name in self.fetched
                self.fetched.append(name)
            if not known:  # else it was fetched twice, not sent twice
                self.replies.put(message)
