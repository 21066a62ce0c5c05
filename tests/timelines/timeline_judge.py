"""A timeline against plain loops: delivery by delivery with an event simulator, and what is derived from it."""

import numpy as np
import pytest

from kasync.errors import UserError
from kasync.timelines import clock
from kasync.timelines.timeline import inconsistency


def difference(options, simulator, played):
    """Where the clock and a plain simulator differ first; "" where nowhere, None where no step is ever made."""
    getattr(simulator, played)()
    if not simulator.times:
        with pytest.raises(UserError, match=r"at step 0 fewer than k|availability lists"):
            clock(**options, allow_short=True)
        return None
    timeline = clock(**options, allow_short=True)
    if timeline.steps != len(simulator.times):
        return f"{timeline.steps} steps instead of {len(simulator.times)}"
    for step, row in enumerate(simulator.rows):
        found = list(zip(timeline.clients[step].tolist(), timeline.versions[step].tolist(), strict=True))
        if found != row or timeline.times[step] != pytest.approx(simulator.times[step], rel=1e-12):
            return f"at step {step} {found} at {timeline.times[step]} instead of {row} at {simulator.times[step]}"
    for name in ("failed", "too_stale", "skipped") if timeline.steps == options["steps"] else ():
        if name in timeline.settings and timeline.settings[name] != getattr(simulator, name):
            return f"{name} {timeline.settings[name]} instead of {getattr(simulator, name)}"
    return inconsistency(timeline)


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
