"""One table of every kind of timeline, and hypothesis strategies over it."""

import event_simulator as plain
from hypothesis import strategies as st

from kasync import timelines
from kasync.timelines import Dropouts, Intervals, Repeating, durations

DURATIONS = {
    "constant": durations.constant(1.5),
    "exponential": durations.exponential(2.0),
    "shifted exponential": durations.shifted_exponential(1.0, 0.5),
    "log-normal": durations.log_normal(1.0, 1.0),
    "pareto": durations.pareto(1.0, 1.2),
    "trace": durations.trace({0: [1.0, 2.0], 1: [0.5], 2: [3.0, 1.0, 1.0]}),
}

PLAIN = {  # the same, for the event simulator
    "constant": plain.constant(1.5),
    "exponential": plain.exponential(2.0),
    "shifted exponential": plain.shifted(1.0, 0.5),
    "log-normal": plain.log_normal(1.0, 1.0),
    "pareto": plain.pareto(1.0, 1.2),
    "trace": plain.recorded([[1.0, 2.0], [0.5], [3.0, 1.0, 1.0]]),
}

UNRELIABLE = {
    "speeds": {"speeds": durations.log_normal(1.0, 1.0)},
    "windows": {"availability": Repeating(9.0, 20.0)},
    "lost": {"lost": 0.3},
    "absences": {"dropouts": Dropouts(0.2, durations.exponential(4.0))},
    "gone": {"dropouts": Dropouts(0.05)},
    "all": {
        "availability": Repeating(9.0, 20.0),
        "lost": 0.2,
        "dropouts": Dropouts(0.1, durations.constant(3.0)),
        "speeds": durations.exponential(1.0),
    },
}


def _clock(mode, time, **options):
    return lambda clients, k, steps, seed: timelines.clock(
        clients, k, steps, time, seed, mode, allow_short=True, **options
    )


RELIABLE_ASYNC = {"uniform": timelines.uniform} | {
    f"clock {name}": _clock("async", time) for name, time in DURATIONS.items()
}
SYNCHRONOUS = {f"{mode} {name}": _clock(mode, time) for mode in ("sync", "full") for name, time in DURATIONS.items()}
ROUNDS = {
    "once per round": timelines.once_per_round,
    "once per round by the clock": lambda clients, k, steps, seed: timelines.once_per_round(
        clients, k, steps, seed, durations.exponential(1.0)
    ),
}
FAULTS = {
    f"{mode} with {name}": _clock(mode, durations.exponential(1.0), **options)
    for mode in ("async", "sync", "full")
    for name, options in UNRELIABLE.items()
}
EVERY_KIND = RELIABLE_ASYNC | SYNCHRONOUS | ROUNDS | FAULTS
LATE = Intervals([(0, 0.0, 1e9), (1, 0.0, 1e9), (2, 10.0, 1e9)])


@st.composite
def sizes(draw, most_clients=40, most_steps=60):
    """(clients, k, steps, seed) that fit together."""
    clients = draw(st.integers(1, most_clients))
    return clients, draw(st.integers(1, clients)), draw(st.integers(1, most_steps)), draw(st.integers(0, 2**64 - 1))
