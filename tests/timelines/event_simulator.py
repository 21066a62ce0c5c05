"""A plain event simulator of a server and its clients, one event at a time, to compare the fast clock with.

Written from docs/timelines.md and from the hash in the docstring of kasync.counter; it imports nothing of kasync.
A fleet is told in plain functions: laws give the seconds of (seed, stream, client, piece), windows when it is there.
"""

import heapq
import math
from bisect import bisect_right
from dataclasses import dataclass, field
from types import SimpleNamespace

WORD = (1 << 64) - 1
DURATIONS, SPEEDS, PHASES, DROPOUTS, ABSENCES, LOSSES, SELECTION, PARTS, TRANSFERS, STARTS = (
    2,
    3,
    4,
    5,
    6,
    7,
    12,
    13,
    15,
    20,
)
DRAWS, IN_A_ROW = 1024, 1000


# chance


def bits(seed, stream, client, visit=0, draw=0):
    state = 0
    for word in (seed, stream, client, visit, draw):
        state = (state + word + 0x9E3779B97F4A7C15) & WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
        state ^= state >> 31
    return state


def chance(seed, stream, client, visit=0, draw=0):
    return ((bits(seed, stream, client, visit, draw) >> 12) + 0.5) * 2.0**-52


def score(seed, stream, client, visit):
    radius = math.sqrt(-2.0 * math.log(chance(seed, stream, client, visit, 0)))
    return radius * math.cos(2.0 * math.pi * chance(seed, stream, client, visit, 1))


def part(seed, stream, number):
    return bits(seed, PARTS, stream, number)


# laws: seconds of (seed, stream, client, piece)


def constant(each):
    return lambda seed, stream, client, piece: each


def exponential(mean):
    return lambda seed, stream, client, piece: -mean * math.log(chance(seed, stream, client, piece))


def shifted(shift, mean):
    return lambda seed, stream, client, piece: shift - mean * math.log(chance(seed, stream, client, piece))


def log_normal(median, spread):
    return lambda seed, stream, client, piece: median * math.exp(spread * score(seed, stream, client, piece))


def pareto(least, shape):
    return lambda seed, stream, client, piece: least * chance(seed, stream, client, piece) ** (-1.0 / shape)


def uniform(low, high):
    return lambda seed, stream, client, piece: low + (high - low) * chance(seed, stream, client, piece)


def whole(low, high):
    return lambda seed, stream, client, piece: math.floor(low + (high + 1 - low) * chance(seed, stream, client, piece))


def half_normal(deviation):
    return lambda seed, stream, client, piece: deviation * max(abs(score(seed, stream, client, piece)), 1e-12)


def recorded(rows):
    return lambda seed, stream, client, piece: rows[client % len(rows)][piece % len(rows[client % len(rows)])]


def times(law, factor):
    return lambda *arguments: law(*arguments) * factor


def classes(laws, shares):
    def seconds(seed, stream, client, piece):
        u, below, number = chance(part(seed, stream, 0), stream, client, 0), 0.0, 0
        while number < len(laws) - 1 and u >= below + shares[number]:
            below, number = below + shares[number], number + 1
        return laws[number](part(seed, stream, number + 1), stream, client, piece)

    return seconds


def total(*laws):
    def seconds(seed, stream, client, piece):
        return sum(law(part(seed, stream, number), stream, client, piece) for number, law in enumerate(laws))

    return seconds


def transfer(kilobytes, down, up):
    def seconds(seed, stream, client, piece):
        got = kilobytes / down(part(seed, stream, 0), stream, client, piece)
        return got + kilobytes / up(part(seed, stream, 1), stream, client, piece)

    return seconds


# windows: the first (begin, end) of a client that is not over at a moment, or None


def always(seed, client, now):
    return now, math.inf


def repeating(length, every):
    def window(seed, client, now):
        phase = every * (chance(seed, PHASES, client) - 1.0)
        lap = 0
        while now >= phase + lap * every + length:
            lap += 1
        return phase + lap * every, phase + lap * every + length

    return window


