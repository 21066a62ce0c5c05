"""A faulty timeline equals that of a program which follows every client through its faults."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_faults import strike

from kasync import faults, timelines
from kasync.timelines import durations
from kasync.timelines.timeline import inconsistency, rows_held, versions_held

CLIENTS, K, STEPS = 20, 4, 60
KINDS = {
    "uniform": timelines.uniform(CLIENTS, K, STEPS, seed=1),
    "async": timelines.clock(CLIENTS, K, STEPS, durations.exponential(1.0), 2),
    "ties": timelines.clock(CLIENTS, K, STEPS, durations.constant(1.0), 2),
    "sync": timelines.clock(CLIENTS, K, STEPS, durations.exponential(1.0), 3, "sync"),
    "rounds": timelines.once_per_round(CLIENTS, K, STEPS, 4),
    "lossy": timelines.clock(CLIENTS, K, STEPS, durations.exponential(1.0), 5, lost=0.2),
}
ONE = {
    "leave": faults.Leave(0.3, chance=0.2),
    "return": faults.LeaveAndReturn(0.4, away=7),
    "stall": faults.Stall(0.3, chance=0.7, delay=9),
    "twice": faults.DeliverTwice(0.4, chance=0.6),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_fault = pytest.mark.parametrize("fault", ONE)


def same(faulty, expected) -> None:
    """The timeline and the plain program's rows tell the same story."""
    rows, times = expected
    assert faulty.clients.tolist() == [[client for client, _, _ in row] for row in rows]
    assert faulty.versions.tolist() == [[version for _, version, _ in row] for row in rows]
    assert faulty.times.tolist() == times
    copies = np.zeros(faulty.clients.shape, dtype=bool) if faulty.copies is None else faulty.copies
    assert copies.tolist() == [[copy for _, _, copy in row] for row in rows]


@every_kind
@every_fault
def test_a_faulty_timeline_is_what_following_every_client_gives(kind, fault):
    faulty = faults.inject(KINDS[kind], ONE[fault], seed=3)
    same(faulty, strike(KINDS[kind], [ONE[fault]], 3))
    assert faulty.fingerprint() != KINDS[kind].fingerprint()


@every_kind
def test_all_faults_at_once_are_what_following_every_client_gives(kind):
    same(faults.inject(KINDS[kind], ONE.values(), seed=3), strike(KINDS[kind], list(ONE.values()), 3))


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(2, 12),
    share_k=st.floats(0.1, 1.0),
    steps=st.integers(1, 25),
    seed=st.integers(0, 2**32),
    shares=st.tuples(*[st.floats(0.1, 1.0)] * 4),
    chance=st.floats(0.0, 1.0),
    delay=st.integers(1, 30),
)
def test_any_timeline_faulty_by_anything_stays_sound_and_agrees_with_the_plain_program(
    clients, share_k, steps, seed, shares, chance, delay
):
    timeline = timelines.uniform(clients, max(1, round(share_k * clients)), steps, seed)
    named = tuple(range(clients))
    wrong = [
        faults.Leave(clients=named[: round(shares[0] * clients)] or (0,), chance=chance / 4),
        faults.LeaveAndReturn(clients=named[: round(shares[1] * clients)] or (0,), chance=chance, away=delay),
        faults.Stall(clients=named[: round(shares[2] * clients)] or (0,), chance=chance, delay=delay),
        faults.DeliverTwice(clients=named[: round(shares[3] * clients)] or (0,), chance=chance, delay=delay),
    ]
    expected = strike(timeline, wrong, seed)
    if not expected[0]:
        with pytest.raises(ValueError, match="fewer than k"):
            faults.inject(timeline, wrong, seed)
        return
    faulty = faults.inject(timeline, wrong, seed)
    same(faulty, expected)
    assert inconsistency(faulty) == ""
    assert (rows_held(faulty) >= timeline.k).all()
    assert (versions_held(faulty) >= 1).all()
    assert len(timelines.held_staleness(faulty)) == faulty.steps + 1


@every_kind
def test_faults_that_never_hit_change_nothing(kind):
    never = [faults.Leave(0.5, chance=0.0), faults.Stall(0.5, chance=0.0), faults.DeliverTwice(0.5, chance=0.0)]
    assert faults.inject(KINDS[kind], never).fingerprint() == KINDS[kind].fingerprint()
    assert faults.inject(KINDS[kind], faults.SendNaN(0.5)) is KINDS[kind]
    assert faults.inject(KINDS[kind], None) is KINDS[kind]


@pytest.mark.parametrize("kind", ["uniform", "async", "rounds", "lossy"])
def test_a_longer_timeline_faulty_begins_with_the_shorter_one_faulty(kind):
    short = faults.inject(KINDS[kind].head(40), ONE.values(), seed=3)
    long = faults.inject(KINDS[kind], ONE.values(), seed=3)
    assert long.head(short.steps).fingerprint() == short.fingerprint()


def test_who_leaves_for_good_is_never_seen_again():
    faulty = faults.inject(KINDS["uniform"], faults.Leave(clients=(3, 7), chance=1.0))
    assert not np.isin(faulty.clients, [3, 7]).any()
    left = KINDS["uniform"].clients.size - np.isin(KINDS["uniform"].clients, [3, 7]).sum()
    assert faulty.steps == left // K


