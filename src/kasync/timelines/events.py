"""The event loops of the clock: everybody at work, some of the clients at work, and synchronous rounds.

run_async     all clients work all the time; the first k uploads make an update (K-async)
run_limited   so many clients work at a time, and others are chosen for those that are done
run_open      work starts at given moments, whoever is done
run_sync      everybody gets every model; the k fastest are used
run_full      k clients are drawn for each step; the server waits for all of them
run_rounds    more than k are chosen for each step; the k fastest are used, as long as they keep the deadline
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kasync.counter import Stream
from kasync.timelines.availability import FAILURES, Attempt, Fleet, Outcome
from kasync.timelines.durations import Durations
from kasync.timelines.selection import Pool
from kasync.timelines.uniform import subsets

Reals = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """What happened, up to the last step that k clients reached."""

    clients: NDArray[np.int32]  # [steps, k], each row in the order of arrival
    versions: NDArray[np.int32]  # [steps, k]
    times: Reals  # [steps]

    def head(self, steps: int) -> "Recorded":
        """The first steps only."""
        return Recorded(self.clients[:steps], self.versions[:steps], self.times[:steps])


class Queue:
    """The uploads under way, by (finish, order of handing out): look at the first ones, drop them, put new ones in.

    Only the `near` ones, about sqrt(8 places k) of them, are kept sorted; the others wait in an array until the near
    ones run out. So a step costs far less than one look at all of them. A place belongs to a client, or to one of those
    that work at a time.
    """

    def __init__(self, finish: Reals, k: int) -> None:
        self.finish = finish  # [places]; inf: not under way
        self.order = np.arange(len(finish))  # [places]: breaks ties of equal finish
        self.handed_out = len(finish)
        self.near = np.empty(0, dtype=np.int64)  # [near]: places, sorted
        self.near_finish = np.empty(0)  # [near]: theirs
        self.horizon = -math.inf  # whoever finishes before it is near
        self.size = min(len(finish), max(64, 4 * k, math.isqrt(8 * len(finish) * k)))

    def first(self, count: int) -> tuple[Places, Reals]:
        """The first `count` places, fewer if there are no more, and when they finish."""
        if len(self.near) < count:
            self._look_further(count)
        return self.near[:count], self.near_finish[:count]

    def drop(self, count: int) -> None:
        """The first `count` are done."""
        self.finish[self.near[:count]] = math.inf
        self.near, self.near_finish = self.near[count:], self.near_finish[count:]

    def put(self, places: Places, finish: Reals) -> None:
        """Places [n] that begin again, in this order."""
        self.finish[places] = finish
        self.order[places] = np.arange(self.handed_out, self.handed_out + len(places))
        self.handed_out += len(places)
        soon = np.flatnonzero(finish < self.horizon)
        soon = soon[np.argsort(finish[soon], kind="stable")]
        # To the right of equal finishes, because those were handed out before.
        where = np.searchsorted(self.near_finish, finish[soon], side="right")
        self.near = np.insert(self.near, where, places[soon])
        self.near_finish = np.insert(self.near_finish, where, finish[soon])

    def _look_further(self, count: int) -> None:
        """Make the first `size` of all near, at least `count`; among equal finishes, those handed out first."""
        size = min(len(self.finish), max(self.size, count))
        self.horizon = float(np.partition(self.finish, size - 1)[size - 1])
        before = np.flatnonzero(self.finish < self.horizon)
        ties = np.flatnonzero(self.finish == self.horizon) if math.isfinite(self.horizon) else before[:0]
        room = size - len(before)
        if len(ties) > room:
            ties = ties[np.argpartition(self.order[ties], room - 1)[:room]]
        near = np.concatenate([before, ties])
        self.near = near[np.lexsort((self.order[near], self.finish[near]))]
        self.near_finish = self.finish[self.near]


def run_async(clients: int, k: int, steps: int, fleet: Fleet) -> Recorded:
    """K-async: the first k uploads make an update, and only their clients get the new model.

    It ends after the given steps, or when fewer than k clients will ever deliver again.
    """
    everyone = np.arange(clients)
    outcome = fleet.deliver(everyone, np.zeros(clients, dtype=np.int64), np.zeros(clients))
    piece, pulled = outcome.piece, outcome.pulled  # [clients]
    version = np.where(pulled == 0, 0, -1)  # [clients]; -1: to be found from the moment of the pull
    queue = Queue(outcome.finish, k)
    out = Recorded(np.empty((steps, k), np.int32), np.empty((steps, k), np.int32), np.empty(steps))
    for step in range(steps):
        who, ends = queue.first(k)
        if len(who) < k:
            return out.head(step)
        moment = float(ends[-1])
        queue.drop(k)
        held = version[who]
        if not fleet.reliable:
            # A version is current from its update on; an update at the very moment of the pull comes before it.
            found = np.searchsorted(out.times[:step], pulled[who], side="right")
            held = np.where(held < 0, found, held)
        out.clients[step], out.versions[step], out.times[step] = who, held, moment
        outcome = fleet.deliver(who, piece[who], np.full(k, moment))
        piece[who], pulled[who] = outcome.piece, outcome.pulled
        version[who] = _version_after(step, moment, outcome)
        queue.put(who, outcome.finish)
    return out


def _version_after(step: int, moment: float, outcome: Outcome) -> NDArray[np.int64]:
    """[k]: the new model for those that went on with it at once, -1 for those that pulled later."""
    return np.where(outcome.pulled == moment, step + 1, -1)


@dataclass(frozen=True)
class Dispatch:
    """How a server keeps some of its clients at work."""

    concurrency: int  # clients at work at a time; of no meaning with `starts`
    at_arrival: bool = True  # a client that is done is replaced at once, not only after the update
    previous_model: int = 0  # of those replaced after an update, so many get the model before it
    starts: Durations | None = None  # seconds from one start to the next, whoever is done
    deadline: float = math.inf  # seconds after its choice when the server gives a client up
    max_staleness: int | None = None  # what is older is dropped when it arrives


@dataclass
class Wasted:
    """Pieces of work that no update used, and starts for which nobody could be chosen."""

    failed: int = 0  # lost, interrupted, later than the deadline, or more than the k that a round needs
    too_stale: int = 0
    skipped: int = 0


class _Chosen:
    """What the clients that a server chooses will do."""

    def __init__(self, fleet: Fleet, clients: int, dispatch: Dispatch, pool: Pool) -> None:
        self.fleet, self.dispatch, self.pool = fleet, dispatch, pool
        self.piece = np.zeros(clients, dtype=np.int64)  # [clients]: number of the next piece of work

    def attempt(self, who: Places, chosen: Reals) -> Attempt:
        """What clients [n] chosen at these moments will do."""
        asked = chosen
        if self.pool.back:
            asked = np.maximum(chosen, [self.pool.back.get(client, 0.0) for client in who.tolist()])
        one = self.fleet.attempt(who, self.piece[who], asked)
        limit = chosen + self.dispatch.deadline
        late = one.end > limit
        if late.any():
            end = np.where(late, limit, one.end)
            return Attempt(one.start, end, one.arrives & ~late, np.where(late, limit, one.again), one.absent)
        return one

    @staticmethod
    def back_of(who: Places, one: Attempt, moment: Reals) -> Reals:
        """[n]: until when clients are away, by the absences that had begun at a moment of each; 0: they are not."""
        back = np.zeros(len(who))
        place_of = {client: place for place, client in enumerate(who.tolist())} if one.absent else {}
        for client, left, until in one.absent:
            place = np.array([place_of[each] for each in client.tolist()], dtype=np.int64)
            away = (left <= moment[place]) & np.isfinite(until)
            back[place[away]] = until[away]
        return back


class _Active(_Chosen):
    """Those at work: places [concurrency], each with the client that has it."""

    def __init__(self, fleet: Fleet, clients: int, k: int, dispatch: Dispatch, pool: Pool) -> None:
        super().__init__(fleet, clients, dispatch, pool)
        size = dispatch.concurrency
        self.queue = Queue(np.full(size, math.inf), k)
        self.client = np.zeros(size, dtype=np.int64)
        self.begun = np.zeros(size)  # when the client was chosen
        self.pulled = np.zeros(size)
        self.version = np.zeros(size, dtype=np.int64)  # -1: to be found from the moment of the pull
        self.arrives = np.zeros(size, dtype=bool)
        self.gone = np.zeros(size, dtype=bool)  # after its end the client never comes again
        self.back = np.zeros(size)  # until when the client is away after its end
        self.places = list(range(size))  # free ones
        self.number = 0  # choices so far
        self.vacancies = size  # to be filled as soon as somebody can be chosen
        self.batch = 64  # events to look at together

    def begin(self, who: Places, chosen: Reals, one: Attempt, back: Reals, version: int | Places) -> None:
        """Clients [n] start, in this order, on one model version or on versions [n]."""
        places = np.array(self.places[len(self.places) - len(who) :], dtype=np.int64)
        del self.places[len(self.places) - len(who) :]
        self.client[places], self.begun[places], self.pulled[places] = who, chosen, one.start
        self.version[places] = np.where(one.start == chosen, version, -1)
        self.arrives[places], self.back[places] = one.arrives, back
        self.gone[places] = ~one.arrives & np.isinf(one.again)
        self.piece[who] += 1
        self.number += len(who)
        self.queue.put(places, one.end)

    def fill(self, time: float, version: int, delivered: NDArray[np.int32] | None = None) -> None:
        """Choose somebody for every vacancy, as long as anybody is idle; `delivered` are those of the last update."""
        if not self.vacancies or not self.pool.idle:
            return
        who = self.pool.several(self.number, time, self.vacancies)
        chosen = np.full(len(who), time)
        self.vacancies -= len(who)
        given: int | Places = version
        if self.dispatch.previous_model and delivered is not None:
            # Nobody gets a model that is older than the work it has just delivered.
            old = (np.arange(len(who)) < self.dispatch.previous_model) & ~np.isin(who, delivered)
            given = np.where(old, version - 1, version)
        one = self.attempt(who, chosen)
        self.begin(who, chosen, one, self.back_of(who, one, one.end), given)


def run_limited(
    clients: int, k: int, steps: int, fleet: Fleet, dispatch: Dispatch, pool: Pool
) -> tuple[Recorded, Wasted]:
    """K-async with `concurrency` clients at work; it ends early when too few of them ever deliver again.

    A client whose work is used waits until the update is made; one whose work came to nothing can be chosen again at
    once, and its place is filled at once. With `at_arrival` so is the place of one whose work is used: by a client that
    gets the current model, which after the last of the k is the new one.
    """
    out = Recorded(np.empty((steps, k), np.int32), np.empty((steps, k), np.int32), np.empty(steps))
    active, wasted, barren = _Active(fleet, clients, k, dispatch, pool), Wasted(), 0
    active.fill(0.0, 0)
    for step in range(steps):
        pool.step = step
        done = 0
        while done < k:
            events = _advance(active, out.times[:step], k - done)
            if events is None or barren > FAILURES * dispatch.concurrency:
                return out.head(step), wasted
            found = len(events.clients)
            out.clients[step, done : done + found] = events.clients
            out.versions[step, done : done + found] = events.versions
            out.times[step] = events.time
            done += found
            wasted.failed += events.failed
            wasted.too_stale += events.too_stale
            barren = 0 if found else barren + events.failed + events.too_stale
        pool.step = step + 1
        pool.free_all(out.clients[step])
        active.vacancies += 1 if dispatch.at_arrival else k
        active.fill(float(out.times[step]), step + 1, out.clients[step])
    return out, wasted


@dataclass(frozen=True)
class _Events:
    """Some ends of work."""

    clients: Places  # [used], in the order of arrival
    versions: Places  # [used]
    time: float  # of the last end
    failed: int
    too_stale: int


def _advance(active: _Active, times: Reals, missing: int) -> _Events | None:
    """Play some events, at most up to the one that completes the update; None when nothing is under way.

    The events are taken together with the replacements that they cause. A replacement that ends before one of the later
    events would have to be among them: from there on everything is undone and left to the next call.
    """
    pool, dispatch, step = active.pool, active.dispatch, len(times)
    wanted = missing + 4 if dispatch.at_arrival else missing + missing // 8 + 4
    places, ends = active.queue.first(min(active.batch, wanted) if pool.lookahead else 1)
    places, ends = places[np.isfinite(ends)], ends[np.isfinite(ends)]
    if not len(places):
        return None
    version = active.version[places]
    version = np.where(version < 0, np.searchsorted(times, active.pulled[places], side="right"), version)
    arrives = active.arrives[places]
    used = arrives if dispatch.max_staleness is None else arrives & (step - version <= dispatch.max_staleness)
    complete = np.flatnonzero(np.cumsum(used) == missing)[:1]  # the event with which the update is made
    count = int(complete[0]) + 1 if len(complete) else len(places)
    places, ends, version = places[:count], ends[:count], version[:count]
    arrives, used = arrives[:count], used[:count]
    fills = np.ones(count, dtype=bool) if dispatch.at_arrival else ~used  # whose place is filled at once
    fills[count - len(complete) :] = False  # after the update
    clients = active.client[places]
    if not pool.lookahead:
        pool.hear(clients[used], (ends - active.begun[places])[used])

    frees = np.flatnonzero(~used & ~active.gone[places])  # whose client can be chosen again
    away = frees[active.back[places[frees]] > ends[frees]]
    pool.back.update(zip(clients[away].tolist(), active.back[places[away]].tolist(), strict=True))
    filled = np.flatnonzero(fills)
    freed = list(zip(frees.tolist(), clients[frees].tolist(), strict=True))
    pool.prepare(active.number, ends[filled])
    if active.vacancies or pool.idle < len(filled):
        starts, vacant = _fill_what_can_be(active, count, fills, ends, freed)
    else:
        starts, vacant = _fill_all(active, filled, ends, freed), None

    kept = len(starts)
    if kept:
        at, who = (np.array(column, dtype=np.int64) for column in zip(*starts, strict=True))
        one = active.attempt(who, ends[at])
        back = active.back_of(who, one, one.end)
        soonest = np.full(count, math.inf)  # [count]: first end of a replacement begun at an event
        np.minimum.at(soonest, at, one.end)
        early = np.flatnonzero(ends[1:] > np.minimum.accumulate(soonest)[:-1])
        if len(early):
            count = int(early[0]) + 1
            kept = int(np.searchsorted(at, count))
            _undo(pool, starts, freed, count)
    active.batch = min(max(16, count + count // 3), 1 << 14)
    active.vacancies = vacant[count - 1] if vacant else 0
    active.queue.drop(count)
    active.places.extend(places[:count].tolist())
    if pool.lookahead:
        pool.hear(clients[:count][used[:count]], ends[:0])
    if kept:
        one = Attempt(one.start[:kept], one.end[:kept], one.arrives[:kept], one.again[:kept])
        active.begin(who[:kept], ends[at[:kept]], one, back[:kept], step)
    used, stale = used[:count], int(np.count_nonzero(arrives[:count] & ~used[:count]))
    failed = count - int(np.count_nonzero(used)) - stale
    return _Events(clients[:count][used], version[:count][used], float(ends[count - 1]), failed, stale)


Starts = list[tuple[int, int]]  # event, client


def _fill_all(active: _Active, filled: Places, ends: Reals, freed: Starts) -> Starts:
    """Choose somebody for the place of each of these events, where there are clients enough."""
    pool, moments, events = active.pool, ends[filled].tolist(), filled.tolist()
    chosen: list[int] = []
    for event, client in freed:
        before = bisect_left(events, event)
        chosen += pool.take_each(active.number + len(chosen), moments[len(chosen) : before])
        pool.free(client)
    chosen += pool.take_each(active.number + len(chosen), moments[len(chosen) :])
    return list(zip(events, chosen, strict=True))


def _fill_what_can_be(
    active: _Active, count: int, fills: NDArray[np.bool_], ends: Reals, freed: Starts
) -> tuple[Starts, list[int]]:
    """The same where clients may be too few: also how many places are vacant after each event."""
    starts: Starts = []
    vacancies, vacant, free, moments, fill = active.vacancies, [], dict(freed), ends.tolist(), fills.tolist()
    for event in range(count):
        if event in free:
            active.pool.free(free[event])
        if fill[event]:
            vacancies += 1
            while vacancies and active.pool.idle:
                starts.append((event, active.pool.take(active.number + len(starts), moments[event])))
                vacancies -= 1
        vacant.append(vacancies)
    return starts, vacant


def _undo(pool: Pool, starts: Starts, freed: Starts, count: int) -> None:
    """Take back what the events from `count` on did to the pool, the last first; an event frees before it takes."""
    taken = len(starts)
    for event, client in [*reversed(freed), (-1, -1)]:
        while taken and starts[taken - 1][0] >= max(event, count):
            taken -= 1
            pool.untake(starts[taken][1])
        if event < count:
            return
        pool.unfree(client)


class _Start(NamedTuple):
    """A piece of work that begins, in the order in which a heap sorts them by their ends."""

    end: float
    order: int
    client: int
    chosen: float
    pulled: float
    arrives: bool
    gone: bool  # after its end the client never comes again
    back: float  # until when the client is away after its end
    version: int = 0


def run_open(clients: int, k: int, steps: int, fleet: Fleet, dispatch: Dispatch, pool: Pool) -> tuple[Recorded, Wasted]:
    """Open arrivals: work starts at moments that the clock gives, and nobody is replaced.

    A start for which no client is idle is skipped. An end at the very moment of a start comes before it.
    """
    assert dispatch.starts is not None
    out = Recorded(np.empty((steps, k), np.int32), np.empty((steps, k), np.int32), np.empty(steps))
    chosen, wasted, times = _Chosen(fleet, clients, dispatch, pool), Wasted(), list[float]()
    moments, planned = _Moments(dispatch.starts, fleet.seed), deque[_Start]()
    heap: list[_Start] = []
    number, done, barren, stale = 0, 0, 0, math.inf if dispatch.max_staleness is None else dispatch.max_staleness
    while len(times) < steps and barren <= FAILURES * max(k, len(heap)):
        moment, step = moments.first(), len(times)
        if not heap or heap[0].end > moment:
            if not planned and pool.idle:
                planned.extend(_planned(chosen, number, moments, min(pool.idle, 4 * k if pool.lookahead else 1)))
            moments.drop()
            if planned:
                one = planned.popleft()
                heappush(heap, one._replace(version=step if one.pulled == one.chosen else -1))
                chosen.piece[one.client] += 1
                number += 1
            else:
                wasted.skipped, barren = wasted.skipped + 1, barren + 1
            continue
        one = heappop(heap)
        version = one.version if one.version >= 0 else bisect_right(times, one.pulled)
        if one.arrives and step - version <= stale:
            out.clients[step, done], out.versions[step, done] = one.client, version
            pool.hear(np.array([one.client]), np.array([one.end - one.chosen]))
            done, barren = done + 1, 0
            if done < k:
                continue
        # Somebody can be chosen again: what was planned for later starts is not settled any more.
        for later in reversed(planned):
            pool.untake(later.client)
        planned.clear()
        if done == k:
            out.times[step], done, pool.step = one.end, 0, step + 1
            times.append(one.end)
            pool.free_all(out.clients[step])
            continue
        barren, wasted.failed = barren + 1, wasted.failed + (not one.arrives)
        wasted.too_stale += one.arrives
        if not one.gone:
            if one.back > one.end:
                pool.back[one.client] = one.back
            pool.free(one.client)
    return out.head(len(times)), wasted


class _Moments:
    """The moments of an open arrival process, in blocks."""

    def __init__(self, gaps: Durations, seed: int) -> None:
        self.blocks = self._ahead(gaps, seed)
        self.times: deque[float] = deque()

    @staticmethod
    def _ahead(gaps: Durations, seed: int) -> Iterator[Reals]:
        now = 0.0
        for block in count():
            number = np.arange(block << 12, (block + 1) << 12)
            times = np.cumsum(np.concatenate([[now], gaps.seconds(seed, number, 0 * number, Stream.STARTS)]))[1:]
            now = float(times[-1])
            yield times

    def first(self) -> float:
        """The next moment."""
        if not self.times:
            self.times.extend(next(self.blocks).tolist())
        return self.times[0]

    def next(self, most: int) -> Reals:
        """Up to so many of the next moments, at least one."""
        self.first()
        return np.array([self.times[place] for place in range(min(most, len(self.times)))])

    def drop(self) -> None:
        """The first one is over."""
        self.times.popleft()


def _planned(chosen: _Chosen, number: int, moments: _Moments, most: int) -> list[_Start]:
    """Clients for the next starts, taken from the pool."""
    at = moments.next(most)
    chosen.pool.prepare(number, at)
    who = np.array(chosen.pool.take_each(number, at.tolist()), dtype=np.int64)
    one = chosen.attempt(who, at)
    back = chosen.back_of(who, one, one.end)
    gone = ~one.arrives & np.isinf(one.again)
    columns = (one.end, np.arange(number, number + len(who)), who, at, one.start, one.arrives, gone, back)
    return [_Start(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


class _Clients:
    """Where the clients are between two broadcasts: the number of their next piece, and until when they are away."""

    def __init__(self, clients: int, fleet: Fleet) -> None:
        self.fleet = fleet
        self.piece = np.zeros(clients, dtype=np.int64)  # [clients]
        self.back = np.zeros(clients)  # [clients]: away until then

    def begin(self, who: NDArray[np.int64], now: float) -> Outcome:
        """Send the model to some clients; those that are away take it when they are back."""
        outcome = self.fleet.deliver(who, self.piece[who], np.maximum(self.back[who], now))
        self.piece[who] = outcome.piece
        return outcome

    def settle(self, outcome: Outcome, moment: float) -> None:
        """Remember the absences that had begun when the step ended; later ones never came about."""
        for who, left, back in outcome.left:
            begun = left <= moment
            np.maximum.at(self.back, who[begun], back[begun])


def run_sync(clients: int, k: int, steps: int, fleet: Fleet) -> Recorded:
    """K-sync: everybody gets the model, the k fastest are used, the others' work is thrown away."""
    out = Recorded(np.empty((steps, k), np.int32), _fresh(steps, k), np.empty(steps))
    state, everyone, now = _Clients(clients, fleet), np.arange(clients), 0.0
    for step in range(steps):
        outcome = state.begin(everyone, now)
        now = float(np.partition(outcome.finish, k - 1)[k - 1])
        if not np.isfinite(now):
            return out.head(step)
        places = np.flatnonzero(outcome.finish <= now)
        places = places[np.argsort(outcome.finish[places], kind="stable")][:k]
        out.clients[step], out.times[step] = places, now
        state.settle(outcome, now)
    return out


