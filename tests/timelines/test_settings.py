"""Timelines from one line of text, and from tables as TOML gives them."""

import numpy as np
import pytest

from kasync import timelines
from kasync.errors import UserError
from kasync.timelines import durations, settings

LINES = {
    "uniform": {"kind": "uniform"},
    "clock:durations=pareto,shape=2": {"kind": "clock", "durations": {"kind": "pareto", "shape": 2}},
    "clock:durations=pareto,shape=2,least=0.5,lost=0.1": {
        "kind": "clock",
        "durations": {"kind": "pareto", "shape": 2, "least": 0.5},
        "lost": 0.1,
    },
    "clock:durations=log_normal,spread=1,speeds=log_normal,spread=0.2": {
        "kind": "clock",
        "durations": {"kind": "log_normal", "spread": 1},
        "speeds": {"kind": "log_normal", "spread": 0.2},
    },
    "clock:durations={kind='fadas', large=false},concurrency=20": {
        "kind": "clock",
        "durations": {"kind": "fadas", "large": False},
        "concurrency": 20,
    },
    "clock:durations=ace,dropouts.chance=0.02,dropouts.away=exponential,dropouts.away.mean=60": {
        "kind": "clock",
        "durations": "ace",
        "dropouts": {"chance": 0.02, "away": {"kind": "exponential", "mean": 60}},
    },
    "clock:transfer.kilobytes=400,transfer.down=log_normal,transfer.down.median=50": {
        "kind": "clock",
        "transfer": {"kilobytes": 400, "down": {"kind": "log_normal", "median": 50}},
    },
    "clock:durations=constant,shap=2": {"kind": "clock", "durations": "constant", "shap": 2},
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_read_as_a_table(line):
    assert settings.parsed(line) == LINES[line]


@pytest.mark.parametrize(
    ("line", "same"),
    [
        (
            "clock:durations=pareto,shape=2,concurrency=20,restart=update,select=in_turn",
            lambda: timelines.clock(
                50, 4, 30, durations.pareto(shape=2), 3, concurrency=20, restart="update", select="in_turn"
            ),
        ),
        (
            "clock:durations=fedbuff,work_share=8,speeds=log_normal,deadline=3,concurrency=9",
            lambda: timelines.clock(
                50, 4, 30, durations.fedbuff(), 3, concurrency=9, deadline=3.0,
                speeds=durations.log_normal(), work_share=timelines.WorkShare(8),
            ),
        ),
        (
            "clock:durations=fedbuff,starts=constant,each=0.05,select=in_turn",
            lambda: timelines.clock(
                50, 4, 30, durations.fedbuff(), 3, starts=durations.constant(0.05), select="in_turn"
            ),
        ),
        (
            "clock:durations=fadas,concurrency=20,restart=update,previous_model=3",
            lambda: timelines.clock(
                50, 4, 30, durations.fadas(), 3, concurrency=20, restart="update", previous_model=3
            ),
        ),
        (
            "phones:samples=300,kilobytes=2000,concurrency=20,select=available,interrupted=resumed",
            lambda: timelines.from_traces(
                timelines.phones(50, 3), 4, 30, samples=300, kilobytes=2000, seed=3,
                concurrency=20, select="available", interrupted="resumed",
            ),
        ),
        (
            "clock:availability.length=8,availability.every=24,transfer.kilobytes=4,transfer.down=exponential",
            lambda: timelines.clock(
                50, 4, 30, durations.exponential(1.0), 3, availability=timelines.Repeating(8, 24),
                transfer=durations.transfer(4, durations.exponential(1.0)),
            ),
        ),
    ],
)  # fmt: skip
def test_a_line_makes_the_timeline_that_the_function_makes(line, same):
    table = settings.parsed(line)
    made = settings.timeline(table.pop("kind"), table, 50, 4, 30, 3)
    assert made.fingerprint() == same().fingerprint()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("klock", "unknown kind of .arrivals. 'klock': did you mean 'clock'"),
        ("clock:durations=pareto,shap=2", "unknown setting of arrivals 'clock' 'shap': did you mean 'shape'"),
        ("clock:durations=paretto,shape=2", "unknown kind of durations 'paretto': did you mean 'pareto'"),
        ("clock:durations=paretto", "unknown kind of durations 'paretto': did you mean 'pareto'"),
        ("clock:shape", "'shape' is not setting=value"),
        ("clock:durations=times", "durations 'times' says no each"),
        ("clock:availability.length=3", "says no every"),
        ("clock:work_share.most=3", "says no steps"),
        ("clock:dropouts=0.1", "write a table of chance and away"),
        ("clock:concurrency=2", "concurrency is 2: choose between k = 4"),
        ("traces", "need folder"),
        ("clock:concurrency=20,concurrency=30", "gives concurrency twice: give it once"),
        ("clock:durations=pareto,shape=2,shape=3", "gives shape twice: give it once"),
        ("clock:durations={kind='fadas',concurrency=20", "different numbers of brackets: balance them"),
        ("clock:work_share=0", "work_share's steps is 0: give a whole number of at least 1"),
        ("phones:samples=-1", "samples is -1: give a finite number above 0"),
        ("uniform:lost=0.1", "unknown setting of arrivals 'uniform' 'lost'"),
    ],
)
def test_a_wrong_line_is_refused_in_one_sentence(line, sentence):
    def made():
        table = settings.parsed(line)
        return settings.timeline(table.pop("kind"), table, 50, 4, 30, 3)

    with pytest.raises(UserError, match=sentence):
        made()


