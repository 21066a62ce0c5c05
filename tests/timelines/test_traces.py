"""Recorded fleets: the text format, the importers, and the generated phones."""

import gzip
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kasync import timelines
from kasync.errors import UserError
from kasync.timelines import Intervals, phones, traces
from kasync.timelines.traces import DAY

STATES = {
    "a": {"isSuccess": True, "trace_start": DAY + 100.0, "trace_end": 2 * DAY + 100.0,
          "ready_time": [[DAY + 200.0, DAY + 260.0], [DAY + 300.0, DAY + 300.0], [2 * DAY + 50.0, 2 * DAY + 90.0]]},
    "b": {"isSuccess": False, "trace_start": None, "trace_end": None, "ready_time": []},
    "c": {"isSuccess": True, "trace_start": 5.0, "trace_end": 2 * DAY + 5.0, "ready_time": [[10.0, 20.0]]},
}  # fmt: skip
LATENCIES = [{"ResNet Latency": 100}, {"ResNet Latency": 0}, {"ResNet Latency": "250.5"}]
SPEEDS = {"x": {"down_u": 4000.0, "down_sigma": 100.0, "up_u": 2000.0, "up_sigma": 50.0}}


def opening(availability, client, times):
    begin, end = availability.opening(0, np.full(len(times), client), np.array(times, dtype=float))
    return list(zip(begin.tolist(), end.tolist(), strict=True))


def flash(folder):
    for name, table in (("states", STATES), ("latencies", LATENCIES), ("speeds", SPEEDS)):
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(table).encode()))
    return traces.from_flash(*(folder / f"{name}.json.gz" for name in ("states", "latencies", "speeds")))


def test_flashs_files_are_read(tmp_path):
    fleet = flash(tmp_path)
    assert fleet.availability.listed == 2  # the failed record and the empty window are left out
    # Watched from second 100 of a day to second 100 of the next: what is after midnight is put before.
    assert opening(fleet.availability, 0, [0, 100, 250, DAY]) == [
        (50.0, 90.0), (200.0, 260.0), (250.0, 260.0), (DAY + 50.0, DAY + 90.0),
    ]  # fmt: skip
    assert opening(fleet.availability, 1, [0, 21]) == [(10.0, 20.0), (2 * DAY + 10.0, 2 * DAY + 20.0)]
    assert fleet.compute.measured.tolist() == [0.1, 0.2505]
    assert fleet.work(10).seconds(0, np.array([0, 1, 2]), np.zeros(3, dtype=int)).tolist() == [1.0, 2.505, 1.0]
    one = fleet.transfer(8000.0).seconds(0, np.arange(1000), np.arange(1000))
    assert one.mean() == pytest.approx(8000 / 4000 + 8000 / 2000, rel=0.01)


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_fedscales_files_are_read(tmp_path, kind):
    capacity = {1: {"computation": 20.0, "communication": 8000.0}, 2: {"computation": 40.0, "communication": 800.0}}
    behaviour = {
        1: {"duration": 70, "active": [10, 60], "inactive": [30, 100], "finish_time": 200, "model": "m"},
        2: {"duration": 0, "active": [], "inactive": [], "finish_time": 200, "model": "n"},
    }
    for name, table in (("capacity", capacity), ("behaviour", behaviour)):
        (tmp_path / name).write_bytes(pickle.dumps(table) if kind == "pickle" else json.dumps(table).encode())
    fleet = traces.from_fedscale(tmp_path / "capacity", tmp_path / "behaviour")
    assert fleet.compute.measured.tolist() == [0.06, 0.12]
    assert fleet.links.down.tolist() == fleet.links.up.tolist() == [1000.0, 100.0]
    assert opening(fleet.availability, 0, [0, 40, 110]) == [(10.0, 30.0), (60.0, 100.0), (210.0, 230.0)]


def test_a_pickle_that_could_be_a_program_is_refused(tmp_path):
    (tmp_path / "evil").write_bytes(pickle.dumps({"a": np.float64(1.0)}))
    with pytest.raises(UserError, match=r"pickle of plain values .it names numpy"):
        traces.from_fedscale(tmp_path / "evil")


def test_what_is_written_as_text_is_read_again(tmp_path):
    for fleet in (flash(tmp_path), phones(30, seed=4)):
        fleet.write(tmp_path / "csv")
        again = traces.read(tmp_path / "csv")
        np.testing.assert_allclose(again.compute.measured, fleet.compute.measured, rtol=1e-11)
        np.testing.assert_allclose(again.links.up_deviation, fleet.links.up_deviation, rtol=1e-11)
        who = np.repeat(np.arange(fleet.availability.listed), 200)
        times = np.tile(np.linspace(0, 13 * DAY, 200), fleet.availability.listed)
        there = [one.availability.opening(0, who, times)[0] <= times for one in (fleet, again)]
        np.testing.assert_array_equal(*there)


