"""What is wrong in the settings of faults is refused on the call, in one sentence that names it."""

import pytest
from small_worlds import CLIENTS, mlp, vectors

from kasync import faults, rules, simulate, timelines
from kasync.errors import UserError

TIMELINE = timelines.uniform(CLIENTS, 3, 30, seed=4)
WRONG = {
    "no clients": (lambda: faults.FlipSign(), "give a share above 0, or clients"),
    "both": (lambda: faults.FlipSign(0.1, clients=(1,)), "give a share above 0, or clients"),
    "share above one": (lambda: faults.SendNaN(1.5), "share of nan is 1.5"),
    "share that is a word": (lambda: faults.SendNaN("many"), "share of nan is 'many'"),
    "negative chance": (lambda: faults.Stall(0.1, chance=-0.1), "chance of stall is -0.1"),
    "chance without clients": (lambda: faults.Stall(0.1, chance=(0.1, 0.2)), "chance of stall has 2 numbers"),
    "too few chances": (lambda: faults.Stall(clients=(1, 2, 3), chance=(0.1, 0.2)), "chance of stall has 2 numbers"),
    "one chance too large": (lambda: faults.Stall(clients=(1, 2), chance=(0.1, 2)), "chance of stall is 2"),
    "the same client twice": (lambda: faults.SendZero(clients=(1, 1)), "clients of zero is"),
    "a negative client": (lambda: faults.SendZero(clients=(-1,)), "clients of zero is"),
    "nobody": (lambda: faults.SendZero(clients=()), "clients of zero is"),
    "clients that are a word": (lambda: faults.SendZero(clients="all"), "clients of zero is 'all'"),
    "no delay": (lambda: faults.Stall(0.1, delay=0), "delay of stall is 0"),
    "for ever": (lambda: faults.Stall(0.1, delay=10**30), "delay of stall is 1000000000000000000000000000000"),
    "half a step": (lambda: faults.DeliverTwice(0.1, delay=0.5), "delay of twice is 0.5"),
    "away for no time": (lambda: faults.LeaveAndReturn(0.1, away=0), "away of return is 0"),
    "negative factor": (lambda: faults.FlipSign(0.1, factor=-1.0), "factor of flip_sign is -1.0"),
    "infinite factor": (lambda: faults.SendHuge(0.1, factor=float("inf")), "factor of huge is inf"),
    "unknown kind": (lambda: faults.build("flipsign", share=0.1), "did you mean 'flip_sign'"),
    "unknown setting": (lambda: faults.build("stall", share=0.1, delays=3), "did you mean 'delay'"),
    "a word": (lambda: faults.inject(TIMELINE, "stall"), "faults holds 's'"),
    "a number": (lambda: faults.inject(TIMELINE, 3), "faults holds 3"),
    "two of a kind": (lambda: faults.inject(TIMELINE, [faults.Stall(0.1), faults.Stall(0.2)]), "stall more than once"),
    "a share of nobody": (lambda: faults.inject(TIMELINE, faults.Stall(0.01)), "is nobody to have stall"),
    "a client that is not there": (lambda: faults.inject(TIMELINE, faults.Stall(clients=(99,))), "names client 99"),
    "nobody left": (lambda: faults.inject(TIMELINE, faults.Leave(1.0, chance=1.0)), "fewer than k = 3 clients"),
    "faulty twice": (
        lambda: faults.inject(faults.inject(TIMELINE, faults.DeliverTwice(0.5)), faults.Stall(0.5)),
        "take the one it was made from",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_in_one_sentence(case):
    make, sentence = WRONG[case]
    with pytest.raises(UserError) as problem:
        make()
    assert sentence in str(problem.value)
    assert str(problem.value).endswith((".", "?"))
    assert "\n" not in str(problem.value)


def test_a_run_refuses_what_cannot_be_before_it_starts():
    for wrong in (faults.Stall(0.01), faults.SendNaN(0.01), faults.FlipLabels(clients=(99,)), "nan"):
        with pytest.raises(UserError):
            simulate(mlp(), vectors(), rules.kasync_sgd(0.05), TIMELINE, faults=wrong)


def test_labels_of_a_regression_cannot_be_flipped():
    with pytest.raises(UserError, match="flip_labels needs classes"):
        simulate(mlp(1), vectors(classes=1), rules.kasync_sgd(0.05), TIMELINE, faults=faults.FlipLabels(0.5))