PAPERS = {  # mean seconds: by hand
    "fedbuff": np.sqrt(2 / np.pi),
    "fadas": (275 * 1.5 + 123 * 4 + 34 * 65) / 432,
    "ace": 0.8 * 0.5 + 0.2 * 5.0,
    "fedast": 27 * (0.114 + 0.228) * (0.25 * 0.7 + 0.5 + 0.25 * 1.3),
    "async_diloco": 20 * (0.58 + 0.75 + 1.51 + 3.33) / 4,
}


@pytest.mark.parametrize("paper", PAPERS)
def test_the_delay_model_of_a_paper_has_its_mean(paper):
    model = durations.from_table(paper)
    client = np.arange(400_000) % 100_000
    seconds = model.seconds(1, client, np.arange(400_000) // 100_000)
    assert seconds.mean() == pytest.approx(PAPERS[paper], rel=0.03)
    assert (seconds > 0).all()


def test_a_client_stays_in_its_class_and_parts_are_independent():
    slow = durations.ace().typical(0, np.arange(10_000)) > 1
    assert slow.mean() == pytest.approx(0.2, abs=0.02)
    both = durations.total(durations.exponential(1.0), durations.exponential(1.0))
    seconds = both.seconds(0, np.arange(100_000), np.zeros(100_000, dtype=int))
    assert seconds.var() == pytest.approx(2.0, rel=0.05)  # 4.0 if both had the same draws


def test_a_fast_client_does_more_steps_in_about_the_same_time():
    speeds = [1.0, 2.0, 4.0, 0.25] * 5
    timeline = timelines.clock(
        20, 2, 200, durations.constant(1.0), speeds=speeds, work_share=timelines.WorkShare(8, "fastest", least=1)
    )
    steps = np.array([2, 4, 8, 1] * 5)
    np.testing.assert_array_equal(timeline.local_steps, steps[timeline.clients])
    assert np.ptp(np.bincount(timeline.clients.ravel())) <= 21  # without shares: 16 times as many for the fast
    assert timeline.head(7).local_steps.shape == (7, 2)
    other = timelines.Timeline(timeline.clients, timeline.versions, timeline.times, 20)
    assert other.fingerprint() != timeline.fingerprint()
