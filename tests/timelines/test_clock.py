"""The clock against a plain event simulator, and its distributions against their promises."""

import event_simulator as plain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_judge import difference
from timeline_kinds import DURATIONS, LATE, PLAIN, UNRELIABLE, sizes

from kasync import timelines
from kasync.timelines import Dropouts, Intervals, Repeating, clock, durations
from kasync.timelines.events import Queue

FAULTS = {  # arguments of the clock, and the same of the event simulator
    "none": ({}, {}),
    "windows": ({"availability": Repeating(9.0, 20.0)}, {"window": plain.repeating(9.0, 20.0)}),
    "tight windows": ({"availability": Repeating(2.0, 3.0)}, {"window": plain.repeating(2.0, 3.0)}),
    "lost": ({"lost": 0.4}, {"lost": 0.4}),
    "absences": ({"dropouts": Dropouts(0.3, durations.exponential(4.0))}, {"leave": (0.3, plain.exponential(4.0))}),
    "gone": ({"dropouts": Dropouts(0.05)}, {"leave": (0.05, None)}),
    "all": (
        {"availability": Repeating(9.0, 20.0), "lost": 0.2, "dropouts": Dropouts(0.1, durations.exponential(3.0))},
        {"window": plain.repeating(9.0, 20.0), "lost": 0.2, "leave": (0.1, plain.exponential(3.0))},
    ),
}


def agrees_with_the_event_simulator(size, time, faults="none", mode="async"):
    options, told = FAULTS[faults]
    size = dict(zip(("clients", "k", "steps", "seed"), size, strict=True))
    simulator = plain.Simulator(**size, law=PLAIN[time], **told)
    played = {"async": "everybody", "sync": "synchronous"}[mode]
    assert not difference({**size, "durations": DURATIONS[time], "mode": mode, **options}, simulator, played)


@pytest.mark.parametrize("faults", FAULTS)
@given(size=sizes(25, 40), time=st.sampled_from(["exponential", "log-normal", "pareto", "shifted exponential"]))
@settings(max_examples=12, deadline=None)
def test_the_clock_is_the_event_simulator(faults, size, time):
    agrees_with_the_event_simulator(size, time, faults)


@pytest.mark.parametrize("time", ["constant", "trace"])
@given(size=sizes(25, 40))
@settings(max_examples=20, deadline=None)
def test_equal_moments_go_to_the_work_handed_out_first(time, size):
    agrees_with_the_event_simulator(size, time)


@pytest.mark.parametrize("time", ["constant", "exponential", "trace"])
def test_the_clock_stays_the_event_simulator_when_most_clients_are_far_from_done(time):
    """900 clients and k = 3: the queue looks at 146 of them at a time, and must look further many times."""
    assert Queue(np.ones(900), 3).size < 150
    agrees_with_the_event_simulator((900, 3, 700, 5), time)


def test_a_client_joins_late_on_the_model_of_that_moment():
    timeline = clock(3, 1, 40, durations.constant(1.0), availability=LATE)
    step = timeline.first_step[2]
    assert timeline.times[step] == 11.0
    version = timeline.versions[step, 0]
    assert timeline.times[version - 1] == 10.0
    assert version == 20  # two clients, one delivery a second each, until second 10


def test_work_is_thrown_away_when_its_window_closes():
    windows = Repeating(2.5, 10.0, phases=[0.0])
    timeline = clock(1, 1, 5, durations.constant(1.0), availability=windows)
    assert timeline.times.tolist() == [1.0, 2.0, 11.0, 12.0, 21.0]
    assert not timeline.staleness.any()


def test_a_faster_client_delivers_more():
    timeline = clock(2, 1, 30, durations.constant(1.0), speeds=[2.0, 1.0])
    assert np.bincount(timeline.clients.ravel()).tolist() == [20, 10]


def test_lost_uploads_slow_the_clock_by_their_share():
    fast, slow = (clock(200, 10, 2_000, durations.exponential(1.0), lost=lost) for lost in (0.0, 0.5))
    assert slow.times[-1] / fast.times[-1] == pytest.approx(2.0, rel=0.05)


def test_clients_that_leave_for_good_end_the_timeline_with_a_step():
    options = {"durations": durations.exponential(1.0), "dropouts": Dropouts(0.2)}
    with pytest.raises(ValueError, match=r"at step \d+ fewer than k = 5 clients"):
        clock(20, 5, 10_000, **options)
    short = clock(20, 5, 10_000, **options, allow_short=True)
    assert 0 < short.steps < 200
    with pytest.raises(ValueError, match=f"at step {short.steps} fewer"):
        clock(20, 5, short.steps + 1, **options)
    assert clock(20, 5, short.steps, **options).fingerprint() == short.fingerprint()