def test_a_recorded_fleet_makes_a_timeline(tmp_path):
    flash(tmp_path).write(tmp_path / "csv")
    timeline = timelines.from_traces(tmp_path / "csv", 1, 4, clients=2, samples=100, kilobytes=8000, seed=1)
    assert timeline.times[0] >= 10 + 25.05 or timeline.times[0] >= 200 + 10  # only there for 10 and 60 seconds
    assert set(timeline.clients.ravel().tolist()) == {0}  # the other needs more time than it is ever there
    both = timelines.from_traces(
        tmp_path / "csv", 2, 4, clients=2, samples=100, kilobytes=8000, seed=1, interrupted="resumed"
    )
    assert both.steps == 4


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("availability.csv", "client,start\n", "lacks the header client,start,end"),
        ("availability.csv", "client,start,end\na,1,x\n", "line 2: end is 'x'"),
        ("availability.csv", "client,start,end\na,5,1\n", "begin before end"),
        ("availability.csv", "client,start,end,repeat\na,5,7,3\n", "do not fit into repeat"),
        ("links.csv", "client,down,up\na,0,1\n", "not above 0 kB/s"),
        ("compute.csv", "client,seconds\na,-1\n", "not finite and above 0"),
        ("other.csv", "", "has none of availability.csv"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, file, text, sentence):
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=sentence):
        traces.read(tmp_path)


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=12),
    queries=st.lists(st.tuples(st.integers(0, 8), st.floats(0, 300)), min_size=1, max_size=10),
)
def test_recurring_intervals_are_the_list_written_out(rows, queries):
    every, disjoint = 37.0, {}
    for client, begin, length in rows:
        spans = disjoint.setdefault(client, [])
        fits = all(begin + length <= b or e <= begin for b, e in spans)
        first = min([b for b, _ in spans] + [begin])
        if fits and max([e for _, e in spans] + [begin + length]) - every <= first:
            spans.append((begin, begin + length))
    table = Intervals([(c, b, e) for c, spans in disjoint.items() for b, e in spans], repeat=every, cycle=True)
    for client, time in queries:
        spans = disjoint.get(client % table.listed, [])
        written = [(b + lap * every, e + lap * every) for lap in range(-1, 12) for b, e in spans]
        expected = min(((max(b, time), e) for b, e in written if e > time), default=(np.inf, np.inf))
        begin, end = table.opening(0, np.array([client]), np.array([time]))
        assert (begin[0], end[0]) == pytest.approx(expected)


MEASURED = {  # quantiles of FLASH's traces at 10, 25, 50, 75 and 90 %, by benchmarks/phones.py
    "duty": [0.001678, 0.01288, 0.05574, 0.1313, 0.2558],
    "window": [9, 11, 186, 1244, 4669],
    "gap": [4, 53, 644, 11711, 56789],
    "seconds": [0.069, 0.096, 0.172, 0.3093, 0.4756],
    "down": [3274, 3718, 4318, 7243, 9091],
    "up": [2002, 2703, 3286, 5038, 5850],
}


def gaps_of(there):
    """Seconds between the windows of each phone, the last gap up to the first window of the next period."""
    following = np.append(there.begin[1:], 0.0)
    following[there.first[1:] - 1] = there.begin[there.first[:-1]] + there.period[:-1]
    gaps = following - there.end
    return gaps[gaps > 0]


def test_generated_phones_have_the_quantiles_of_the_recorded_ones():
    fleet = phones(20_000, seed=5)
    there = fleet.availability
    lengths = there.end - there.begin
    owner = np.repeat(np.arange(there.listed), np.diff(there.first))
    found = {
        "duty": np.bincount(owner, lengths) / there.period[:-1],
        "window": lengths,
        "gap": gaps_of(there),
        "seconds": fleet.compute.measured,
        "down": fleet.links.down,
        "up": fleet.links.up,
    }
    for name, recorded in MEASURED.items():
        np.testing.assert_allclose(
            np.quantile(found[name], [0.1, 0.25, 0.5, 0.75, 0.9]), recorded, rtol=0.1, err_msg=name
        )


def test_a_phone_is_the_same_in_a_larger_fleet_and_nights_are_fuller():
    small, large = phones(50, seed=2), phones(3000, seed=2)
    times = np.linspace(0, 7 * DAY, 50)
    one, other = (fleet.availability.opening(0, np.arange(50), times) for fleet in (small, large))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(small.compute.measured, large.compute.measured[:50])
    who = np.arange(3000)

    def share(hour):
        moments = [day * DAY + hour * 3600 for day in range(6)]
        return np.mean([large.availability.opening(0, who, np.full(3000, t))[0] <= t for t in moments])

    assert 1.7 < share(3.5) / share(13.5) < 2.6  # recorded: 0.141 and 0.065 in these hours


def test_a_day_of_a_fleet_is_drawn(tmp_path):
    fleet = phones(100, seed=0)
    timeline = timelines.from_traces(
        fleet, 5, 40, samples=500, kilobytes=1000, concurrency=20, select="available", deadline=3600
    )
    fleet.picture(timeline, tmp_path / "day.png")
    assert (tmp_path / "day.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(UserError, match="no update happens on day 90"):
        fleet.picture(timeline, tmp_path / "day.png", day=90)
