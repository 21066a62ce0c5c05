"""The judge: K-async by an event loop a person can check by eye, one client and one event at a time."""

import heapq

import numpy as np

from kasync.timelines.availability import Fleet


def naive_async(clients: int, k: int, steps: int, fleet: Fleet):
    """Lists of clients, versions and times, from a heap of (time, kind, order, client): deliveries come first."""
    heap: list[tuple[float, int, int, int]] = []
    piece, version = [0] * clients, [0] * clients
    order = 0

    def begin(client: int, now: float, rank: int, current: int) -> None:
        """Start one piece of work at once, or put down when to try again (kind 1)."""
        one, number = np.array([client]), np.array([piece[client]])
        start, closing = (float(x[0]) for x in fleet.availability.opening(fleet.seed, one, np.array([now])))
        if start == np.inf:
            return
        if start > now:
            heapq.heappush(heap, (start, 1, rank, client))
            return
        version[client] = current
        seconds = float(fleet.seconds(one, number)[0])
        leaves, share, away = (x[0] for x in fleet.dropouts.leaving(fleet.seed, one, number))
        lost = _lost(fleet, client, piece[client])
        piece[client] += 1
        if leaves and start + share * seconds < closing:
            if away != np.inf:
                heapq.heappush(heap, (float(start + share * seconds + away), 1, rank, client))
        elif start + seconds > closing:
            heapq.heappush(heap, (closing, 1, rank, client))
        elif lost:
            heapq.heappush(heap, (start + seconds, 1, rank, client))
        else:
            heapq.heappush(heap, (start + seconds, 0, rank, client))

    for client in range(clients):
        begin(client, 0.0, order, 0)
        order += 1
    rows: list[list[int]] = []
    versions: list[list[int]] = []
    times: list[float] = []
    waiting: list[int] = []
    while heap and len(rows) < steps:
        now, kind, rank, client = heapq.heappop(heap)
        if kind == 1:
            begin(client, now, rank, len(rows))
            continue
        waiting.append(client)
        if len(waiting) == k:
            rows.append(waiting)
            versions.append([version[c] for c in waiting])
            times.append(now)
            for c in waiting:
                begin(c, now, order, len(rows))
                order += 1
            waiting = []
    return rows, versions, times


def naive_sync(clients: int, k: int, steps: int, fleet: Fleet):
    """Lists of clients and times of K-sync: follow every client through every step, remember who is away."""
    piece, back, now = [0] * clients, [0.0] * clients, 0.0
    rows: list[list[int]] = []
    times: list[float] = []
    for _ in range(steps):
        finishes, absences = [], []
        for client in range(clients):
            finish, piece[client], away = _follow(fleet, client, piece[client], max(now, back[client]))
            finishes.append((finish, client))
            absences += [(client, left, until) for left, until in away]
        first = sorted(finishes)[:k]
        if first[-1][0] == np.inf:
            break
        now = first[-1][0]
        rows.append([client for _, client in first])
        times.append(now)
        for client, left, until in absences:
            if left <= now:
                back[client] = max(back[client], until)
    return rows, times


def _follow(fleet: Fleet, client: int, number: int, now: float):
    """(finish, next piece, absences) of one client that may take the model from `now` on."""
    away: list[tuple[float, float]] = []
    while now != np.inf:
        one, this = np.array([client]), np.array([number])
        start, closing = (float(x[0]) for x in fleet.availability.opening(fleet.seed, one, np.array([now])))
        seconds = float(fleet.seconds(one, this)[0])
        leaves, share, length = (x[0] for x in fleet.dropouts.leaving(fleet.seed, one, this))
        number += 1
        if leaves and start + share * seconds < closing:
            now = float(start + share * seconds + length)
            away.append((float(start + share * seconds), now))
        elif start + seconds > closing:
            now = closing
        elif _lost(fleet, client, number - 1):
            now = start + seconds
        else:
            return start + seconds, number, away
    return np.inf, number, away


def _lost(fleet: Fleet, client: int, number: int) -> bool:
    from kasync.counter import Stream, uniforms

    return bool(uniforms(fleet.seed, Stream.LOSSES, client, number) < fleet.lost)


def naive_history(clients):
    """visits, previous and next step, walking through all deliveries."""
    visits, previous, following = (np.full(clients.shape, -1) for _ in range(3))
    seen: dict[int, list[tuple[int, int]]] = {}
    for step, row in enumerate(clients):
        for slot, client in enumerate(row.tolist()):
            places = seen.setdefault(client, [])
            visits[step, slot] = len(places)
            if places:
                previous[step, slot] = places[-1][0]
                following[places[-1]] = step
            places.append((step, slot))
    return visits, previous, following


def naive_held(timeline):
    """Rows and versions alive at each step, counted one by one."""
    rows, versions = [], []
    for now in range(timeline.steps):
        alive = [
            (step, slot)
            for step in range(now, timeline.steps)
            for slot in range(timeline.k)
            if timeline.versions[step, slot] <= now
        ]
        rows.append(len(alive))
        versions.append(len({int(timeline.versions[place]) for place in alive}))
    return rows, versions