@pytest.mark.parametrize("mode", ["sync", "full"])
def test_synchronous_clients_that_leave_for_good_are_not_seen_again(mode):
    short = clock(20, 5, 10_000, durations.exponential(1.0), mode=mode, dropouts=Dropouts(0.3), allow_short=True)
    assert 0 < short.steps < 200


def test_k_sync_takes_the_fastest_and_fedavg_waits_for_the_slowest():
    time = durations.exponential(1.0)
    sync, full = (clock(50, 5, 400, time, mode=mode) for mode in ("sync", "full"))
    everyone = np.arange(50)
    first = time.seconds(0, everyone, np.zeros(50, dtype=int))
    assert sync.clients[0].tolist() == np.argsort(first)[:5].tolist()
    assert sync.times[0] == np.sort(first)[4]
    assert full.times[0] == first[full.clients[0]].max()
    # Means of order statistics of 50 and of 5 exponentials.
    assert np.diff(sync.times).mean() == pytest.approx(sum(1 / (50 - i) for i in range(5)), rel=0.1)
    assert np.diff(full.times).mean() == pytest.approx(sum(1 / (5 - i) for i in range(5)), rel=0.1)


@pytest.mark.parametrize("faults", FAULTS)
@given(size=sizes(12, 15))
@settings(max_examples=10, deadline=None)
def test_k_sync_is_the_event_simulator_and_who_is_away_stays_away_at_the_next_broadcast(faults, size):
    agrees_with_the_event_simulator(size, "exponential", faults, "sync")


def test_a_synchronous_step_waits_until_somebody_is_there():
    timeline = clock(2, 2, 1, durations.constant(1.0), mode="full", availability=Intervals([(0, 0, 9), (1, 5, 9)]))
    assert timeline.times.tolist() == [6.0]


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_depends_on_client_and_piece_alone(name):
    client, piece = np.arange(50), np.arange(50) % 7
    seconds = DURATIONS[name].seconds(3, client, piece)
    assert (seconds > 0).all()
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(DURATIONS[name].seconds(3, client[order], piece[order]), seconds[order])


@pytest.mark.parametrize(
    ("time", "mean"),
    [
        (durations.constant(2.0), 2.0),
        (durations.exponential(2.0), 2.0),
        (durations.shifted_exponential(1.0, 2.0), 3.0),
        (durations.log_normal(2.0, 0.5), 2.0 * np.exp(0.125)),
        (durations.pareto(1.0, 3.0), 1.5),
    ],
)
def test_durations_have_the_mean_of_their_distribution(time, mean):
    seconds = time.seconds(1, np.arange(200_000), np.zeros(200_000, dtype=int))
    assert seconds.mean() == pytest.approx(mean, rel=0.02)


def test_a_trace_is_cycled_by_piece_and_shared_among_more_clients(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("client,seconds\nphone,1\ntablet,5\nphone,2\n")
    timeline = timelines.from_trace(file, k=1, steps=6)
    assert timeline.population == 2
    assert timeline.clients.ravel().tolist() == [0, 0, 0, 1, 0, 0]
    assert timeline.times.tolist() == [1.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert timelines.from_trace(file, k=4, steps=1, clients=4).clients.tolist() == [[0, 2, 1, 3]]


@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=12),
    queries=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 45)), min_size=1, max_size=10),
)
def test_the_next_opening_is_the_first_interval_that_is_not_over(rows, queries):
    disjoint = {}
    for client, begin, length in rows:
        if all(begin + length <= b or e <= begin for b, e in disjoint.get(client, [])):
            disjoint.setdefault(client, []).append((begin, begin + length))
    table = Intervals([(c, b, e) for c, spans in disjoint.items() for b, e in spans])
    client, time = np.array([q[0] for q in queries]), np.array([q[1] for q in queries])
    begins, ends = table.opening(0, client, time)
    for c, t, begin, end in zip(client, time, begins, ends, strict=True):
        expected = min(((max(b, t), e) for b, e in disjoint.get(c, []) if e > t), default=(np.inf, np.inf))
        assert (begin, end) == expected


@pytest.mark.parametrize("name", UNRELIABLE)
def test_unreliable_clients_are_not_mistaken_for_reliable_ones(name):
    reliable = clock(30, 3, 60, durations.exponential(1.0), 1)
    assert clock(30, 3, 60, durations.exponential(1.0), 1, **UNRELIABLE[name]).fingerprint() != reliable.fingerprint()


def test_a_share_of_work_may_be_in_a_hundred_classes_of_speed():
    kinds = durations.classes(tuple(durations.constant(1.0 + kind) for kind in range(100)), (0.01,) * 100)
    who = np.arange(500)
    assert kinds.typical(3, who).tolist() == kinds.seconds(3, who, 0 * who).tolist()