def run_full(clients: int, k: int, steps: int, fleet: Fleet) -> Recorded:
    """FedAvg: k clients are drawn, whether they are there or not, and the server waits for all of them.

    Who turns out to have left for good is replaced by another draw, which gets the model at the same moment.
    """
    out = Recorded(np.empty((steps, k), np.int32), _fresh(steps, k), np.empty(steps))
    state, present, now = _Clients(clients, fleet), np.arange(clients), 0.0  # present: not known to be gone
    for step in range(steps):
        who, finish, draw = present[:0], np.empty(0), 0
        while len(who) < k:
            rest = np.setdiff1d(present, who, assume_unique=True) if len(who) else present
            missing = k - len(who)
            if len(rest) < missing:
                return out.head(step)
            drawn = rest[subsets(len(rest), missing, np.asarray([step + (draw << 32)]), fleet.seed)[0]]
            outcome = state.begin(drawn, now)
            state.settle(outcome, np.inf)
            arrives = np.isfinite(outcome.finish)
            who, finish = np.concatenate([who, drawn[arrives]]), np.concatenate([finish, outcome.finish[arrives]])
            draw += 1
            if not arrives.all():
                present = np.setdiff1d(present, drawn[~arrives], assume_unique=True)
        now = float(finish.max())
        out.clients[step], out.times[step] = who[np.argsort(finish, kind="stable")], now
    return out


