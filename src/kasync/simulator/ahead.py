"""How do clients go on working while the server makes its next steps?

A client's gradient depends only on the model version it received and on its batch, and who delivers when is known in
advance. So the work on a version is given out as soon as the version exists, and is waited for only when somebody
delivers it: other threads compute while this one applies the rule, and every number is the same as one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

MOST = 4  # pieces given out and not begun; more would only keep more versions of the model


@dataclass(frozen=True, eq=False)
class Piece:
    """Some clients' work, and the slots its results go to."""

    slots: frozenset[int]
    do: Callable[[], None]
    future: Future[None]


@dataclass(eq=False)
class Ahead:
    """Work that was given out and that nobody has needed yet."""

    others: ThreadPoolExecutor | None  # None: everything is done at once, by this thread
    pieces: deque[Piece] = field(default_factory=deque)

    @classmethod
    def beside(cls, threads: int) -> Ahead:
        """As many threads in all, this one among them."""
        if threads < 2:
            return cls(None)
        return cls(ThreadPoolExecutor(threads - 1, initializer=torch.set_num_threads, initargs=(1,)))

    def give(self, slots: Iterable[int], do: Callable[[], None]) -> None:
        """Have this done some time; where too much waits already, take part in it."""
        if self.others is None:
            return do()
        while self.pieces and self.pieces[0].future.done():
            self.pieces.popleft().future.result()
        self.pieces.append(Piece(frozenset(slots), do, self.others.submit(do)))
        if len(self.pieces) > MOST:
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
        """Do the first piece nobody has begun, or wait for the first of those begun; an error in it comes out here."""
        for piece in self.pieces:
            if piece.future.cancel():
                self.pieces.remove(piece)
                return piece.do()
        self.pieces.popleft().future.result()