def listed(rows, repeat=None):
    mine = {}
    for client, begin, end in sorted(rows):
        mine.setdefault(client, []).append((begin, end))

    def window(seed, client, now):
        laps = [0] if repeat is None else range(max(0, int(now // repeat) - 1), int(now // repeat) + 2)
        found = [
            (begin + lap * (repeat or 0), end + lap * (repeat or 0))
            for lap in laps
            for begin, end in mine.get(client, [])
        ]
        return min((one for one in found if one[1] > now), default=None)

    return window


@dataclass
class Job:
    """One client's piece of work, as the server knows it, and what it will do next."""

    client: int
    order: int
    chosen: float
    life: object  # yields (moment, what) until it is over
    version: int | None = None  # None: of the moment it was taken
    taken: float = math.inf
    absences: list = field(default_factory=list)  # (from, until)


@dataclass
class Simulator:
    clients: int
    k: int
    steps: int
    law: object
    seed: int = 0
    speeds: object = None  # [clients]
    shares: object = None  # [clients]: work as a multiple of the ordinary
    link: object = None  # law of the seconds down and up
    window: object = always
    leave: tuple = (0.0, None)  # chance of a drop-out, law of the absence (None: for good)
    lost: float = 0.0
    resumed: bool = False
    concurrency: int | None = None
    restart: str = "arrival"
    previous_model: int = 0
    starts: object = None
    select: object = "uniform"
    deadline: float = math.inf
    max_staleness: float = math.inf
    rows: list = field(default_factory=list)  # of (client, version), in the order of arrival
    times: list = field(default_factory=list)
    failed: int = 0
    too_stale: int = 0
    skipped: int = 0

    def __post_init__(self):
        everybody = range(self.clients)
        self.idle = set(everybody)
        self.pieces, self.heard = [0] * self.clients, [0] * self.clients
        self.away = [0.0] * self.clients
        self.last_seconds = [math.nan] * self.clients
        ranked = sorted(everybody, key=lambda client: bits(self.seed, SELECTION, client))
        self.idle_since = {client: place - self.clients for place, client in enumerate(ranked)}
        self.freed = self.choices = self.turn = self.order = 0
        self.heap = []

    # a client

    def need(self, client, piece):
        seconds = self.law(self.seed, DURATIONS, client, piece)
        if self.shares is not None:
            seconds *= self.shares[client]
        if self.speeds is not None:
            seconds /= self.speeds[client]
        return seconds if self.link is None else seconds + self.link(self.seed, TRANSFERS, client, piece)

    def there(self, client, now):
        """(from when on, until when) the client is there next, or None."""
        found = self.window(self.seed, client, now) if now < math.inf else None
        return None if found is None else (max(found[0], now), found[1])

    def life(self, client, now):
        """What happens to one piece of work: taken, left, back, then sent, lost, cut, or gone."""
        piece = self.pieces[client]
        self.pieces[client] += 1
        rest = self.need(client, piece)
        leaves = chance(self.seed, DROPOUTS, client, piece) < self.leave[0]
        until_leaving = rest * chance(self.seed, DROPOUTS, client, piece, 1) if leaves else math.inf
        is_lost = chance(self.seed, LOSSES, client, piece) < self.lost
        first = True
        while True:
            here = self.there(client, now)
            if here is None:
                yield now, "gone"
                return
            now, closing = here
            if first:
                yield now, "taken"
                first = False
            ends = now + min(rest, until_leaving)
            if until_leaving < rest and (ends < closing or (self.resumed and ends == closing)):
                rest, until_leaving, now = rest - until_leaving, math.inf, ends
                law = self.leave[1]
                if law is None:
                    yield now, "gone"
                    return
                absence = law(self.seed, ABSENCES, client, piece)
                yield now, ("left", now + absence)
                now += absence
                if not self.resumed:
                    yield math.nan, "cut"  # it came to nothing when the client left
                    return
                continue
            if until_leaving >= rest or not self.resumed:
                if now + rest <= closing:
                    yield now + rest, "lost" if is_lost else "sent"
                    return
                if not self.resumed:
                    yield closing, "cut"
                    return
            rest, until_leaving, now = rest - (closing - now), until_leaving - (closing - now), closing

    # the server's choice

    def free(self, client):
        self.idle.add(client)
        self.idle_since[client] = self.freed
        self.freed += 1

    def choose(self, now):
        client = self.next_client(now)
        self.choices += 1
        self.idle.remove(client)
        return client

    def comes(self, client, now):
        here = self.there(client, max(now, self.away[client]))
        return math.inf if here is None else here[0]

    def next_client(self, now):
        if self.select == "in_turn":
            later = [client for client in self.idle if client >= self.turn]
            client = min(later or self.idle)
            self.turn = (client + 1) % self.clients
            return client
        if self.select == "least_heard":
            return min(self.idle, key=lambda client: (self.heard[client], self.idle_since[client]))
        if self.select == "new_then_last":
            new = [client for client in self.idle if not self.pieces[client]]
            if new:
                return min(new, key=lambda client: bits(self.seed, SELECTION, client))
            return max(self.idle, key=lambda client: self.idle_since[client])
        if callable(self.select):
            return self.select(self.known(now))
        wanted = self.idle if self.select == "uniform" else {c for c in self.idle if self.comes(c, now) <= now}
        if not wanted:
            return min(self.idle, key=lambda client: (self.comes(client, now), client))
        for draw in range(DRAWS):
            client = bits(self.seed, SELECTION, self.choices, draw) % self.clients
            if client in wanted:
                return client
        return sorted(wanted)[bits(self.seed, SELECTION, self.choices, DRAWS) % len(wanted)]

    def known(self, now):
        """What a user's function is told, as lists."""
        idle = sorted(self.idle)
        return SimpleNamespace(
            time=now,
            step=len(self.times),
            clients=idle,
            heard=list(self.heard),
            seconds=list(self.last_seconds),
            present=[self.comes(client, now) <= now for client in idle],
            chance=[chance(self.seed, SELECTION, self.choices, client) for client in idle],
        )

    # what happens when

    def send(self, client, now, version):
        """The model goes to a client; what becomes of it stands in the heap from now on."""
        job = Job(client, self.order, now, self.life(client, max(now, self.away[client])), None)
        self.order += 1
        self.go_on(job, version)
        return job

    def go_on(self, job, version=None):
        """Put down the next thing that happens to a job, or that the server gives up on it before."""
        moment, what = next(job.life)
        if what == "taken":
            job.taken = moment
            job.version = version if moment == job.chosen else None
            moment, what = next(job.life)
        limit = job.chosen + self.deadline
        if moment > limit:
            moment, what = limit, "late"
        heapq.heappush(self.heap, (moment, job.order, what, job))

    def happens(self, remember=True):
        """The next thing that happens, (moment, what, job); None where it does not end the job."""
        moment, _, what, job = heapq.heappop(self.heap)
        if not isinstance(what, tuple):
            return moment, what, job
        job.absences.append((moment, what[1]))
        if remember:
            self.away[job.client] = what[1]
        if not self.resumed:
            return moment, "cut", job
        self.go_on(job)
        return None

    def play(self):
        """Asynchronous: limited concurrency, or open arrivals."""
        vacancies = self.concurrency or 0
        start, starts, barren, waiting = math.inf, 0, 0, []
        if self.starts is not None:
            start = self.starts(self.seed, STARTS, 0, 0)

        def fill(now, version, delivered=()):
            nonlocal vacancies
            for place in range(vacancies):
                if not self.idle:
                    return
                vacancies -= 1
                client = self.choose(now)
                older = place < self.previous_model and bool(delivered) and client not in delivered
                self.send(client, now, version - older)

        fill(0.0, 0)
        while len(self.times) < self.steps:
            most = IN_A_ROW * (self.concurrency if self.starts is None else max(self.k, len(self.heap)))
            if barren > most or not (self.heap or self.starts):
                break
            if self.starts and (not self.heap or self.heap[0][0] > start):
                if self.idle:
                    self.send(self.choose(start), start, len(self.times))
                else:
                    self.skipped, barren = self.skipped + 1, barren + 1
                starts += 1
                start += self.starts(self.seed, STARTS, starts, 0)
                continue
            ended = self.happens()
            if ended is None:
                continue
            now, what, job = ended
            step = len(self.times)
            version = bisect_right(self.times, job.taken) if job.version is None else job.version
            if what == "sent" and step - version <= self.max_staleness:
                barren = 0
                waiting.append((job.client, version))
                self.heard[job.client] += 1
                self.last_seconds[job.client] = now - job.chosen
                if len(waiting) == self.k:
                    self.rows.append(waiting)
                    self.times.append(now)
                    delivered = [client for client, _ in waiting]
                    for client in delivered:
                        self.free(client)
                    waiting = []
                    if self.starts is None:
                        vacancies += self.k if self.restart == "update" else 1
                        fill(now, step + 1, delivered)
                elif self.restart == "arrival" and self.starts is None:
                    vacancies += 1
                    fill(now, step)
                continue
            barren += 1
            self.too_stale += what == "sent"
            self.failed += what != "sent"
            if what != "gone":
                self.free(job.client)
            if self.starts is None:
                vacancies += 1
                fill(now, step)
        return self

    def rounds(self):
        """Over-selection: `concurrency` clients are chosen for a step, the first k are used."""
        now = 0.0
        while len(self.times) < self.steps:
            for _ in range(IN_A_ROW):
                jobs = []
                while len(jobs) < self.concurrency and self.idle:
                    jobs.append(self.send(self.choose(now), now, len(self.times)))
                if len(jobs) < self.k:
                    return self
                ended = {}
                while self.heap:
                    if (one := self.happens(remember=False)) is not None:
                        ended[one[2].order] = one[:2]
                sent = sorted((ended[job.order][0], job.order, job) for job in jobs if ended[job.order][1] == "sent")
                begun, enough = now, len(sent) >= self.k
                if enough:
                    now = sent[self.k - 1][0]
                    self.rows.append([(job.client, len(self.times)) for _, _, job in sent[: self.k]])
                    self.times.append(now)
                    for moment, _, job in sent[: self.k]:
                        self.heard[job.client] += 1
                        self.last_seconds[job.client] = moment - begun
                else:
                    now = (
                        begun + self.deadline
                        if self.deadline < math.inf
                        else max(moment for moment, *_ in ended.values())
                    )
                self.failed += len(jobs) - self.k * enough
                for job in jobs:
                    moment, what = ended[job.order]
                    for left, until in job.absences:  # what had not begun when the step ended never came about
                        self.away[job.client] = until if left <= now else self.away[job.client]
                    if not (what == "gone" and moment <= now):
                        self.free(job.client)
                if enough:
                    break
            else:
                return self
        return self

    # everybody at work

    def upload(self, client, now):
        """(upload, model taken) of a client that tries until an upload arrives; the absences on the way."""
        absences = []
        for _ in range(IN_A_ROW):
            taken = math.inf
            for moment, what in self.life(client, now):
                if what == "taken":
                    taken = moment
                elif what == "sent":
                    return moment, taken, absences
                elif what == "gone":
                    return math.inf, taken, [*absences, (moment, math.inf)]
                elif isinstance(what, tuple):
                    absences.append((moment, what[1]))
                    now = what[1]
                elif what == "lost" or not math.isnan(moment):
                    now = moment
        return math.inf, taken, absences

    def everybody(self):
        """K-async with all clients at work; whose work came to nothing takes the model of that moment."""
        heap = []

        def begin(client, now, version):
            upload, taken, _ = self.upload(client, now)
            heapq.heappush(heap, (upload, self.order, client, taken, version if taken == now else None))
            self.order += 1

        for client in range(self.clients):
            begin(client, 0.0, 0)
        while len(self.times) < self.steps:
            first = [heapq.heappop(heap) for _ in range(self.k)]
            now = first[-1][0]
            if now == math.inf:
                break
            row = []
            for _, _, client, taken, version in first:
                row.append((client, bisect_right(self.times, taken) if version is None else version))
            self.rows.append(row)
            self.times.append(now)
            for client, _ in row:
                begin(client, now, len(self.times))
        return self

    def synchronous(self):
        """K-sync: everybody gets every model, the k fastest are used."""
        now = 0.0
        while len(self.times) < self.steps:
            made = [(*self.upload(client, max(now, self.away[client])), client) for client in range(self.clients)]
            first = sorted((upload, client) for upload, _, _, client in made)[: self.k]
            if first[-1][0] == math.inf:
                break
            now = first[-1][0]
            self.rows.append([(client, len(self.times)) for _, client in first])
            self.times.append(now)
            for _, _, absences, client in made:
                for left, until in absences:
                    if left <= now:
                        self.away[client] = max(self.away[client], until)
        return self
