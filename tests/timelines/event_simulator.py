"""An event simulator of limited concurrency to compare the fast one with: one heap, one client and one event at a time.

Written from the description in docs/timelines.md, not from the package: it shares with it the chance (seconds, windows,
drop-outs, losses and selection draws as functions of client and number) and nothing of what happens when.
"""

import heapq
import math
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from kasync.counter import Stream, bits, integers, uniforms

DRAWS = 1024


@dataclass
class Judge:
    clients: int
    k: int
    steps: int
    fleet: object  # the chance of it: durations, windows, drop-outs, losses
    concurrency: int
    restart: str = "arrival"
    select: object = "uniform"
    deadline: float = math.inf
    max_staleness: float = math.inf
    idle: set = field(default_factory=set)
    rows: list = field(default_factory=list)  # of (client, version), in the order of arrival
    times: list = field(default_factory=list)

    def __post_init__(self):
        self.idle = set(range(self.clients))
        self.piece = [0] * self.clients
        self.away = [0.0] * self.clients  # until when a client that dropped out is away
        self.heard = [0] * self.clients
        self.seconds = [math.nan] * self.clients
        keys = [int(bits(self.fleet.seed, Stream.SELECTION, client)) for client in range(self.clients)]
        ranked = sorted(range(self.clients), key=lambda client: keys[client])
        self.idle_since = {client: place - self.clients for place, client in enumerate(ranked)}
        self.counter = 0  # of everything that happens
        self.choices = 0
        self.turn = 0

    # who is next

    def comes(self, client, now):
        asked = np.array([max(now, self.away[client])])
        return float(self.fleet.availability.opening(self.fleet.seed, np.array([client]), asked)[0][0])

    def choose(self, now):
        """The next client, or None."""
        if not self.idle:
            return None
        client = self.by_rule(now)
        self.choices += 1
        self.idle.remove(client)
        return client

    def by_rule(self, now):
        if self.select == "in_turn":
            client = next(c % self.clients for c in range(self.turn, 2 * self.clients) if c % self.clients in self.idle)
            self.turn = (client + 1) % self.clients
            return client
        if self.select == "least_heard":
            return min(self.idle, key=lambda client: (self.heard[client], self.idle_since[client]))
        if self.select == "new_then_last":
            new = [client for client in self.idle if not self.piece[client]]
            if new:
                return min(new, key=lambda client: int(bits(self.fleet.seed, Stream.SELECTION, client)))
            return max(self.idle, key=lambda client: self.idle_since[client])
        seed, number = self.fleet.seed, self.choices
        if callable(self.select):
            return self.select(self.known(now))
        wanted = self.idle if self.select == "uniform" else {c for c in self.idle if self.comes(c, now) <= now}
        if not wanted:
            return min(sorted(self.idle), key=lambda client: self.comes(client, now))
        for attempt in range(DRAWS):
            drawn = int(integers(self.clients, seed, Stream.SELECTION, number, attempt))
            if drawn in wanted:
                return drawn
        return sorted(wanted)[int(bits(seed, Stream.SELECTION, number, DRAWS)) % len(wanted)]

    def known(self, now):
        from kasync.timelines.selection import Known

        idle = np.array(sorted(self.idle))
        present = np.array([self.comes(client, now) <= now for client in idle])
        chance = uniforms(self.fleet.seed, Stream.SELECTION, self.choices, idle)
        return Known(now, len(self.times), idle, np.array(self.heard), np.array(self.seconds), present, chance)

    # what becomes of a piece of work

    def follow(self, client, now):
        """(model taken at, end, whether it arrives, whether the client is gone, away until) of one piece of work."""
        fleet, number = self.fleet, self.piece[client]
        self.piece[client] += 1
        one, this = np.array([client]), np.array([number])
        need = float(fleet.seconds(one, this)[0])
        leaves, share, away = (x[0] for x in fleet.dropouts.leaving(fleet.seed, one, this))
        lost = bool(uniforms(fleet.seed, Stream.LOSSES, client, number) < fleet.lost)
        start = self.comes(client, now)
        if start == math.inf:
            return start, max(now, self.away[client]), False, True, 0.0
        leave_after = float(share) * need if leaves else math.inf
        end, arrives, gone, back = self.work(client, start, need, leave_after, float(away))
        if end > now + self.deadline:
            left = back - float(away) if back else math.inf
            return start, now + self.deadline, False, False, back if left <= now + self.deadline else 0.0
        return start, end, arrives and not lost, gone, back

    def work(self, client, start, need, leave_after, away):
        """(end, whether it is finished, whether the client is gone, away until), second by second of presence."""
        now, done, back = start, 0.0, 0.0
        opening = self.fleet.availability.opening
        while True:
            begin, closing = (float(x[0]) for x in opening(self.fleet.seed, np.array([client]), np.array([now])))
            if begin == math.inf:
                return now, False, True, back
            goal = leave_after if leave_after < math.inf else need
            until = begin + (goal - done)
            if leave_after < math.inf and (until < closing or (self.fleet.resumed and until <= closing)):
                if not self.fleet.resumed or away == math.inf:
                    return until, False, away == math.inf, 0.0 if away == math.inf else until + away
                now, done, leave_after, back = until + away, goal, math.inf, until + away
                continue
            if not self.fleet.resumed and leave_after < math.inf:
                until = begin + need
            if until <= closing:
                return until, True, False, back
            if not self.fleet.resumed:
                return closing, False, False, back
            done += closing - begin
            now = closing

    def free(self, client):
        self.idle.add(client)
        self.idle_since[client] = self.counter
        self.counter += 1

    # asynchronous: events in the order of their time, then of the choice that led to them

    def play(self):
        heap, vacancies, order, barren = [], self.concurrency, 0, 0

        def fill(now, version):
            nonlocal vacancies, order
            while vacancies:
                client = self.choose(now)
                if client is None:
                    return
                vacancies -= 1
                start, end, arrives, gone, back = self.follow(client, now)
                held = version if start == now else None
                heapq.heappush(heap, (end, order, client, now, start, held, arrives, gone, back))
                order += 1

        fill(0.0, 0)
        waiting = []
        while heap and len(self.times) < self.steps and barren <= 1000 * self.concurrency:
            now, _, client, chosen, start, held, arrives, gone, back = heapq.heappop(heap)
            version = bisect_right(self.times, start) if held is None else held
            step = len(self.times)
            if arrives and step - version <= self.max_staleness:
                barren = 0
                waiting.append((client, version))
                self.heard[client] += 1
                self.seconds[client] = now - chosen
                if len(waiting) == self.k:
                    self.rows.append(waiting)
                    self.times.append(now)
                    for delivered, _ in waiting:
                        self.free(delivered)
                    waiting = []
                    vacancies += self.k if self.restart == "update" else 1
                    fill(now, step + 1)
                elif self.restart == "arrival":
                    vacancies += 1
                    fill(now, step)
                continue
            barren += 1
            if not gone:
                self.away[client] = max(self.away[client], back)
                self.free(client)
            vacancies += 1
            fill(now, step)
        return self

    # synchronous: more than k are chosen, the first k are used

    def rounds(self):
        now = 0.0
        while len(self.times) < self.steps:
            for _ in range(1000):
                chosen = []
                while len(chosen) < self.concurrency and self.idle:
                    chosen.append(self.choose(now))
                if len(chosen) < self.k:
                    return self
                begun = now
                ends = [(*self.follow(client, begun)[1:], client) for client in chosen]
                good = sorted(((end, place) for place, (end, fine, *_) in enumerate(ends) if fine))[: self.k]
                enough = len(good) == self.k
                if enough:
                    now = good[-1][0]
                    self.rows.append([(chosen[place], len(self.times)) for _, place in good])
                    self.times.append(now)
                    for end, place in good:
                        self.heard[chosen[place]] += 1
                        self.seconds[chosen[place]] = end - begun
                else:
                    now = begun + self.deadline if self.deadline < math.inf else max(end for end, *_ in ends)
                for end, _, gone, back, client in ends:
                    if end <= now and back > now:
                        self.away[client] = back
                    if not (gone and end <= now):
                        self.free(client)
                if enough:
                    break
            else:
                return self
        return self
