"""A mistake in the settings of a timeline is refused before work starts, in one sentence that helps."""

import numpy as np
import pytest

from kasync import timelines
from kasync.errors import UserError
from kasync.timelines import Dropouts, Intervals, Repeating, WorkShare, clock, durations, once_per_round, uniform

ONE = durations.constant(1.0)

MISTAKES = {
    "k = 11 is more than clients = 10": lambda: uniform(10, 11, 5),
    "k is 0": lambda: uniform(10, 0, 5),
    "steps is 0": lambda: once_per_round(10, 2, 0),
    "clients is 2.5": lambda: uniform(2.5, 1, 1),
    "seed is -1": lambda: uniform(10, 2, 5, seed=-1),
    "seed is 18446744073709551616": lambda: uniform(10, 2, 5, seed=2**64),
    "must stay below": lambda: uniform(2**31, 2, 5),
    "unknown mode 'asinc': did you mean 'async'": lambda: clock(10, 2, 5, ONE, mode="asinc"),
    "durations is 2.0": lambda: clock(10, 2, 5, 2.0),
    "durations is 3.0": lambda: once_per_round(10, 2, 5, durations=3.0),
    "each is -1.0": lambda: durations.constant(-1.0),
    "mean is nan": lambda: durations.exponential(float("nan")),
    "shape is 'x'": lambda: durations.pareto(1.0, "x"),
    "lost is 1.0": lambda: clock(10, 2, 5, ONE, lost=1.0),
    "chance is -0.1": lambda: Dropouts(-0.1),
    "away is 60": lambda: Dropouts(0.1, 60),
    "dropouts is 0.1": lambda: clock(10, 2, 5, ONE, dropouts=0.1),
    "availability is 8": lambda: clock(10, 2, 5, ONE, availability=8),
    "speeds of shape \\(3,\\)": lambda: clock(10, 2, 5, ONE, speeds=[1, 2, 3]),
    "speeds of shape \\(2,\\)": lambda: clock(2, 2, 5, ONE, speeds=[1, 0]),
    "speeds is 'fast'": lambda: clock(2, 2, 5, ONE, speeds="fast"),
    "availability lists 1 clients but k is 2": lambda: clock(10, 2, 5, ONE, availability=Intervals([(0, 0, 9)])),
    "availability lists client 10": lambda: clock(10, 1, 5, ONE, availability=Intervals([(10, 0, 9)])),
    "begin before end": lambda: Intervals([(0, 3, 2)]),
    "overlap": lambda: Intervals([(0, 0, 2), (0, 1, 3)]),
    "length is 30": lambda: Repeating(30, 24),
    "phases has shape \\(1,\\)": lambda: clock(10, 2, 5, ONE, availability=Repeating(8, 24, [0.0])),
    "at step 2 fewer than k = 1": lambda: clock(1, 1, 5, ONE, availability=Intervals([(0, 0, 2.5)])),
    "at step 0 fewer than k = 1": lambda: clock(1, 1, 5, ONE, availability=Intervals([(0, 0, 0.5)]), allow_short=True),
    "steps is 6 but the timeline has 5": lambda: uniform(10, 2, 5).head(6),
    "least is 0": lambda: WorkShare(2, least=0),
    "least is 1.5": lambda: WorkShare(2, least=1.5),
    "mean is '1.0'": lambda: durations.exponential("1.0"),
    "chance is '0.1'": lambda: Dropouts("0.1"),
    "low is 0.2 and high is 2.2": lambda: durations.uniform(0.2, 2.2, whole=True),
    "a trace is {0: \\['x'\\]}": lambda: durations.trace({0: ["x"]}),
    "a trace is {0: 1.5}": lambda: durations.trace({0: 1.5}),
    "seconds is 3.0": lambda: durations.per_client(3.0),
    "phases holds": lambda: clock(2, 1, 5, ONE, availability=Repeating(8, 24, [0.0, np.nan])),
    "select returned array": lambda: clock(9, 1, 5, ONE, concurrency=2, select=lambda known: known.clients),
    "an availability interval is not": lambda: Intervals([(0, 1), (2, 3), (4, 5)]),  # not two of (client, begin, end)
    "interval is not \\(client": lambda: Intervals([(0.5, 1, 2)]),
    "with begin before end: repair": lambda: Intervals([("a", 1, 2)]),
    "versions of a timeline holds 0.5": lambda: timelines.Timeline([[0], [1]], [[0], [0.5]], [1, 2], 5),
    "a timeline has clients \\[steps, k\\]": lambda: timelines.Timeline(np.zeros((2, 3)), np.zeros((3, 2)), [1, 2], 5),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_refused_in_one_sentence(sentence):
    with pytest.raises(UserError, match=sentence) as refusal:
        MISTAKES[sentence]()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("device,seconds\na,1\n", "lacks the header client,seconds"),
        ("client,seconds\na,x\n", "line 2: seconds is 'x'"),
        ("client,seconds\na,1\nb\n", "line 3: seconds is None"),
        ("client,seconds\na,-1\n", "not finite and above 0"),
        ("client,seconds\n", "no seconds"),
        ("", "lacks the header"),
    ],
)
def test_a_broken_trace_is_refused_by_name(tmp_path, text, sentence):
    file = tmp_path / "phones.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=sentence) as refusal:
        timelines.from_trace(file, k=1, steps=1)
    assert "phones.csv" in str(refusal.value)


def test_a_missing_trace_is_refused_by_name(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.csv cannot be read"):
        timelines.from_trace(tmp_path / "nowhere.csv", k=1, steps=1)
