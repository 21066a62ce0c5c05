"""Limited concurrency against an independent event simulator, delivery by delivery, and against theory."""

import random

import numpy as np
import pytest
from event_simulator import Judge

from kasync.errors import UserError
from kasync.timelines import Dropouts, Intervals, Repeating, clock, durations
from kasync.timelines.availability import Always, Fleet
from kasync.timelines.timeline import inconsistency

TIMES = [
    durations.exponential(1.0),
    durations.constant(1.5),
    durations.log_normal(1.0, 1.0),
    durations.pareto(0.5, 1.2),
    durations.uniform(1, 5, whole=True),
    durations.fadas(),
    durations.ace(),
    durations.fedast(steps=2),
    durations.total(durations.exponential(0.5), durations.transfer(10.0, durations.log_normal(20.0, 0.5))),
]


def slowest_first(known):
    """A user's selection: who is there, was heard least, and took longest the last time."""
    seconds = np.nan_to_num(known.seconds[known.clients], nan=0.0)
    keys = np.lexsort((known.chance, -seconds, known.heard[known.clients], ~known.present))
    return known.clients[keys[0]]


SELECT = ["uniform", "in_turn", "available", "least_heard", "new_then_last", slowest_first]


def recurring(rng, clients):
    """Windows of some of the clients, again and again; every third list comes once only."""
    rows = []
    for client in range(clients):
        edges = np.cumsum([rng.uniform(0.2, 6.0) for _ in range(2 * rng.randint(1, 4))])
        rows += [(client, edges[i], edges[i + 1]) for i in range(0, len(edges), 2) if rng.random() < 0.9]
    if rng.random() < 0.3:
        return Intervals([(c, 40 * b, 40 * e) for c, b, e in rows])
    last = max(row[0] for row in rows)
    return Intervals([row for row in rows if row[0] <= last], repeat=50.0)


def configuration(number):
    """The settings of one comparison, everything drawn from its number."""
    rng = random.Random(number)
    clients = rng.choice([3, 7, 20, 60])
    concurrency = rng.randint(1, clients)
    k = rng.randint(1, min(concurrency, rng.choice([1, 3, 10])))
    sync = rng.random() < 0.2
    faults = {}
    kind = rng.random()
    if kind < 0.35:
        faults["availability"] = rng.choice([Repeating(9.0, 20.0), Repeating(2.0, 3.0), recurring(rng, clients)])
    if rng.random() < 0.3:
        faults["dropouts"] = rng.choice([Dropouts(0.3, durations.exponential(4.0)), Dropouts(0.02)])
    if rng.random() < 0.3:
        faults["lost"] = 0.2
    terms = {
        "concurrency": concurrency,
        "select": rng.choice(SELECT),
        "deadline": rng.choice([None, None, 3.0]),
    }
    if not sync:
        terms["restart"] = rng.choice(["arrival", "update"])
        terms["max_staleness"] = rng.choice([None, None, 2])
    resumed = rng.random() < 0.5
    return clients, k, rng.randint(5, 60), rng.choice(TIMES), number, sync, terms, faults, resumed


def plain(clients, k, steps, times, seed, sync, terms, faults, resumed):
    fleet = Fleet(
        times,
        seed,
        availability=faults.get("availability", Always()),
        dropouts=faults.get("dropouts", Dropouts(0.0)),
        lost=faults.get("lost", 0.0),
        resumed=resumed,
    )
    given = {name: value for name, value in terms.items() if value is not None}
    judge = Judge(clients, k, steps, fleet, **given)
    return judge.rounds() if sync else judge.play()


@pytest.mark.parametrize("block", range(10))
def test_every_delivery_is_the_event_simulators(block):
    made = 0
    for number in range(20 * block, 20 * block + 20):
        clients, k, steps, times, seed, sync, terms, faults, resumed = configuration(number)
        judge = plain(clients, k, steps, times, seed, sync, terms, faults, resumed)
        interrupted = "resumed" if resumed else "lost"
        given = (clients, k, steps, times, seed, "sync" if sync else "async")
        options = {**terms, **faults, "interrupted": interrupted, "allow_short": True}
        if not judge.times:
            with pytest.raises(UserError, match="at step 0 fewer than k"):
                clock(*given, **options)
            continue
        timeline = clock(*given, **options)
        made += 1
        assert timeline.times.tolist() == pytest.approx(judge.times, rel=1e-12), number
        assert timeline.clients.tolist() == [[client for client, _ in row] for row in judge.rows], number
        assert timeline.versions.tolist() == [[version for _, version in row] for row in judge.rows], number
        assert inconsistency(timeline) == "", number
    assert made >= 15


@pytest.mark.parametrize("times", [durations.exponential(1.0), durations.fadas(), durations.log_normal(1.0, 1.0)])
@pytest.mark.parametrize(("restart", "expected"), [("arrival", (40 - 1) / 5), ("update", 40 / 5 - 1)])
def test_mean_staleness_is_a_matter_of_counting_whatever_the_durations(times, restart, expected):
    """C - 1 (arrival) or C - K (update) work go through each update, which uses K fleet: (C - 1)/K or C/K - 1."""
    timeline = clock(200, 5, 1200, times, 3, concurrency=40, restart=restart)
    assert timeline.staleness[200:].mean() == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("restart", ["arrival", "update"])
def test_with_everybody_at_work_it_is_the_clock_without_concurrency(restart):
    one = clock(30, 4, 80, durations.log_normal(1.0, 0.5), 5)
    other = clock(30, 4, 80, durations.log_normal(1.0, 0.5), 5, concurrency=30, restart=restart)
    assert one.fingerprint() == other.fingerprint()


@pytest.mark.parametrize("select", SELECT)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_longer_timeline_begins_with_the_shorter(select, mode):
    def made(steps):
        windows = Repeating(9.0, 20.0)
        return clock(
            50,
            3,
            steps,
            durations.exponential(2.0),
            1,
            mode,
            concurrency=9,
            select=select,
            availability=windows,
            lost=0.1,
        )

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
    "select returned -1": {"concurrency": 9, "select": lambda known: -1},
    "work_share is 3": {"work_share": 3},
    "transfer is 3": {"transfer": 3},
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_refused_in_one_sentence(sentence):
    with pytest.raises(UserError, match=sentence):
        clock(50, 5, 10, durations.constant(1.0), 0, **MISTAKES[sentence])
