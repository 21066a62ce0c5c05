"""The clock against an independent event simulator, delivery by delivery, and limited concurrency against theory."""

import math
import random
import statistics

import event_simulator as plain
import numpy as np
import pytest
from timeline_judge import difference

from kasync import timelines
from kasync.errors import UserError
from kasync.timelines import Dropouts, Intervals, Repeating, clock, durations

SECONDS = [[1.0, 2.5], [0.5], [3.0, 1.0, 1.0]]
LAWS = [  # the package's durations, and the same as a plain function
    (durations.exponential(1.0), plain.exponential(1.0)),
    (durations.constant(1.5), plain.constant(1.5)),
    (durations.shifted_exponential(0.5, 1.0), plain.shifted(0.5, 1.0)),
    (durations.log_normal(1.0, 1.0), plain.log_normal(1.0, 1.0)),
    (durations.pareto(0.5, 1.2), plain.pareto(0.5, 1.2)),
    (durations.uniform(1, 5, whole=True), plain.whole(1, 5)),
    (durations.fedbuff(), plain.half_normal(1.0)),
    (
        durations.fadas(),
        plain.classes(
            [plain.uniform(1.0, 2.0), plain.uniform(3.0, 5.0), plain.uniform(50.0, 80.0)],
            [275 / 432, 123 / 432, 34 / 432],
        ),
    ),
    (durations.ace(), plain.classes([plain.exponential(0.5), plain.exponential(5.0)], [0.8, 0.2])),
    (
        durations.fedast(steps=2),
        plain.classes(
            [plain.times(plain.shifted(2 * 0.114, 2 * 0.228), factor) for factor in (0.7, 1.0, 1.3)], [0.25, 0.5, 0.25]
        ),
    ),
    (
        durations.trace({0: [1.0, 2.5], 1: [0.5], 2: [3.0, 1.0, 1.0]}),
        plain.recorded([[1.0, 2.5], [0.5], [3.0, 1.0, 1.0]]),
    ),
    (
        durations.total(durations.exponential(0.5), durations.log_normal(0.5, 0.5)),
        plain.total(plain.exponential(0.5), plain.log_normal(0.5, 0.5)),
    ),
]
LINK = (
    durations.transfer(10.0, durations.log_normal(20.0, 0.5), durations.exponential(30.0)),
    plain.transfer(10.0, plain.log_normal(20.0, 0.5), plain.exponential(30.0)),
)


def slowest_first(known):
    """A user's selection: who is there, was heard least, and took longest the last time."""
    there = dict(zip(known.clients, known.present, strict=True))
    draw = dict(zip(known.clients, known.chance, strict=True))

    def key(client):
        seconds = known.seconds[client]
        return not there[client], known.heard[client], -(seconds if seconds == seconds else 0.0), draw[client]

    return min(known.clients, key=key)


SELECT = ["uniform", "in_turn", "available", "least_heard", "new_then_last", slowest_first]


def windows(rng, clients):
    """Windows of some of the clients, again and again; every third list comes once only."""
    kind = rng.random()
    if kind < 0.25:
        return Repeating(9.0, 20.0), plain.repeating(9.0, 20.0)
    if kind < 0.5:
        return Repeating(2.0, 3.0), plain.repeating(2.0, 3.0)
    rows = []
    for client in range(clients):
        edges = np.cumsum([rng.uniform(0.2, 6.0) for _ in range(2 * rng.randint(1, 4))]).tolist()
        rows += [(client, edges[i], edges[i + 1]) for i in range(0, len(edges), 2) if rng.random() < 0.9]
    if rng.random() < 0.3:
        rows = [(client, 40 * begin, 40 * end) for client, begin, end in rows]
        return Intervals(rows), plain.listed(rows)
    return Intervals(rows, repeat=50.0), plain.listed(rows, repeat=50.0)


