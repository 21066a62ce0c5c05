"""Rules that every timeline keeps, whoever made it."""

import numpy as np

from kasync.timelines.timeline import Timeline


def broken(timeline: Timeline) -> str:
    """The first rule that a timeline breaks, in words; an empty string for a sound one."""
    if timeline.clients.size == 0:
        return "it has no deliveries"
    if timeline.clients.min() < 0 or timeline.clients.max() >= timeline.population:
        return f"a client number is outside 0 to {timeline.population - 1}"
    if (timeline.previous_step == np.arange(timeline.steps)[:, None]).any():
        return "a client delivers twice at one step"
    if timeline.versions.min() < 0 or timeline.staleness.min() < 0:
        return "a version is negative or newer than its step"
    older = timeline.versions <= timeline.previous_step
    if timeline.copies is not None:
        if ((timeline.previous_step < 0) & timeline.copies).any():
            return "a copy comes before what it copies"
        older = older & ~timeline.copies
    if older.any():
        return "a client delivers on a model older than its last delivery"
    if timeline.local_steps is not None and timeline.local_steps.min() < 1:
        return "a delivery has less than one local step"
    if not np.isfinite(timeline.times).all() or (np.diff(timeline.times, prepend=0.0) < 0).any():
        return "the times do not increase"
    return ""