def test_who_comes_back_takes_the_newest_model():
    timeline = timelines.uniform(CLIENTS, K, 400, seed=1)
    faulty = faults.inject(timeline, faults.LeaveAndReturn(clients=(3,), chance=0.5, away=20), seed=1)
    step, slot = np.nonzero(faulty.clients == 3)
    after_last = faulty.previous_step[step, slot] + 1
    away = faulty.versions[step, slot] > after_last  # it pulled later than at its last delivery
    assert away.sum() > 5
    assert (faulty.versions[step, slot] - after_last)[away].min() > 5  # about 20 steps, less its own working time
    usual = faulty.clients != 3
    assert (faulty.versions[usual] == faulty.previous_step[usual] + 1).all()


def test_who_stalls_delivers_that_much_staler():
    timeline = timelines.uniform(CLIENTS, K, 2000, seed=1)
    faulty = faults.inject(timeline, faults.Stall(clients=(0, 1), delay=25), seed=1)
    stalled = np.isin(faulty.clients, [0, 1])
    slower = faulty.staleness[stalled].mean() - timeline.staleness.mean()
    assert slower == pytest.approx(25, abs=3)  # the server is a little slower too
    assert faulty.staleness[~stalled].mean() == pytest.approx(timeline.staleness.mean(), abs=1)


def test_a_copy_is_the_same_work_again_and_the_client_then_goes_on():
    faulty = faults.inject(KINDS["uniform"], faults.DeliverTwice(0.5), seed=2)
    assert faulty.copies is not None
    for step, slot in zip(*np.nonzero(faulty.copies), strict=True):
        before = faulty.previous_step[step, slot]
        place = faulty.clients[before].tolist().index(faulty.clients[step, slot])
        assert not faulty.copies[before, place]
        assert faulty.versions[step, slot] == faulty.versions[before, place]
        assert faulty.visits[step, slot] == faulty.visits[before, place]
    counts = Counter(zip(faulty.clients.ravel().tolist(), faulty.visits.ravel().tolist(), strict=True))
    assert set(counts.values()) == {1, 2}
    assert sum(n == 2 for n in counts.values()) == faulty.copies.sum()


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
def test_rates_are_those_that_were_asked_for(share):
    timeline = timelines.uniform(200, 20, 400, seed=6)
    twice = faults.inject(timeline, faults.DeliverTwice(share, chance=0.5), seed=6)
    originals = twice.clients.size - twice.copies.sum()
    assert twice.copies.sum() / originals == pytest.approx(share / 2, rel=0.15)
    assert len(np.unique(twice.clients[twice.copies])) == round(share * 200)
    gone = faults.inject(timeline, faults.Leave(share, chance=1.0), seed=6)
    assert gone.clients.size / timeline.clients.size == pytest.approx(1 - share, abs=0.01)
    assert 200 - len(np.unique(gone.clients)) == round(share * 200)


def test_a_larger_share_has_the_clients_of_a_smaller_one():
    timeline = timelines.uniform(100, 10, 100)
    seen = [set(np.unique(faults.inject(timeline, faults.Leave(s, chance=1.0), 4).clients)) for s in (0.3, 0.2, 0.1)]
    assert seen[0] < seen[1] < seen[2]


def test_a_faulty_timeline_survives_on_disk(tmp_path):
    faulty = faults.inject(KINDS["uniform"], ONE.values(), seed=3)
    timelines.save(faulty, tmp_path / "faulty.npz")
    again = timelines.load(tmp_path / "faulty.npz")
    assert again.fingerprint() == faulty.fingerprint()
    assert again.copies.tolist() == faulty.copies.tolist()
    assert again.visits.tolist() == faulty.visits.tolist()


def test_a_copy_of_nothing_is_refused_when_a_file_is_read(tmp_path):
    plain = timelines.uniform(CLIENTS, K, 3)
    odd = timelines.Timeline(plain.clients, plain.versions, plain.times, CLIENTS, copies=plain.visits == 0)
    timelines.save(odd, tmp_path / "odd.npz")
    with pytest.raises(ValueError, match="a copy comes before what it copies"):
        timelines.load(tmp_path / "odd.npz")


def test_local_steps_stay_with_the_piece_of_work_they_belong_to():
    """Even clients have 2 local steps, odd ones 6, and each delivery after faults still has its client's."""
    shares = timelines.WorkShare(4)
    slow_and_fast = durations.per_client([1.0, 0.5] * 20)
    plain = timelines.clock(40, 3, 200, slow_and_fast, 0, work_share=timelines.WorkShare(6, "fastest"))
    assert set(plain.local_steps.ravel().tolist()) == {3, 6}
    given = [faults.Stall(0.4, chance=0.5, delay=3), faults.DeliverTwice(0.3, chance=0.5)]
    found = faults.inject(plain, given, seed=1)
    np.testing.assert_array_equal(found.local_steps, np.where(found.clients % 2, 6, 3))
    assert found.local_steps.shape == found.clients.shape
    assert shares.of(durations.exponential(1.0), None, 5, 0).tolist() == [4] * 5