def configuration(number):
    """(arguments of clock, plain simulator of the same, its method): everything drawn from the number."""
    rng = random.Random(number)
    clients = rng.choice([3, 7, 20, 60])
    concurrency = rng.randint(1, clients)
    k = rng.randint(1, min(concurrency, rng.choice([1, 3, 10])))
    law, plain_law = rng.choice(LAWS)
    ours, theirs = {"durations": law}, {"law": plain_law}
    if rng.random() < 0.3:
        ours["availability"], theirs["window"] = windows(rng, clients)
    if rng.random() < 0.3:
        chance, away = rng.choice([(0.3, 4.0), (0.3, 4.0), (0.02, None)])
        ours["dropouts"] = Dropouts(chance, None if away is None else durations.exponential(away))
        theirs["leave"] = (chance, None if away is None else plain.exponential(away))
    if rng.random() < 0.3:
        ours["lost"] = theirs["lost"] = 0.2
    if rng.random() < 0.5:
        ours["interrupted"], theirs["resumed"] = "resumed", True
    if rng.random() < 0.3:
        ours["speeds"] = theirs["speeds"] = [math.exp(rng.gauss(0.0, 0.7)) for _ in range(clients)]
    if rng.random() < 0.3:
        ours["transfer"], theirs["link"] = LINK
    if rng.random() < 0.15:
        # With constant durations a client's speed says all: the median client does 8 steps.
        ours["durations"], theirs["law"] = LAWS[1]
        speeds = theirs.setdefault("speeds", [1.0 + client % 5 for client in range(clients)])
        median = statistics.median(1.5 / speed for speed in speeds)
        steps = [max(1, math.floor(8 * median / (1.5 / speed) + 1e-9)) for speed in speeds]
        ours |= {"speeds": speeds, "work_share": timelines.WorkShare(8)}
        theirs["shares"] = [each / 8 for each in steps]
    kind = rng.choice(["limited", "limited", "limited", "open", "rounds", "everybody", "synchronous"])
    if kind == "limited":
        ours["restart"] = theirs["restart"] = rng.choice(["arrival", "update"])
        if ours["restart"] == "update" and rng.random() < 0.3:
            ours["previous_model"] = theirs["previous_model"] = rng.randint(0, k)
    if kind == "open":
        gap = rng.choice([0.05, 0.3, 2.0])
        ours["starts"], theirs["starts"] = rng.choice(
            [(durations.constant(gap), plain.constant(gap)), (durations.exponential(gap), plain.exponential(gap))]
        )
    if kind in ("limited", "open", "rounds"):
        ours["select"] = theirs["select"] = rng.choice(SELECT)
        if rng.random() < 0.4:
            ours["deadline"] = theirs["deadline"] = rng.choice([1.5, 3.0, 8.0])
    if kind in ("limited", "rounds"):
        ours["concurrency"] = theirs["concurrency"] = concurrency
    if kind in ("limited", "open") and rng.random() < 0.3:
        ours["max_staleness"] = theirs["max_staleness"] = rng.choice([0, 2, 5])
    if kind in ("rounds", "synchronous"):
        ours["mode"] = "sync"
    size = {"clients": clients, "k": k, "steps": rng.randint(5, 60), "seed": number}
    played = {"limited": "play", "open": "play", "rounds": "rounds"}.get(kind, kind)
    return {**size, **ours}, plain.Simulator(**size, **theirs), played


@pytest.mark.parametrize("block", range(10))
def test_every_delivery_is_the_event_simulators(block):
    """Both restarts, open arrivals, over-selection and everybody at work, every selection and fault, at random."""
    found = [difference(*configuration(number)) for number in range(20 * block, 20 * block + 20)]
    assert {number: words for number, words in enumerate(found, 20 * block) if words} == {}
    assert found.count("") >= 15


@pytest.mark.parametrize("times", [durations.exponential(1.0), durations.fadas(), durations.log_normal(1.0, 1.0)])
@pytest.mark.parametrize(("restart", "expected"), [("arrival", (40 - 1) / 5), ("update", 40 / 5 - 1)])
def test_mean_staleness_is_a_matter_of_counting_whatever_the_durations(times, restart, expected):
    """C - 1 (arrival) or C - K (update) work go through each update, which uses K fleet: (C - 1)/K or C/K - 1."""
    timeline = clock(200, 5, 1200, times, 3, concurrency=40, restart=restart)
    assert timeline.staleness[200:].mean() == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("starts", [durations.constant(0.01), durations.exponential(0.01)])
def test_open_arrivals_have_the_mean_staleness_of_littles_law(starts):
    """100 starts a second that last 0.798 on average: 79.8 at work, of whom each update uses 10."""
    timeline = clock(7474, 10, 2000, durations.fedbuff(), 1, starts=starts)
    assert timeline.staleness[100:].mean() == pytest.approx(100 * math.sqrt(2 / math.pi) / 10, rel=0.03)
    assert timeline.times[-1] == pytest.approx(200.0, rel=0.03)
    assert timeline.settings["skipped"] == 0


def test_starts_for_which_nobody_is_idle_are_skipped_and_counted():
    timeline = clock(5, 2, 50, durations.constant(1.0), starts=durations.constant(0.1))
    assert timeline.settings["skipped"] > 100
    assert timeline.times[-1] >= 50 * 2 / 5  # five at work at the most, one second each


def test_replacements_on_the_previous_model_are_one_step_staler():
    fadas = {"durations": durations.fadas(), "concurrency": 25, "restart": "update"}
    plain_update, as_coded = (clock(50, 5, 800, **fadas, previous_model=old) for old in (0, 4))
    kept = 1 - 5 / 30  # of the 30 that can be chosen, five have just delivered and get the new model
    assert as_coded.staleness.mean() - plain_update.staleness.mean() == pytest.approx(4 / 5 * kept, abs=0.1)