def run_rounds(
    clients: int, k: int, steps: int, fleet: Fleet, dispatch: Dispatch, pool: Pool
) -> tuple[Recorded, Wasted]:
    """Over-selection: `concurrency` clients are chosen for a step, the first k uploads are used, the rest is dropped.

    A round with fewer than k uploads by the deadline (without one: when all that were chosen are done) is given up,
    and others are chosen. Nobody is replaced within a round.
    """
    out = Recorded(np.empty((steps, k), np.int32), _fresh(steps, k), np.empty(steps))
    chosen, wasted, now, number = _Chosen(fleet, clients, dispatch, pool), Wasted(), 0.0, 0
    for step in range(steps):
        pool.step = step
        for attempt in range(FAILURES + 1):
            who = pool.several(number, now, dispatch.concurrency)
            if len(who) < k or attempt == FAILURES:
                return out.head(step), wasted
            number += len(who)
            one = chosen.attempt(who, np.full(len(who), now))
            chosen.piece[who] += 1
            good = np.flatnonzero(one.arrives)
            good = good[np.argsort(one.end[good], kind="stable")][:k]
            begun, enough = now, len(good) == k
            now = float(one.end[good[-1]] if enough else min(begun + dispatch.deadline, math.inf))
            if not math.isfinite(now):
                now = float(one.end.max())
            if enough:
                out.clients[step], out.times[step] = who[good], now
                pool.hear(who[good], one.end[good] - begun)
            wasted.failed += len(who) - k * enough
            leaves = ~one.arrives & np.isinf(one.again) & (one.end <= now)
            back = chosen.back_of(who, one, np.minimum(one.end, now))
            for client, gone, until in zip(*(x.tolist() for x in (who, leaves, back)), strict=True):
                if until > now:
                    pool.back[client] = until
                if not gone:
                    pool.free(client)
            if enough:
                break
    return out, wasted


def _fresh(steps: int, k: int) -> NDArray[np.int32]:
    """[steps, k]: the version of every delivery is the step's own."""
    return np.repeat(np.arange(steps, dtype=np.int32), k).reshape(steps, k)
