"""The soak measures what it claims to; a short one here, 200,000 steps with `make soak`."""

from dataclasses import replace

import numpy as np
import pytest
import soak


@pytest.fixture(scope="module")
def short():
    return soak.simulated(600, 200), soak.live(600, 40)


def test_nothing_drifts_and_little_grows(short):
    for figures in short:
        assert figures.steps == 600
        assert figures.compared == 4 * figures.steps
        assert figures.drifted == 0
        assert figures.dropped > 50, "without faults a soak shows little"
        assert figures.growth < 0.05, str(figures)


def test_a_wrong_staleness_would_be_seen():
    timeline = soak.arrivals(200, 40)
    versions = timeline.versions.copy()
    sound = ~soak.chances(soak.RETURNING, 40, 1)[timeline.clients].astype(bool)
    step, slot = np.argwhere(sound & (versions > 5))[10]
    versions[step, slot] -= 1
    for seen, wanted in ((timeline, 0), (replace(timeline, versions=versions), 1)):
        judge = soak.Judge(seen)
        for number in range(seen.steps):
            judge.look(Told(number + 1, seen.clients[number], seen.staleness[number]))
        assert judge.drifted >= wanted
        assert (judge.drifted == 0) == (wanted == 0)


class Told:
    """Of a record, what the judge looks at."""

    def __init__(self, step, clients, staleness):
        self.step, self.clients, self.staleness = step, clients, staleness


@pytest.mark.long
def test_the_whole_soak_is_flat(capsys):
    found = [soak.simulated(), soak.live()]
    with capsys.disabled():
        print()
        for figures in found:
            print(figures)
    for figures in found:
        assert figures.drifted == 0
        assert figures.growth < 0.01
