"""Counter-based numbers: random enough, and the same however they are asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kasync.counter import Stream, bits, integers, normals, uniforms

WORD = (1 << 64) - 1
words = st.integers(0, 2**63 - 1)


def plain_bits(*numbers: int) -> int:
    """The formula of the module, in plain integers."""
    state = 0
    for word in numbers:
        state = (state + word + 0x9E3779B97F4A7C15) & WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
        state ^= state >> 31
    return state


@given(seed=st.integers(0, WORD), client=words, visit=words, draw=words)
def test_arrays_and_numbers_give_the_bits_of_the_formula(seed, client, visit, draw):
    expected = plain_bits(seed, Stream.BATCHES, client, visit, draw)
    assert int(bits(seed, Stream.BATCHES, client, visit, draw)) == expected
    assert bits(seed, Stream.BATCHES, np.array([client, client]), visit, np.array([draw])).tolist() == [expected] * 2
    assert int(bits(seed, Stream.BATCHES, client, np.array(visit), draw)) == expected


def test_the_first_splitmix_number_is_the_published_one():
    assert plain_bits(0) == 0xE220A8397B1DCDAF


def test_every_argument_matters_and_none_can_stand_in_for_another():
    seen = {int(bits(*arguments)) for arguments in np.ndindex(4, 4, 4, 4, 4)}
    assert len(seen) == 4**5


@pytest.mark.parametrize("axis", ["seed", "client", "visit", "draw"])
def test_uniforms_are_uniform_and_neighbours_unrelated(axis):
    n = np.arange(100_000)
    if axis == "seed":
        u = np.array([float(uniforms(seed, 1, 0)) for seed in range(5000)])
    else:
        u = uniforms(0, 1, **({"client": 0} | {axis: n}))
    assert ((u > 0) & (u < 1)).all()
    counts = np.histogram(u, 20, (0, 1))[0]
    assert abs(counts - len(u) / 20).max() < 5 * np.sqrt(len(u) / 20)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / np.sqrt(len(u))


def test_normals_have_the_moments_of_a_normal():
    z = normals(0, 1, np.arange(400_000), 3, 2)
    assert [z.mean(), z.var(), (z**3).mean(), (z**4).mean()] == pytest.approx([0, 1, 0, 3], abs=0.05)


def test_integers_stay_below_and_reach_everything():
    assert set(integers(7, 0, 1, np.arange(1000)).tolist()) == set(range(7))