@pytest.mark.parametrize("restart", ["arrival", "update"])
def test_with_everybody_at_work_it_is_the_clock_without_concurrency(restart):
    one = clock(30, 4, 80, durations.log_normal(1.0, 0.5), 5)
    other = clock(30, 4, 80, durations.log_normal(1.0, 0.5), 5, concurrency=30, restart=restart)
    assert one.fingerprint() == other.fingerprint()


@pytest.mark.parametrize("select", SELECT)
@pytest.mark.parametrize(
    "kind", [{"concurrency": 9}, {"concurrency": 9, "mode": "sync"}, {"starts": durations.exponential(0.3)}]
)
def test_a_longer_timeline_begins_with_the_shorter(select, kind):
    def made(steps):
        options = {"select": select, "availability": Repeating(9.0, 20.0), "lost": 0.1, **kind}
        return clock(50, 3, steps, durations.exponential(2.0), 1, **options)

    assert made(60).head(40).fingerprint() == made(40).fingerprint()


def test_selections_do_what_their_names_say():
    def heard(select, **options):
        timeline = clock(60, 2, 600, durations.exponential(1.0), 2, concurrency=6, select=select, **options)
        return np.bincount(timeline.clients.ravel(), minlength=60)

    assert np.ptp(heard("least_heard")) <= 2
    assert np.ptp(heard("in_turn")) <= 2
    assert np.ptp(heard("uniform")) > 5
    assert (heard("new_then_last") > 2).sum() <= 6 + 2 - 1  # once all have worked, those at work and those that wait
    slow = clock(60, 2, 100, durations.constant(1.0), 2, concurrency=6, availability=Repeating(5.0, 50.0))
    quick = clock(
        60, 2, 100, durations.constant(1.0), 2, concurrency=6, availability=Repeating(5.0, 50.0), select="available"
    )
    assert quick.times[-1] < slow.times[-1] / 2


def test_over_selection_does_not_wait_for_stragglers():
    everybody = clock(200, 30, 100, durations.pareto(1.0, 1.2), 0, "sync", concurrency=30)
    some = clock(200, 30, 100, durations.pareto(1.0, 1.2), 0, "sync", concurrency=39)
    assert some.times[-1] < everybody.times[-1] / 3
    assert not some.staleness.any()
    assert some.settings["failed"] == 9 * 100


def test_late_and_stale_work_is_dropped_and_counted():
    timeline = clock(50, 5, 300, durations.fadas(), 1, concurrency=25, deadline=60.0, max_staleness=6)
    assert timeline.staleness.max() == 6
    assert timeline.settings["too_stale"] > 0
    assert timeline.settings["failed"] > 0


MISTAKES = {
    "concurrency is 3: choose between k = 5 and 50": {"concurrency": 3},
    "concurrency is 51: choose between k = 5 and 50": {"concurrency": 51},
    "deadline is 3.0, but all clients work": {"deadline": 3.0},
    "select is 'in_turn', but all clients work": {"select": "in_turn"},
    "max_staleness is 3, but all clients work": {"max_staleness": 3},
    "unknown select 'inturn': did you mean 'in_turn'": {"concurrency": 9, "select": "inturn"},
    "unknown restart 'updates': did you mean 'update'": {"concurrency": 9, "restart": "updates"},
    "unknown interrupted 'resume'": {"interrupted": "resume"},
    "deadline is 0": {"concurrency": 9, "deadline": 0},
    "max_staleness is -1": {"concurrency": 9, "max_staleness": -1},
    'concurrency is for mode "async" or "sync"': {"concurrency": 9, "mode": "full"},
    'mode "sync" has no staleness': {"concurrency": 9, "mode": "sync", "max_staleness": 3},
    "starts is 0.01": {"starts": 0.01},
    "concurrency is 9, but starts says": {"starts": durations.constant(1.0), "concurrency": 9},
    'starts is for mode "async"': {"starts": durations.constant(1.0), "restart": "update"},
    "previous_model is 6: give at most k = 5": {"concurrency": 9, "restart": "update", "previous_model": 6},
    "previous_model is 4": {"concurrency": 9, "previous_model": 4},
    "select returned -1": {"concurrency": 9, "select": lambda known: -1},
    "work_share is 3": {"work_share": 3},
    "transfer is 3": {"transfer": 3},
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_refused_in_one_sentence(sentence):
    with pytest.raises(UserError, match=sentence):
        clock(50, 5, 10, durations.constant(1.0), 0, **MISTAKES[sentence])
