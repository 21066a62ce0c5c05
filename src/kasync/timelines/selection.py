"""Selection of the next client: uniform, in turn, by availability, least heard first, or a function of the user's.

A `Pool` knows who can be chosen. `take` and `free` can be undone in reverse order, because the event loop looks a few
events ahead and gives back what came too early.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import index

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream, bits, integers, uniforms
from kasync.errors import UserError
from kasync.timelines.availability import Availability

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]

IDLE, TAKEN = 0, 1  # states of a client; one that left for good stays taken
DRAWS = 1024  # of one selection, before the clients are counted through
AT_ONCE = 64  # of them, made for many selections together: at most so many, and as few as usually do
PREPARED = 1 << 14  # selections of one moment that are prepared together


@dataclass(frozen=True)
class Known:
    """What a server knows when it chooses a client."""

    time: float
    step: int
    clients: Ints  # [idle]: who can be chosen, in ascending order
    heard: Ints  # [population]: deliveries used so far
    seconds: Reals  # [population]: from choice to delivery, the last time; nan: never heard
    present: NDArray[np.bool_]  # [idle]: who is there at this moment
    chance: Reals  # [idle]: random numbers in (0, 1), new for every choice


Choice = Callable[[Known], int]


class Pool:
    """The clients that can be chosen; `choose` says which is next."""

    lookahead = True  # whether choices may be made before it is known that they are needed

    def __init__(self, clients: int, seed: int, availability: Availability) -> None:
        self.clients, self.seed, self.availability = clients, seed, availability
        self.state = bytearray(clients)  # of each client: IDLE or TAKEN
        self.view = np.frombuffer(self.state, dtype=np.uint8)  # [clients], of the same bytes
        self.idle = clients
        self.back: dict[int, float] = {}  # until when a client that dropped out is away
        self.step = 0  # updates made so far

    def choose(self, number: int, time: float) -> int:
        """One of the idle, of whom there is at least one; `number` counts all choices."""
        raise NotImplementedError

    def prepare(self, number: int, times: Reals) -> None:
        """Choices number, number + 1, ... will probably be asked for at these times."""

    def take(self, number: int, time: float) -> int:
        """The next client, no longer idle; -1 when nobody is."""
        if not self.idle:
            return -1
        client = self.choose(number, time)
        self.state[client] = TAKEN
        self.idle -= 1
        return client

    def take_each(self, number: int, times: list[float]) -> list[int]:
        """One client at each of these moments; there must be as many that are idle."""
        return [self.take(number + place, time) for place, time in enumerate(times)]

    def several(self, number: int, time: float, most: int) -> Ints:
        """Up to `most` clients, chosen at one moment."""
        chosen: list[int] = []
        while len(chosen) < most and self.idle:
            stop = min(most, len(chosen) + PREPARED)
            self.prepare(number + len(chosen), np.full(min(stop - len(chosen), self.idle), time))
            chosen += self.take_each(number + len(chosen), [time] * min(stop - len(chosen), self.idle))
        return np.array(chosen, dtype=np.int64)

    def untake(self, client: int) -> None:
        """The opposite of `take`; what was done last is undone first."""
        self.state[client] = IDLE
        self.idle += 1

    def free(self, client: int) -> None:
        """The client can be chosen again."""
        self.state[client] = IDLE
        self.idle += 1

    def free_all(self, clients: NDArray[np.integer]) -> None:
        """Several clients, in this order."""
        self.view[clients] = IDLE
        self.idle += len(clients)

    def unfree(self, client: int) -> None:
        """The opposite of `free`."""
        self.state[client] = TAKEN
        self.idle -= 1

    def hear(self, clients: Ints, seconds: Reals) -> None:
        """Work of these clients is used, after so many seconds; without `lookahead`, told before the next choice."""

    def _back(self, clients: Ints) -> Reals:
        """[n]: until when clients are away."""
        return np.array([self.back.get(client, 0.0) for client in clients.tolist()])

    def _opening(self, clients: Ints, time: float) -> Reals:
        """[n]: when each client is there, at `time` or later."""
        asked = np.full(len(clients), time)
        if self.back:
            asked = np.maximum(asked, self._back(clients))
        return self.availability.opening(self.seed, clients, asked)[0]


class Uniform(Pool):
    """Every idle client is equally likely, whether it is there or not."""

    def __init__(self, clients: int, seed: int, availability: Availability) -> None:
        super().__init__(clients, seed, availability)
        self.from_ = 0  # the first selection that is prepared
        self.drawn: list[list[int]] = []  # of each of them, the clients to try

    def prepare(self, number: int, times: Reals) -> None:
        numbers = np.arange(number, number + len(times))[:, None]
        few = np.arange(_enough(self.idle / self.clients))
        self.from_, self.drawn = number, self._draws(numbers, few).tolist()

    def take_each(self, number: int, times: list[float]) -> list[int]:
        state, chosen = self.state, []
        for place, drawn in enumerate(self.drawn[number - self.from_ :][: len(times)], number):
            for client in drawn:
                if not state[client]:
                    break
            else:
                client = self.choose(place, times[place - number])
            state[client] = TAKEN
            chosen.append(client)
        self.idle -= len(chosen)
        return chosen

    def choose(self, number: int, time: float) -> int:
        drawn = self._draws(number, np.arange(DRAWS))
        for client in drawn[self.view[drawn] == IDLE][:1].tolist():
            return client
        return self._counted(np.flatnonzero(self.view == IDLE), number)

    def _draws(self, number: int | Ints, draw: Ints) -> Ints:
        return integers(self.clients, self.seed, Stream.SELECTION, number, draw).astype(np.int64)

    def _counted(self, among: Ints, number: int) -> int:
        """Where draws do not hit the few that are left: the n-th of them, n being one more draw."""
        return int(among[int(bits(self.seed, Stream.SELECTION, number, DRAWS)) % len(among)])


class Available(Uniform):
    """Every idle client that is there is equally likely; when none is, the one that comes first."""

    def __init__(self, clients: int, seed: int, availability: Availability) -> None:
        super().__init__(clients, seed, availability)
        self.share = 0.5  # of the clients that are there, as last seen

    def prepare(self, number: int, times: Reals) -> None:
        if not len(times):
            return
        numbers = np.arange(number, number + len(times))[:, None]
        drawn = self._draws(numbers, np.arange(_enough(self.share * self.idle / self.clients)))
        flat, asked = drawn.ravel(), np.repeat(times, drawn.shape[1])
        present = self.availability.opening(self.seed, flat, asked)[0] <= asked
        self.share = float(present.mean())
        found = present.reshape(drawn.shape)
        self.from_ = number
        self.drawn = [row[there].tolist() for row, there in zip(drawn, found, strict=True)]

    def take_each(self, number: int, times: list[float]) -> list[int]:
        if not self.back:
            return super().take_each(number, times)
        state, back, chosen = self.state, self.back, []
        for place, drawn in enumerate(self.drawn[number - self.from_ :][: len(times)], number):
            time = times[place - number]
            for client in drawn:
                if not state[client] and (client not in back or back[client] <= time):
                    break
            else:
                client = self.choose(place, time)
            state[client] = TAKEN
            chosen.append(client)
        self.idle -= len(chosen)
        return chosen

    def choose(self, number: int, time: float) -> int:
        drawn = self._draws(number, np.arange(DRAWS))
        drawn = drawn[self.view[drawn] == IDLE]
        for client in drawn[self._opening(drawn, time) <= time][:1].tolist():
            return client
        idle = np.flatnonzero(self.view == IDLE)
        comes = self._opening(idle, time)
        there = idle[comes <= time]
        return self._counted(there, number) if len(there) else int(idle[np.argmin(comes)])


class InTurn(Pool):
    """One after the other by number, passing over those that are not idle."""

    def __init__(self, clients: int, seed: int, availability: Availability) -> None:
        super().__init__(clients, seed, availability)
        self.places = [0]  # where the search begins; earlier ones are kept to undo

    def choose(self, number: int, time: float) -> int:
        found = self.state.find(IDLE, self.places[-1])
        client = found if found >= 0 else self.state.find(IDLE)
        if len(self.places) > 1 << 16:
            del self.places[: 1 << 15]
        self.places.append((client + 1) % self.clients)
        return client

    def untake(self, client: int) -> None:
        super().untake(client)
        self.places.pop()


class LeastHeard(Pool):
    """Who delivered least; among equals who has been idle longest, at first in random order."""

    def __init__(self, clients: int, seed: int, availability: Availability) -> None:
        super().__init__(clients, seed, availability)
        order = np.argsort(bits(seed, Stream.SELECTION, np.arange(clients)), kind="stable")
        self.heard = [0] * clients
        self.queues = [deque(order.tolist())]  # by number of deliveries
        self.lowest = 0  # no queue before it holds anybody

    def choose(self, number: int, time: float) -> int:
        while not self.queues[self.lowest]:
            self.lowest += 1
        return self.queues[self.lowest].popleft()

    def untake(self, client: int) -> None:
        super().untake(client)
        self._queue(client).appendleft(client)

    def free(self, client: int) -> None:
        super().free(client)
        self._queue(client).append(client)

    def unfree(self, client: int) -> None:
        super().unfree(client)
        self._queue(client).pop()

    def free_all(self, clients: NDArray[np.integer]) -> None:
        for client in clients.tolist():
            self.free(client)

    def hear(self, clients: Ints, seconds: Reals) -> None:
        for client in clients.tolist():
            self.heard[client] += 1

    def _queue(self, client: int) -> deque[int]:
        heard = self.heard[client]
        while len(self.queues) <= heard:
            self.queues.append(deque())
        self.lowest = min(self.lowest, heard)
        return self.queues[heard]


class NewThenLast(Pool):
    """Who was never chosen, in random order; when there is none, who delivered last, so that the others never work.

    The published program of ACE (2025) lets a client back into its pool only when the pool is empty.
    """

    def __init__(self, clients: int, seed: int, availability: Availability) -> None:
        super().__init__(clients, seed, availability)
        order = np.argsort(bits(seed, Stream.SELECTION, np.arange(clients)), kind="stable")
        self.new, self.done = deque(order.tolist()), list[int]()
        self.was_new: list[bool] = []  # of each choice so far, to undo

    def choose(self, number: int, time: float) -> int:
        self.was_new.append(bool(self.new))
        return self.new.popleft() if self.new else self.done.pop()

    def untake(self, client: int) -> None:
        super().untake(client)
        if self.was_new.pop():
            self.new.appendleft(client)
        else:
            self.done.append(client)

    def free(self, client: int) -> None:
        super().free(client)
        self.done.append(client)

    def unfree(self, client: int) -> None:
        super().unfree(client)
        self.done.remove(client)

    def free_all(self, clients: NDArray[np.integer]) -> None:
        for client in clients.tolist():
            self.free(client)


class Custom(Pool):
    """A function of the user's chooses; each choice costs a look at all clients."""

    lookahead = False

    def __init__(self, clients: int, seed: int, availability: Availability, function: Choice) -> None:
        super().__init__(clients, seed, availability)
        self.function = function
        self.heard = np.zeros(clients, dtype=np.int64)
        self.seconds = np.full(clients, np.nan)

    def choose(self, number: int, time: float) -> int:
        idle = np.flatnonzero(self.view == IDLE)
        present = self._opening(idle, time) <= time
        chance = uniforms(self.seed, Stream.SELECTION, number, idle)
        heard, seconds = self.heard.view(), self.seconds.view()
        heard.flags.writeable = seconds.flags.writeable = False
        answer = self.function(Known(time, self.step, idle, heard, seconds, present, chance))
        try:
            client = index(answer)
        except TypeError:
            client = -1
        if not 0 <= client < self.clients or self.state[client] != IDLE:
            raise UserError(f"select returned {answer!r}: return one of known.clients, who are idle.")
        return client

    def hear(self, clients: Ints, seconds: Reals) -> None:
        self.heard[clients] += 1
        self.seconds[clients] = seconds


def _enough(share: float) -> int:
    """Draws of which one hits such a share of the clients, but for one time in a hundred."""
    return min(AT_ONCE, math.ceil(-4.6 / math.log1p(-min(max(share, 0.05), 0.99))))


SELECTIONS: dict[str, type[Pool]] = {
    "uniform": Uniform,
    "in_turn": InTurn,
    "available": Available,
    "least_heard": LeastHeard,
    "new_then_last": NewThenLast,
}
