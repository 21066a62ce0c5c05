"""Threads that compute clients' work while the server makes its next steps.

A client's gradient depends only on the model version it received and on its batch, and who delivers when is known in
advance. So the work on a version is given out as soon as the version exists, and is waited for only when somebody
delivers it: other threads compute while this one applies the rule, and every number is the same as one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

import torch

MOST = 4  # pieces given out and not begun; more would only keep more versions of the model
FEW = 2  # left over where a thread takes part: several pieces, then several steps, each find their code in cache


@dataclass(eq=False)
class Piece:
    """Some clients' work, and the slots its results go to."""

    slots: frozenset[int]
    do: Callable[[], None]
    undone: Lock = field(default_factory=Lock)  # held until it is done
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.undone.acquire()

    def run(self) -> None:
        """Do it in another thread than the one that waits for it."""
        try:
            self.do()
        except BaseException as error:  # it comes out where the work is waited for
            self.error = error
        self.undone.release()

    def wait(self) -> None:
        """Return when it is done; what went wrong comes out here."""
        with self.undone:
            if self.error is not None:
                raise self.error


@dataclass(eq=False)
class Ahead:
    """Work that was given out and that nobody has needed yet."""

    others: ThreadPoolExecutor | None  # None: everything is done at once, by this thread
    most: int = 0  # threads among the others
    pieces: deque[Piece] = field(default_factory=deque)  # given out and not known to be done
    waiting: deque[Piece] = field(default_factory=deque)  # those of them that nobody has begun
    helping: int = 0  # threads that look for something to begin
    changing: Lock = field(default_factory=Lock)  # held while these two change

    @classmethod
    def beside(cls, threads: int) -> Ahead:
        """As many threads in all, this one among them."""
        if threads < 2:
            return cls(None)
        return cls(ThreadPoolExecutor(threads - 1, initializer=torch.set_num_threads, initargs=(1,)), threads - 1)

    def give(self, slots: Iterable[int], do: Callable[[], None]) -> None:
        """Have this done some time; where too much waits already, take part in it."""
        if self.others is None:
            return do()
        while self.pieces and not self.pieces[0].undone.locked():
            self.pieces.popleft().wait()
        piece = Piece(frozenset(slots), do)
        self.pieces.append(piece)
        with self.changing:
            self.waiting.append(piece)
            called = self.helping < self.most
            self.helping += called
        if called:
            self.others.submit(self._help)
        if len(self.pieces) > MOST + self.most:
            self._take_part()
            while len(self.waiting) > FEW:
                self._take_part()

    def need(self, slots: Iterable[int]) -> None:
        """Return when the work on these slots is done."""
        wanted = frozenset(slots)
        while any(not wanted.isdisjoint(piece.slots) for piece in self.pieces):
            self._take_part()

    def finish(self) -> None:
        """Return when everything is done."""
        while self.pieces:
            self._take_part()

    def _take_part(self) -> None:
        """Do the first piece nobody has begun, or wait for the first of those begun."""
        with self.changing:
            piece = self.waiting.popleft() if self.waiting else None
        if piece is None:
            return self.pieces.popleft().wait()
        self.pieces.remove(piece)
        piece.do()

    def _help(self) -> None:
        """Do what waits until nothing does: a thread is woken seldom and not for every piece."""
        while True:
            with self.changing:
                if not self.waiting:
                    self.helping -= 1
                    return
                piece = self.waiting.popleft()
            piece.run()
